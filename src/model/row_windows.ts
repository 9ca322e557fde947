/** Cuts the rows of a matrix into windows that fit one binding. */
import { type Buffer, type Device, SLICE_ALIGNMENT_BYTES } from "../compute/device.ts";
import { UnsupportedError } from "../errors.ts";

/** Rows [first, first + rows), the contents of `buffer`. */
export interface RowWindow {
  readonly first: number;
  readonly rows: number;
  readonly buffer: Buffer;
}

/**
 * The windows of a matrix [rows, width] of 4-byte values at the start of a buffer. Where the buffer fits one binding, it
 * is the only window.
 * @throws {UnsupportedError} where one binding cannot hold the rows between two aligned slices.
 */
export function rowWindows(
  device: Device,
  buffer: Buffer,
  { rows, width }: { rows: number; width: number },
): RowWindow[] {
  const limit = device.info.limits.maxBindingBytes;
  if (buffer.byteLength <= limit) return [{ first: 0, rows, buffer }];
  const rowBytes = width * 4;
  const step = alignedRows(width);
  const fitting = Math.floor(limit / rowBytes / step) * step;
  if (fitting === 0)
    throw new UnsupportedError(
      `Cannot process ${buffer.label}: one binding of this device is smaller than ${step} of its rows (${limit} of ${step * rowBytes} bytes).`,
      { part: "device", capability: "maxStorageBufferBindingSize" },
    );
  const windows: RowWindow[] = [];
  for (let first = 0; first < rows; first += fitting) {
    const count = Math.min(fitting, rows - first);
    windows.push({ first, rows: count, buffer: buffer.slice(first * rowBytes, count * rowBytes) });
  }
  return windows;
}

/** Number of rows of 4-byte values between two aligned slices. */
export function alignedRows(width: number): number {
  return SLICE_ALIGNMENT_BYTES / gcd(SLICE_ALIGNMENT_BYTES, width * 4);
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
