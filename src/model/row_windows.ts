/** Rows of a matrix in runs that one binding covers, for kernels that walk rows. */
import { type Buffer, type Device, SLICE_ALIGNMENT_BYTES } from "../compute/device.ts";
import { UnsupportedError } from "../errors.ts";

/** Rows [first, first + rows), which are what `buffer` holds. */
export interface RowWindow {
  readonly first: number;
  readonly rows: number;
  readonly buffer: Buffer;
}

/**
 * The windows of a matrix [rows, width] of 4-byte values that begins a buffer: one, the buffer itself, where that fits.
 * @throws {UnsupportedError} where a binding does not hold the few rows between two places at which a slice may start.
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
      `Cannot work through ${buffer.label} as one binding of this device is smaller than ${step} of its rows: ${step * rowBytes} bytes, at most ${limit}`,
      { part: "device", capability: "maxStorageBufferBindingSize" },
    );
  const windows: RowWindow[] = [];
  for (let first = 0; first < rows; first += fitting) {
    const count = Math.min(fitting, rows - first);
    windows.push({ first, rows: count, buffer: buffer.slice(first * rowBytes, count * rowBytes) });
  }
  return windows;
}

/** Rows of 4-byte values from one place at which a slice may start to the next. */
export function alignedRows(width: number): number {
  return SLICE_ALIGNMENT_BYTES / gcd(SLICE_ALIGNMENT_BYTES, width * 4);
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
