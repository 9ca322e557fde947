/** OPO: the optimal baseline of a group, under the approximation that gradient norms grow with length. */
import { weightedMean } from "../../../../leaves/statistics.ts";
import { countRows } from "../../rows.ts";
import { type Estimator, perRow } from "../definition.ts";
import { byGroup, pick } from "../groups.ts";

/**
 * A_i = s_i - sum_j n_j s_j / sum_j n_j, with n the trained tokens of each row; in a group of one, the reward. A group without a trained token has no baseline
 * and trains nothing: 0.
 * @see https://arxiv.org/abs/2505.23585, verl core_algos.compute_opo_outcome_advantage
 */
export function lengthWeighted(scores: readonly number[], lengths: readonly number[]): number[] {
  if (scores.length === 1) return [...scores];
  if (lengths.every((n) => n === 0)) return scores.map(() => 0);
  const baseline = weightedMean(scores, (k) => lengths[k]!);
  return scores.map((s) => s - baseline);
}

export const opo: Estimator = {
  name: "opo",
  describe: "each score less its group's mean, weighted by trained tokens",
  sources: ["https://arxiv.org/abs/2505.23585"],
  elsewhere: { verl: "opo" },
  settings: {},
  scope: "group",
  estimate(batch) {
    const { trained } = countRows(batch.offsets, batch.mask);
    return perRow(byGroup(batch, (scores, rows) => lengthWeighted(scores, pick(trained, rows))));
  },
  record: (r) => ({ advantages: r.group(r.need("scores"), { form: "length" }) }),
};
