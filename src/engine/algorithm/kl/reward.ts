/** KL to the reference policy as a cost in the reward. */
import type { Metrics } from "../../contract/backend.ts";
import { forEachRow } from "../../packing/offsets.ts";
import { COUNT_EPSILON, type MaskedRows } from "../rows.ts";
import type { KlController } from "./controller.ts";
import { klCode, klEstimate } from "./estimate.ts";

/** Batch of a KL term in the reward; per-token arrays are [T]. */
export interface KlRewardBatch extends MaskedRows {
  readonly tokenRewards: ArrayLike<number>;
  readonly oldLogprobs: ArrayLike<number>;
  readonly refLogprobs: ArrayLike<number>;
}

/**
 * R_t - beta K(old, ref) at trained tokens, and the controller for the next step.
 * @returns token rewards [T], the next controller, and `actor/reward_kl_penalty` with its coefficient
 * @throws {ConfigError} for a KL estimator that is not published
 * @see verl ray_trainer.apply_kl_penalty
 */
export function klInReward(
  batch: KlRewardBatch,
  { kl, controller }: { readonly kl: string; readonly controller: KlController },
): { tokenRewards: Float64Array; controller: KlController; metrics: Metrics } {
  const { offsets, mask, oldLogprobs, refLogprobs } = batch;
  const code = klCode(kl);
  const tokenRewards = Float64Array.from(batch.tokenRewards);
  const rows = offsets.length - 1;
  let meanOfRows = 0;
  forEachRow(offsets, (_, first, end) => {
    let [sum, trained] = [0, 0];
    for (let t = first; t < end; t++) {
      if (mask[t] === 0) continue;
      const { value } = klEstimate(code, oldLogprobs[t]! - refLogprobs[t]!);
      tokenRewards[t]! -= controller.coef * value;
      sum += value;
      trained++;
    }
    meanOfRows += sum / (trained + COUNT_EPSILON) / rows;
  });
  const metrics = { "actor/reward_kl_penalty": meanOfRows, "actor/reward_kl_penalty_coeff": controller.coef };
  return { tokenRewards, controller: controller.update(meanOfRows, rows), metrics };
}
