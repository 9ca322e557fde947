/** ReMax: rewards to go against the reward of the greedy rollout. */
import { forEachRow } from "../../../packing/offsets.ts";
import { type Estimator, needs } from "../definition.ts";
import { rewardsToGo } from "./returns.ts";

/**
 * A_t = G_t - b at trained tokens, with the greedy rollout's reward b; masked tokens show G_t.
 * @see https://arxiv.org/abs/2310.10505, verl core_algos.compute_remax_outcome_advantage
 */
export const remax: Estimator = {
  name: "remax",
  describe: "rewards to go less the reward of a greedy attempt",
  sources: ["https://arxiv.org/abs/2310.10505"],
  elsewhere: { verl: "remax", trinity: { name: "remax", hasType: false } },
  settings: {},
  scope: "row",
  estimate(batch) {
    const baselines = needs(batch.rewardBaselines, "remax", "reward_baselines");
    const returns = rewardsToGo(batch);
    const values = returns.slice();
    forEachRow(batch.offsets, (row, first, end) => {
      const baseline = baselines[row]!;
      for (let t = first; t < end; t++) if (batch.mask[t] !== 0) values[t]! -= baseline;
    });
    return { level: "token", values, returns };
  },
  record: (r) => r.backwards("toGo", { values: r.need("rewardBaselines") }),
};
