/** RLOO: each score against the mean of the others in its group. */
import { mean } from "../../../statistics.ts";
import { type Estimator, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";

/**
 * A_i = s_i - mean of the other scores = (s_i - mean(s)) n / (n - 1).
 * @param alone what a group of one becomes
 * @see https://arxiv.org/abs/2402.14740, verl core_algos.compute_rloo_outcome_advantage
 */
export function leaveOneOut(scores: readonly number[], alone: "reward" | "zero"): number[] {
  const n = scores.length;
  if (n <= 1) return scores.map((s) => (alone === "reward" ? s : 0));
  const centre = mean(scores);
  return scores.map((s) => ((s - centre) * n) / (n - 1));
}

function rlooAs(name: string, alone: "reward" | "zero"): Estimator {
  const estimate: Estimator["estimate"] = (batch) => perRow(byGroup(batch, (scores) => leaveOneOut(scores, alone)));
  return { name, settings: {}, scope: "group", estimate };
}

/** A group of one keeps its reward. */
export const rloo = rlooAs("rloo", "reward");
/** A group of one gets 0. */
export const rlooVectorized = rlooAs("rloo_vectorized", "zero");
