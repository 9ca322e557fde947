/** The log-ratios of a batch between its trainer and its sampler, with masked reductions over tokens and rows. */

import { sum } from "../../../leaves/statistics.ts";
import { forEachRow, mapRows, trainedIn } from "../../packing/offsets.ts";
import { COUNT_EPSILON, type MaskedRows } from "../rows.ts";

/** Log-ratios are bounded by it before they are exponentiated. */
export const SAFETY_BOUND = 20;

/** Batch of a correction; per-token arrays are [T]. */
export interface CorrectionBatch extends MaskedRows {
  /** The trainer's log-probs: those at the start of the update, or the current ones in bypass mode. */
  readonly logprobs: ArrayLike<number>;
  readonly rolloutLogprobs: ArrayLike<number>;
}

/** Trainer's minus sampler's log-prob, [T]. */
export function logRatios({
  logprobs,
  rolloutLogprobs,
}: Pick<CorrectionBatch, "logprobs" | "rolloutLogprobs">): Float64Array {
  return Float64Array.from(logprobs, (x, t) => x - rolloutLogprobs[t]!);
}

export class CorrectionRows {
  readonly mask: Uint32Array;
  readonly logRatio: Float64Array;
  /** Trained tokens of each row. */
  readonly trained: readonly (readonly number[])[];
  /** Trained tokens of all rows, in order. */
  readonly allTrained: readonly number[];
  /** Rows with a trained token. */
  readonly filled: readonly number[];
  private readonly offsets: Uint32Array;

  constructor(batch: CorrectionBatch) {
    this.offsets = batch.offsets;
    this.mask = batch.mask;
    this.logRatio = logRatios(batch);
    this.trained = mapRows(batch.offsets, (_, first, end) => trainedIn(batch.mask, first, end));
    this.allTrained = this.trained.flat();
    this.filled = this.trained.flatMap((tokens, row) => (tokens.length > 0 ? [row] : []));
  }

  /** Number of rows. */
  get count(): number {
    return this.trained.length;
  }

  /** Sum over each row's trained tokens, [N]. */
  rowSums(of: (t: number) => number): number[] {
    return this.trained.map((tokens) => sum(tokens.map(of)));
  }

  /** Mean over each row's trained tokens, [N]; 0 where it has none. */
  rowMeans(of: (t: number) => number): number[] {
    return this.trained.map((tokens) => sum(tokens.map(of)) / (tokens.length + COUNT_EPSILON));
  }

  /** Mean over all trained tokens. */
  mean(of: (t: number) => number): number {
    return sum(this.allTrained.map(of)) / (this.allTrained.length + COUNT_EPSILON);
  }

  /** Share of trained tokens that a test holds for. */
  share(isHit: (t: number) => boolean): number {
    return this.mean((t) => Number(isHit(t)));
  }

  /** Deviation over all trained tokens, as E[x^2] - E[x]^2; 0 for fewer than two. */
  deviation(of: (t: number) => number): number {
    const variance = this.mean((t) => of(t) ** 2) - this.mean(of) ** 2;
    return this.allTrained.length > 1 ? Math.sqrt(Math.max(variance, 0)) : 0;
  }

  /** Numbers of rows at all their tokens, [T]. */
  spread(values: readonly number[]): Float64Array {
    const tokens = new Float64Array(this.mask.length);
    forEachRow(this.offsets, (row, first, end) => {
      tokens.fill(values[row]!, first, end);
    });
    return tokens;
  }
}
