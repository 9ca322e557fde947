/** Cuts the rows of a matrix into windows that fit one binding, and those of a computation into runs that fit memory. */
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

/** Rows [first, first + rows). */
export interface RowRun {
  readonly first: number;
  readonly rows: number;
}

/**
 * Cuts `count` rows into runs: the widest matrix of a run, with rows of `width` 4-byte values, holds at most `mostBytes`
 * and fits one binding. Runs can be sliced from matrices with rows of `sliced` values ({@link rowsOf}), and hold at least as
 * many rows as that takes.
 */
export function rowRuns(
  device: Device,
  count: number,
  { width, sliced, mostBytes }: { width: number; sliced: number; mostBytes: number },
): RowRun[] {
  const limit = Math.min(mostBytes, device.info.limits.maxBindingBytes);
  const step = alignedRows(sliced);
  const rows = Math.max(Math.floor(limit / (width * 4) / step) * step, step);
  const runs: RowRun[] = [];
  for (let first = 0; first < count; first += rows) runs.push({ first, rows: Math.min(rows, count - first) });
  return runs;
}

/** The rows of a run of a matrix [T, width] of 4-byte values. */
export function rowsOf(buffer: Buffer, { first, rows }: RowRun, width: number): Buffer {
  return buffer.slice(first * width * 4, rows * width * 4);
}

/** Number of rows of 4-byte values between two aligned slices. */
function alignedRows(width: number): number {
  return SLICE_ALIGNMENT_BYTES / gcd(SLICE_ALIGNMENT_BYTES, width * 4);
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
