/** GRPO in the forms of verl, rLLM and TRL: the distance of each score from its group's mean, in deviations. */
import { deviation, mean } from "../../../../leaves/statistics.ts";
import { type Estimator, type EstimatorSettings, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";

/** How a group's scores are normalised. */
export interface GroupNorm {
  readonly byDeviation: boolean;
  /** 1 = sample (verl, TRL), 0 = population (rLLM). */
  readonly ddof: number;
  /** Added to the deviation. */
  readonly epsilon: number;
  /** Advantage of a group of one: its reward over 1 + epsilon (verl, rLLM), or 0 (TRL). */
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
export function groupNormOf(settings: EstimatorSettings, singleton: GroupNorm["singleton"] = "reward"): GroupNorm {
  const { ddof, epsilon } = settings as { ddof: number; epsilon: number };
  return { byDeviation: isByDeviation(settings), ddof, epsilon, singleton };
}

export const isByDeviation = (settings: EstimatorSettings): boolean => settings.norm_adv_by_std_in_grpo !== false;

/** Score minus the group's mean, verl's way: the reward itself in a group of one. */
export function centred(scores: readonly number[]): number[] {
  return groupNorm(scores, { byDeviation: false, ddof: 1, epsilon: 0, singleton: "reward" });
}

const SOURCE = "https://arxiv.org/abs/2402.03300";

function grpoAs(
  name: string,
  about: Pick<Estimator, "describe" | "elsewhere"> & {
    settings: ReturnType<typeof normSettings>;
    alone?: GroupNorm["singleton"];
  },
): Estimator {
  const { settings, alone = "reward", ...rest } = about;
  return {
    ...{ name, settings, sources: [SOURCE], scope: "group", ...rest },
    estimate: (batch, settings) => perRow(byGroup(batch, (scores) => groupNorm(scores, groupNormOf(settings, alone)))),
    record: (r) => {
      const options = { form: "norm", byDeviation: isByDeviation(r.settings), aloneIsZero: alone === "zero" } as const;
      return { advantages: r.group(r.need("scores"), options) };
    },
  };
}

export const grpo = grpoAs("grpo", {
  describe: "each score less its group's mean, over the sample deviation plus 1e-6; alone, the reward",
  settings: normSettings(1, 1e-6),
  elsewhere: { verl: "grpo", trinity: { name: "grpo", hasType: true } },
});
export const grpoVectorized = grpoAs("grpo_vectorized", {
  describe: "the numbers of grpo, which verl computes without a loop over groups",
  settings: normSettings(1, 1e-6),
  elsewhere: { verl: "grpo_vectorized" },
});
export const rllmGrpo = grpoAs("rllm.grpo", {
  describe: "rLLM's grpo: the population's deviation plus 1e-6",
  settings: normSettings(0, 1e-6),
});
export const trlGrpo = grpoAs("trl.grpo", {
  describe: "TRL's grpo: the sample deviation plus 1e-4; alone, 0",
  settings: normSettings(1, 1e-4),
  alone: "zero",
});
