/** GDPO: each reward normalised within its group, then their weighted sum whitened over tokens. */
import { ConfigError, UnsupportedError } from "../../../../leaves/errors.ts";
import { countRows } from "../../rows.ts";
import { type AdvantageBatch, type Estimator, type EstimatorSettings, needs, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";
import { whiten } from "../whitening.ts";
import { groupNorm, groupNormOf, isByDeviation, normSettings } from "./grpo.ts";

/**
 * A = whiten(sum_k w_k groupNorm(r_k)) over the rewards r_k that `gdpo_reward_keys` names, weighted by trained tokens; epsilon
 * 1e-6. w_k is 1 without `gdpo_reward_weights`. Without keys, all rewards of the batch; without named rewards, the scores.
 * @see https://arxiv.org/abs/2601.05242, verl core_algos.compute_gdpo_outcome_advantage
 */
export const gdpo: Estimator = {
  name: "gdpo",
  describe: "each reward normalised in its group, then their weighted sum whitened over tokens",
  sources: ["https://arxiv.org/abs/2601.05242"],
  elsewhere: { verl: "gdpo" },
  settings: { ...normSettings(1, 1e-6), gdpo_reward_keys: null, gdpo_reward_weights: null },
  scope: "batch",
  estimate(batch, settings) {
    const total = new Float64Array(batch.scores.length);
    const norm = groupNormOf(settings);
    for (const { scores, weight } of weightedRewards(batch, settings)) {
      const part = byGroup({ ...batch, scores }, (s) => groupNorm(s, norm));
      for (const [row, advantage] of part.entries()) total[row]! += weight * advantage;
    }
    return perRow(whiten(total, countRows(batch.offsets, batch.mask).trained, "row"));
  },
  isRecordable: ({ rewardComponents }) => rewardComponents === undefined,
  record(r) {
    const components = Object.values(r.rewardComponents ?? { reward: r.need("scores") });
    const [scores] = components;
    if (!scores || components.length > 1)
      throw new UnsupportedError(
        `Cannot estimate gdpo on the device: it takes one reward there (${components.length}). Use advantages() on the host.`,
        { part: "advantages", capability: "gdpo with several rewards on the device" },
      );
    const advantages = r.group(scores, { form: "norm", byDeviation: isByDeviation(r.settings) });
    r.whitenByTokens(advantages, "row");
    return { advantages };
  },
};

/** @throws {ConfigError} for a key without a reward, and for another number of weights */
function weightedRewards({ scores, rewardComponents }: AdvantageBatch, settings: EstimatorSettings) {
  const rewardKeys = (settings.gdpo_reward_keys ?? []) as readonly string[];
  const keys = rewardKeys.length > 0 ? rewardKeys : Object.keys(rewardComponents ?? {});
  const parts = keys.map((key) => needs(rewardComponents?.[key], "gdpo", `rewardComponents.${key}`));
  const rewards = parts.length > 0 ? parts : [scores];
  const weights = (settings.gdpo_reward_weights ?? rewards.map(() => 1)) as readonly number[];
  if (weights.length !== rewards.length)
    throw new ConfigError(
      `Cannot estimate gdpo: it needs a weight for each of ${rewards.length} rewards (${weights.length}). Correct gdpo_reward_weights.`,
      { path: "gdpo_reward_weights" },
    );
  return rewards.map((each, k) => ({ scores: each, weight: weights[k]! }));
}
