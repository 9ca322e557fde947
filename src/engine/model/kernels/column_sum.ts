/** Sums over rows: the gradient of what is added to each row. */
import type { Device, DispatchOptions } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import type { Scratch } from "../scratch.ts";
import { quads, THREADS, threads } from "./rows.ts";

/** out[c] (+)= sum over rows of x[row, c]. x [rows, width], out [width]; added where `accumulate` is 1. */
export const columnSum = defineKernel({
  name: "layer/column_sum",
  bindings: { x: "read f32", out: "write f32" },
  params: { rows: "u32", width: "u32", accumulate: "u32" },
  constants: THREADS,
  grid: ({ width }, constants) => threads(quads(width, "width"), constants),
  reference({ x, out }, { rows, width, accumulate }) {
    for (let c = 0; c < width; c++) {
      let sum = accumulate ? out[c] : 0;
      for (let row = 0; row < rows; row++) sum! += x[row * width + c]!;
      out[c] = sum!;
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/** Row blocks of {@link columnPartials}: fixed, so that a sum repeats bit for bit. */
export const COLUMN_BLOCKS = 64;

/** partials[b, c] = sum over the rows of block b of x[row, c]. x [rows, width], partials [COLUMN_BLOCKS, width]. */
export const columnPartials = defineKernel({
  name: "layer/column_partials",
  bindings: { x: "read f32", partials: "write f32" },
  params: { rows: "u32", width: "u32" },
  constants: { ...THREADS, BLOCKS: COLUMN_BLOCKS },
  grid: ({ width }, constants) => threads(constants.BLOCKS! * quads(width, "width"), constants),
  reference({ x, partials }, { rows, width }, { BLOCKS }) {
    const perBlock = Math.ceil(rows / BLOCKS!);
    for (let block = 0; block < BLOCKS!; block++)
      for (let c = 0; c < width; c++) {
        let sum = 0;
        for (let row = block * perBlock; row < Math.min((block + 1) * perBlock, rows); row++)
          sum += x[row * width + c]!;
        partials[block * width + c] = sum;
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/** Records {@link columnSum}, on GPUs in blocks of rows, because columns are too few to keep one busy. */
export function recordColumnSum(
  device: Device,
  {
    buffers,
    params,
    scratch,
  }: DispatchOptions<typeof columnSum.bindings, typeof columnSum.params> & {
    readonly scratch: Scratch;
  },
): void {
  const { rows, width } = params;
  if (device.info.family !== "tiled" || rows <= COLUMN_BLOCKS) {
    device.dispatch(columnSum, { buffers, params });
    return;
  }
  const partials = scratch.floats(COLUMN_BLOCKS * width, "column partials");
  device.dispatch(columnPartials, { buffers: { x: buffers.x, partials }, params: { rows, width } });
  device.dispatch(columnSum, { buffers: { ...buffers, x: partials }, params: { ...params, rows: COLUMN_BLOCKS } });
  scratch.free(partials);
}
