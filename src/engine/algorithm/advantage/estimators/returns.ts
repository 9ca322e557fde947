/** Returns of a row, from its last token to its first. Masked tokens lie between a trajectory's turns. */
import { forEachRow } from "../../../packing/offsets.ts";
import type { AdvantageBatch } from "../definition.ts";

/** One row's tokens, first <= t < end, and what they earn. */
export interface RowRewards {
  readonly row: number;
  readonly first: number;
  readonly end: number;
  readonly mask: ArrayLike<number>;
  reward(t: number): number;
}

/** [T]; the kernels' references write float32, the estimators float64. */
export type FloatOutput = Float32Array | Float64Array;

/** Index of a row's last trained token; -1 where it has none. */
export function lastTrained(mask: ArrayLike<number>, first: number, end: number): number {
  for (let t = end - 1; t >= first; t--) if (mask[t] !== 0) return t;
  return -1;
}

/** Calls `of` for every row with its token rewards, or with its score at its last trained token. */
export function forEachRewards(batch: AdvantageBatch, of: (row: RowRewards) => void): void {
  const { mask, tokenRewards, scores } = batch;
  forEachRow(batch.offsets, (row, first, end) => {
    const last = lastTrained(mask, first, end);
    const reward = (t: number) => (tokenRewards ? tokenRewards[t]! : t === last ? scores[row]! : 0);
    of({ row, first, end, mask, reward });
  });
}

/**
 * G_t = R_t + gamma G_{t+1} over a row's trained tokens, written to `returns`.
 * @param options.atMasked what a masked token does with the running return: `carry` passes it on and shows 0, `carry
 * and show` passes it on and shows it, `reset` shows its own and starts from 0 again
 */
export function discountedReturns(
  { first, end, mask, reward }: RowRewards,
  options: { gamma: number; atMasked: "carry" | "carry and show" | "reset" },
  returns: FloatOutput,
): void {
  const { gamma, atMasked } = options;
  let next = 0;
  for (let t = end - 1; t >= first; t--) {
    const running = reward(t) + gamma * next;
    if (mask[t] !== 0) {
      next = running;
      returns[t] = running;
    } else {
      returns[t] = atMasked === "reset" ? running : atMasked === "carry" ? 0 : next;
      if (atMasked === "reset") next = 0;
    }
  }
}

/** Sum of what a row still earns on trained tokens, from each token on, [T]. */
export function rewardsToGo(batch: AdvantageBatch): Float64Array {
  const returns = new Float64Array(batch.mask.length);
  forEachRewards(batch, (row) => discountedReturns(row, { gamma: 1, atMasked: "carry and show" }, returns));
  return returns;
}
