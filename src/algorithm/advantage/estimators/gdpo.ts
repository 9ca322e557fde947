/** GDPO: each reward normalised within its group, then their sum whitened over tokens. */
import { countRows } from "../../rows.ts";
import { type Estimator, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";
import { whiten } from "../whitening.ts";
import { groupNorm, groupNormOf, normSettings } from "./grpo.ts";

/**
 * A = whiten(sum_k groupNorm(r_k)) over the reward components r_k, weighted by trained tokens; epsilon 1e-6.
 * @see https://arxiv.org/abs/2601.05242
 */
export const gdpo: Estimator = {
  name: "gdpo",
  settings: normSettings(1, 1e-6),
  scope: "batch",
  estimate(batch, settings) {
    const components = batch.rewardComponents ?? { reward: batch.scores };
    const total = new Float64Array(batch.scores.length);
    for (const scores of Object.values(components)) {
      const part = byGroup({ ...batch, scores }, (s) => groupNorm(s, groupNormOf("gdpo", settings)));
      for (const [row, advantage] of part.entries()) total[row]! += advantage;
    }
    return perRow(whiten(total, countRows(batch.offsets, batch.mask).trained, "row"));
  },
};
