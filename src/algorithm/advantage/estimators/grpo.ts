/** GRPO in the forms of verl, rLLM and TRL: the distance of each score from its group's mean, in deviations. */
import { deviation, mean } from "../../../statistics.ts";
import { type Estimator, type EstimatorSettings, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";

/** How a group's scores are normalised. */
export interface GroupNorm {
  readonly byDeviation: boolean;
  /** 1 = sample (verl, TRL), 0 = population (rLLM). */
  readonly ddof: number;
  /** Added to the deviation. */
  readonly epsilon: number;
  /** What a group of one becomes: its reward over 1 + epsilon (verl, rLLM), or 0 (TRL). */
  readonly singleton: "reward" | "zero";
}

/**
 * A_i = (s_i - mean(s)) / (deviation(s) + epsilon) over the scores of one group; the numerator alone without
 * `byDeviation` (Dr. GRPO).
 * @see https://arxiv.org/abs/2402.03300 (GRPO), https://arxiv.org/abs/2503.20783 (Dr. GRPO),
 * verl core_algos.compute_grpo_outcome_advantage, TRL GRPOTrainer, rLLM trainer/algorithms
 */
export function groupNorm(scores: readonly number[], norm: GroupNorm): number[] {
  const isAlone = scores.length === 1;
  const centre = isAlone && norm.singleton === "reward" ? 0 : mean(scores);
  if (!norm.byDeviation) return scores.map((s) => s - centre);
  const spread = isAlone ? (norm.singleton === "reward" ? 1 : 0) : deviation(scores, norm.ddof);
  return scores.map((s) => (s - centre) / (spread + norm.epsilon));
}

/** Settings of a group norm with an estimator's published defaults. */
export const normSettings = (ddof: 0 | 1, epsilon: number) => ({
  norm_adv_by_std_in_grpo: true,
  epsilon,
  ddof,
});

/** The group norm of an estimator under its settings. */
export function groupNormOf(name: string, settings: EstimatorSettings): GroupNorm {
  return {
    byDeviation: settings.norm_adv_by_std_in_grpo !== false,
    ddof: settings.ddof as number,
    epsilon: settings.epsilon as number,
    singleton: name.startsWith("trl.") ? "zero" : "reward",
  };
}

/** Score minus the group's mean, verl's way: the reward itself in a group of one. */
export function centred(scores: readonly number[]): number[] {
  return groupNorm(scores, { byDeviation: false, ddof: 1, epsilon: 0, singleton: "reward" });
}

function grpoAs(name: string, settings: ReturnType<typeof normSettings>): Estimator {
  return {
    name,
    settings,
    scope: "group",
    estimate: (batch, given) => perRow(byGroup(batch, (scores) => groupNorm(scores, groupNormOf(name, given)))),
  };
}

/** verl: sample deviation, epsilon 1e-6. */
export const grpo = grpoAs("grpo", normSettings(1, 1e-6));
/** The same numbers; verl computes them without a loop over groups. */
export const grpoVectorized = grpoAs("grpo_vectorized", normSettings(1, 1e-6));
/** rLLM: population deviation, epsilon 1e-6. */
export const rllmGrpo = grpoAs("rllm.grpo", normSettings(0, 1e-6));
/** TRL: sample deviation, epsilon 1e-4; a group of one gets 0. */
export const trlGrpo = grpoAs("trl.grpo", normSettings(1, 1e-4));
