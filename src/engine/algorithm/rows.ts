/** How long the rows of a batch are, and how much of each is trained on. */
import { forEachRow, totalTokens } from "../packing/offsets.ts";

/** verl's masked means add it to every count. */
export const COUNT_EPSILON = 1e-8;

/** Packed rows, tokens end to end. */
export interface MaskedRows {
  /** [N+1]. */
  readonly offsets: Uint32Array;
  /** 1 = trained on, [T]. */
  readonly mask: Uint32Array;
}

/** How many tokens and trained tokens the rows have. */
export interface RowCounts {
  /** Tokens in all rows, T. */
  readonly tokens: number;
  /** Trained tokens of each row (mask = 1), [N]. */
  readonly trained: Uint32Array;
  /** Tokens of the longest row. */
  readonly longest: number;
}

/** Counts a packed batch on the host: offsets [N+1], mask [T]. */
export function countRows(offsets: Uint32Array, mask: Uint32Array): RowCounts {
  const trained = new Uint32Array(offsets.length - 1);
  let longest = 0;
  forEachRow(offsets, (row, first, end) => {
    longest = Math.max(longest, end - first);
    let count = 0;
    for (let t = first; t < end; t++) if (mask[t] !== 0) count++;
    trained[row] = count;
  });
  return { tokens: totalTokens(offsets), trained, longest };
}

/** Trained tokens of all rows. */
export function trainedTokens(rows: RowCounts): number {
  return rows.trained.reduce((sum, n) => sum + n, 0);
}

/** Rows with at least one trained token. */
export function filledRows(rows: RowCounts): number {
  return rows.trained.reduce((sum, n) => sum + (n > 0 ? 1 : 0), 0);
}
