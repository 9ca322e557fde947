/** RLOO: each score against the mean of the others in its group. */
import { mean } from "../../../../leaves/statistics.ts";
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

function rlooAs(
  name: string,
  { alone, ...rest }: Pick<Estimator, "describe" | "elsewhere"> & { alone: "reward" | "zero" },
): Estimator {
  return {
    ...{ name, settings: {}, scope: "group", sources: ["https://arxiv.org/abs/2402.14740"], ...rest },
    estimate: (batch) => perRow(byGroup(batch, (scores) => leaveOneOut(scores, alone))),
    record: (r) => ({ advantages: r.group(r.need("scores"), { form: "others", aloneIsZero: alone === "zero" }) }),
  };
}

export const rloo = rlooAs("rloo", {
  describe: "each score less the mean of the others in its group; alone, the reward",
  alone: "reward",
  elsewhere: { verl: "rloo", trinity: { name: "rloo", hasType: true } },
});
export const rlooVectorized = rlooAs("rloo_vectorized", {
  describe: "the numbers of rloo; alone, 0",
  alone: "zero",
  elsewhere: { verl: "rloo_vectorized" },
});
