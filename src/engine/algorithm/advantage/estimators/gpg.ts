/** GPG: centred scores, scaled up by the share of rows that have a reward at all. */
import { type Estimator, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";
import { centred } from "./grpo.ts";

/**
 * A_i = alpha (s_i - mean of the group) / f_norm, with alpha = rows / rows whose score is not 0.
 * @see https://arxiv.org/abs/2504.02546, verl core_algos.compute_gpg_outcome_advantage
 */
export const gpg: Estimator = {
  name: "gpg",
  describe: "each score less its group's mean, times rows / rows with a reward / f_norm",
  sources: ["https://arxiv.org/abs/2504.02546"],
  elsewhere: { verl: "gpg" },
  settings: { f_norm: 1 },
  scope: "batch",
  estimate(batch, { f_norm }) {
    const scores = Array.from(batch.scores);
    const alpha = scores.length / Math.max(scores.filter((s) => s !== 0).length, 1);
    return perRow(byGroup(batch, centred).map((a) => (alpha * a) / (f_norm as number)));
  },
  record(r) {
    const advantages = r.group(r.need("scores"), { form: "norm" });
    r.scaleByNonzero(advantages, r.need("scores"), r.settings.f_norm as number);
    return { advantages };
  },
};
