/** Transposed copies of matrices that may be larger than one binding. */
import type { Buffer, Device } from "../compute/device.ts";
import { transpose } from "./kernels/elementwise.ts";
import type { ParameterShape } from "./parameters.ts";
import { rowWindows } from "./row_windows.ts";

/**
 * y[c, offset + r] = x[r, c]: x [rows, columns]; y has rows of `stride` elements, of which this fills `rows`. Records only.
 * @param to.offset default 0. @param to.stride default: the rows of x.
 */
export function transposeInto(
  device: Device,
  { x: from, rows, columns }: ParameterShape & { x: Buffer },
  to: { y: Buffer; offset?: number; stride?: number },
): void {
  const { offset = 0, stride = rows } = to;
  for (const x of rowWindows(device, from, { rows, width: columns }))
    for (const y of rowWindows(device, to.y, { rows: columns, width: stride }))
      device.dispatch(transpose, {
        buffers: { x: x.buffer, y: y.buffer },
        params: {
          rows: x.rows,
          columns: y.rows,
          x_offset: y.first,
          x_stride: columns,
          y_offset: offset + x.first,
          y_stride: stride,
        },
      });
}
