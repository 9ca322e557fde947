/**
 * Shared by the kernels of a transformer: grids of threads, and the layout of rows.
 *
 * Legend of this folder: T tokens, C channels, H query heads, KV key/value heads, D head width, F feed-forward width,
 * V vocabulary. Widths, strides and offsets are in elements, and multiples of 4 except V, because kernels read vec4s.
 */
import { type Constants, folded, type Grid } from "../../compute/kernel.ts";

/** Workgroup size of kernels without barriers. */
export const THREADS = { WORKGROUP: 64 } as const;

/** One thread per unit of work. */
export function threads(units: number, constants: Constants): Grid {
  return folded(Math.ceil(units / constants.WORKGROUP!));
}

/**
 * `value / 4`, the number of vec4s.
 * @throws RangeError when it is not a whole number. Callers pad their rows.
 */
export function quads(value: number, name: string): number {
  if (value % 4 !== 0) throw new RangeError(`Cannot run a kernel over ${name} not in fours: ${value}`);
  return value / 4;
}

/**
 * Rows inside a wider buffer: each token has `stride` elements, with `per_token` rows of `width` side by side from
 * `offset` on. Plain [rows, width] is `per_token` 1, `stride` = `width`, `offset` 0.
 */
export interface RowLayout {
  readonly per_token: number;
  readonly width: number;
  readonly stride: number;
  readonly offset: number;
}

/** First element of a row. */
export function rowStart(row: number, { per_token, width, stride, offset }: RowLayout): number {
  const token = Math.floor(row / per_token);
  return token * stride + offset + (row - token * per_token) * width;
}
