/** Advantages by the published estimators: the loop's default. */
import { advantages } from "../algorithm/advantages.ts";
import { type EstimatorSettings, estimatorNames, findEstimator } from "../algorithm/estimator.ts";
import { packGroups } from "../algorithm/groups.ts";
import type { EstimateAdvantages } from "./advantages.ts";

/**
 * Runs a registered estimator on one role's rewards. Where rLLM and verl differ under one name (`grpo` divides by the
 * population's deviation in rLLM, by the sample's in verl), the loop's settings mean rLLM's.
 */
export const estimateAdvantages: EstimateAdvantages = (
  rewards,
  groups,
  { name, norm_adv_by_std_in_grpo },
) => {
  const isOwn = estimatorNames().includes(`rllm.${name}`);
  const estimator = findEstimator(isOwn ? `rllm.${name}` : name);
  const settings: EstimatorSettings =
    "norm_adv_by_std_in_grpo" in estimator.settings ? { norm_adv_by_std_in_grpo } : {};
  const count = groups.reduce((most, group) => Math.max(most, group + 1), 0);
  const batch = {
    offsets: Uint32Array.from({ length: rewards.length + 1 }, (_, i) => i),
    mask: new Uint32Array(rewards.length).fill(1),
    groups: packGroups(groups, count),
    scores: rewards,
  };
  return Float32Array.from(advantages(batch, estimator.name, settings).advantages);
};
