/** Turns an episode into the rows that a cluster trains on: those that the loop here would pack of it. */

import { ConfigError } from "../../leaves/errors.ts";
import { mergeSteps, type TokenRow } from "../../train/data/pack.ts";
import type { Episode, RewardedTrajectory, Step } from "../../train/data/types.ts";
import { componentKeys } from "../../train/loop/roles.ts";
import type { LoopSettings } from "../../train/loop/settings.ts";
import { checkStep, reasonsToMask } from "../../train/loop/stages/batch.ts";
import { pickComponents } from "../../train/loop/stages/components.ts";
import { nameTrajectories, withReward } from "../../train/loop/stages/transform.ts";
import { finiteMetrics } from "./attempts.ts";
import type { ClusterTrajectory, Takes } from "./protocol.ts";

export interface TrajectoryRowOptions {
  readonly settings: LoopSettings;
  /** Whether the cluster sent log-probs. */
  readonly hasLogprobs: boolean;
  /** Response tokens beyond it are cut, as the cluster does. */
  readonly maxResponseLength: number;
}

export interface ClusterRows {
  readonly trajectories: readonly ClusterTrajectory[];
  /** Response tokens beyond the limit. */
  readonly cutTokens: number;
}

/**
 * The rows of an episode that have a response. Steps whose prompt continues all tokens before it are one row; another prompt
 * starts a further row, with the same reward.
 * @throws {ConfigError} for a reward, a log-prob or a step that cannot be trained on, with its trajectory
 */
export function episodeRows(episode: Episode, options: TrajectoryRowOptions): ClusterRows {
  const [named] = nameTrajectories([episode], options).value;
  const masked = reasonsToMask(options.settings);
  const { is_correct } = episode;
  const metrics = finiteMetrics(episode.metrics);
  const keys = componentKeys(options.settings.algorithm);
  let cutTokens = 0;
  const trajectories: ClusterTrajectory[] = [];
  for (const each of named!.trajectories.filter(({ steps }) => steps.length > 0)) {
    const trajectory = withReward(each, { group_role: each.name });
    const isMasked = masked.includes(each.termination_reason ?? episode.termination_reason);
    const components = keys.length > 0 && { components: pickComponents(trajectory, keys) };
    for (const row of checkedRows(trajectory, options)) {
      const split = splitRow(row, trajectory.uid);
      if (split.response_ids.length === 0) continue;
      const response = cutResponse(split, options);
      cutTokens += split.response_ids.length - response.response_ids.length;
      const response_mask = isMasked ? response.response_mask.map(() => 0 as const) : response.response_mask;
      trajectories.push({
        ...response,
        response_mask,
        ...outcomeOf(trajectory, row),
        is_correct,
        metrics,
        ...components,
      });
    }
  }
  return { trajectories, cutTokens };
}

/**
 * Checks that the cluster's trainer can train on all trajectories of a rollout.
 * @throws {ConfigError} with their names and rewards
 */
export function checkTaken(trajectories: readonly ClusterTrajectory[], takes: Takes | undefined): void {
  const rewards = new Set(trajectories.map(({ reward }) => reward));
  const isTaken = takes === undefined || trajectories.length === 1 || (takes === "same_reward" && rewards.size === 1);
  if (isTaken) return;
  const each = trajectories.map(({ name, reward }) => `${name} ${reward}`).join(", ");
  const limit = takes === "one" ? "one trajectory of a rollout" : "one reward for all trajectories of a rollout";
  throw new ConfigError(
    `Cannot train on a rollout with ${trajectories.length} trajectories (rewards: ${each}): the cluster's trainer takes ${limit}. Let each prompt of the agent continue all tokens before it, or train with rllm/backend=local or tinker.`,
    { kind: "code" },
  );
}

function outcomeOf({ name, reward }: RewardedTrajectory, row: TokenRow) {
  return { name, reward, num_turns: new Set(row.steps).size };
}

function checkedRows({ uid, steps }: RewardedTrajectory, { hasLogprobs }: TrajectoryRowOptions): TokenRow[] {
  const packed = hasLogprobs ? steps : steps.map(withoutLogprobs);
  for (const [index, step] of packed.entries()) checkStep(step, { uid, index });
  return mergeSteps(packed);
}

function withoutLogprobs(step: Step): Step {
  return { ...step, logprobs: step.response_ids.map(() => 0) };
}

type SplitRow = Pick<ClusterTrajectory, "prompt_ids" | "response_ids" | "response_mask"> & {
  readonly response_logprobs: readonly number[];
};

/** The prompt is what stands before the first sampled token. A row without one has no response. */
function splitRow({ tokens, mask, logprobs }: TokenRow, uid: string): SplitRow {
  const first = mask.indexOf(1);
  const at = first < 0 ? tokens.length : first;
  if (at === 0)
    throw new ConfigError(
      `Cannot train on the trajectory ${uid}: a model call has no prompt, and nothing predicts its first token. Give each call a prompt.`,
      { kind: "code" },
    );
  return {
    prompt_ids: tokens.slice(0, at),
    response_ids: tokens.slice(at),
    response_mask: mask.slice(at) as (0 | 1)[],
    response_logprobs: logprobs.slice(at),
  };
}

function cutResponse(row: SplitRow, { maxResponseLength: most, hasLogprobs }: TrajectoryRowOptions) {
  return {
    prompt_ids: row.prompt_ids,
    response_ids: row.response_ids.slice(0, most),
    response_mask: row.response_mask.slice(0, most),
    response_logprobs: hasLogprobs ? row.response_logprobs.slice(0, most) : null,
  };
}
