/** Cuts the rows of a matrix into windows that fit one binding, and those of a computation into runs that fit memory. */

import { UnsupportedError } from "../../leaves/errors.ts";
import type { Buffer, Device } from "../compute/device.ts";
import { alignedElements, fittingElements, type MatrixFormat, matrixBytes, scalesBytes } from "../compute/packed.ts";

/** Rows [first, first + rows), the contents of `buffer`. */
export interface RowWindow {
  readonly first: number;
  readonly rows: number;
  readonly buffer: Buffer;
  /** Scales of these rows, where the format has them. */
  readonly scales: Buffer | undefined;
}

/** A matrix [rows, width] from the start of a buffer. */
export interface RowMatrix {
  readonly rows: number;
  readonly width: number;
  /** Default `float32`, which stands for any elements of 4 bytes. */
  readonly format?: MatrixFormat | undefined;
  /** Scales of the blocks of `int8` and `nf4`. */
  readonly scales?: Buffer | undefined;
}

/**
 * The windows of a matrix. Where the buffer fits one binding, it is the only window.
 * @throws {UnsupportedError} where one binding cannot hold the rows between two aligned slices.
 */
export function rowWindows(device: Device, buffer: Buffer, matrix: RowMatrix): RowWindow[] {
  const { rows, width, format = "float32", scales } = matrix;
  const limit = device.info.limits.maxBindingBytes;
  if (buffer.byteLength <= limit) return [{ first: 0, rows, buffer, scales }];
  const step = alignedRows(width, format);
  const fitting = Math.floor(fittingElements(format, limit) / width / step) * step;
  if (fitting === 0)
    throw new UnsupportedError(
      `Cannot process ${buffer.label}: one binding of this device is smaller than ${step} of its rows (${limit} of ${matrixBytes(format, step * width)} bytes).`,
      { part: "device", capability: "maxStorageBufferBindingSize" },
    );
  const windows: RowWindow[] = [];
  for (let first = 0; first < rows; first += fitting) {
    const count = Math.min(fitting, rows - first);
    const slice = (whole: Buffer, bytesOf: typeof matrixBytes) =>
      whole.slice(bytesOf(format, first * width), bytesOf(format, count * width));
    windows.push({
      first,
      rows: count,
      buffer: slice(buffer, matrixBytes),
      scales: scales && slice(scales, scalesBytes),
    });
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
 * and fits one binding. Runs can be sliced from matrices with rows of `sliced` values ({@link bufferRows}), and hold at least as
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
export function bufferRows(buffer: Buffer, { first, rows }: RowRun, width: number): Buffer {
  return buffer.slice(first * width * 4, rows * width * 4);
}

/** Number of rows between two aligned slices. */
function alignedRows(width: number, format: MatrixFormat = "float32"): number {
  const elements = alignedElements(format);
  return elements / gcd(elements, width);
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
