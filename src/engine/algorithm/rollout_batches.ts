/** Packed rollouts as each algorithm reads them. */

import { ConfigError } from "../../leaves/errors.ts";
import type { Floats, Rollouts } from "../packing/rollouts/rollouts.ts";
import type { AdvantageBatch } from "./advantage/definition.ts";
import { packGroups } from "./advantage/groups.ts";
import type { CorrectionBatch } from "./correction/rows.ts";
import type { LossBatch } from "./loss/host.ts";
import type { KlBatch } from "./loss/kl_loss.ts";

/**
 * The estimators' view of packed rollouts. Without groups, each row is a group.
 * @throws {ConfigError} for rollouts without rewards
 */
export function advantageBatch(rollouts: Rollouts): AdvantageBatch {
  const { offsets, mask, tokens, rewards, groupOfRow, groupNames, rewardComponents } = rollouts;
  if (!rewards)
    throw new ConfigError(
      "Cannot estimate advantages: the rollouts hold no reward. Give reward or token_rewards in every row.",
      { path: "reward" },
    );
  return {
    offsets,
    mask,
    groups: groupOfRow
      ? packGroups(groupOfRow, groupNames.length)
      : packGroups(Uint32Array.from(rewards.keys()), rewards.length),
    scores: rewards,
    tokenRewards: tokens.token_rewards,
    values: tokens.values,
    rewardBaselines: rollouts.rewardBaselines,
    oldLogprobs: tokens.old_logprobs,
    sumPiSquared: tokens.sum_pi_squared,
    rolloutIsWeights: tokens.rollout_is_weights,
    rewardComponents: Object.keys(rewardComponents).length > 0 ? rewardComponents : undefined,
  };
}

/**
 * The losses' view of packed rollouts.
 * @throws {ConfigError} for rollouts without `logprobs` or `advantages`
 */
export function lossBatch(rollouts: Rollouts): LossBatch {
  const { offsets, mask, tokens } = rollouts;
  return {
    offsets,
    mask,
    logprobs: field(rollouts, "logprobs"),
    oldLogprobs: tokens.old_logprobs,
    advantages: { level: "token", values: field(rollouts, "advantages") },
    rolloutIsWeights: tokens.rollout_is_weights,
    refLogprobs: tokens.ref_logprobs,
  };
}

/** The rollouts' log-probs of trainer and sampler. @throws {ConfigError} where one of them is absent */
export function correctionBatch(rollouts: Rollouts): CorrectionBatch {
  return {
    offsets: rollouts.offsets,
    mask: rollouts.mask,
    logprobs: field(rollouts, "old_logprobs"),
    rolloutLogprobs: field(rollouts, "rollout_logprobs"),
  };
}

/** The policy's log-probs and the reference's. @throws {ConfigError} where one of them is absent */
export function klBatch(rollouts: Rollouts): KlBatch {
  const { offsets, mask } = rollouts;
  return {
    offsets,
    mask,
    logprobs: field(rollouts, "logprobs"),
    refLogprobs: field(rollouts, "ref_logprobs"),
  };
}

/** @throws {ConfigError} when the rollouts do not hold the field */
function field(rollouts: Rollouts, name: keyof Rollouts["tokens"]): Floats {
  const values = rollouts.tokens[name];
  if (values) return values;
  throw new ConfigError(`Cannot compute this: the rollouts hold no ${name}. Give it at every token.`, {
    path: name,
  });
}
