/** Stage 2, transform: groups the trajectories of episodes that are compared with each other. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { largest, mean, smallest } from "../../../leaves/statistics.ts";
import type { Episode, RewardedTrajectory, Step, Trajectory, TrajectoryGroup } from "../../data/types.ts";
import type { Grouping, StageContext, Staged } from "../contract.ts";
import { withTeacherPrompts } from "../distill/prompt.ts";
import { groupBy } from "../group_by.ts";
import { isMasked, named } from "../rollout/eligible.ts";
import { groupings } from "./hooks.ts";
import { filterStale } from "./staleness.ts";

/**
 * Names trajectories, removes masked episodes, malformed and stale trajectories, groups by task and role (or by a hook), and
 * checks every reward: the functions below and `filterStale` in a row, each of which is also a stage for `pipeline.stages`.
 * @throws {ConfigError} for a reward that is missing or not finite, with its trajectory
 */
export function transform(episodes: readonly Episode[], context: StageContext): Staged<TrajectoryGroup[]> {
  const withNames = nameTrajectories(episodes, context);
  const unmasked = filterMasked(withNames.value, context);
  const sound = filterMismatched(unmasked.value, context);
  const fresh = filterStale(sound.value, context);
  const groups = checkRewards(group(fresh.value, context).value);
  const metrics = { ...withNames.metrics, ...sound.metrics, ...fresh.metrics, ...groups.metrics };
  return { value: groups.value, metrics };
}

/** Names unnamed trajectories by their index in the episode, or drops them (`rllm.transform`). */
export function nameTrajectories(
  episodes: readonly Episode[],
  { settings }: Pick<StageContext, "settings">,
): Staged<readonly Episode[]> {
  const value = episodes.map((episode) => named(episode, settings));
  const before = value.reduce((sum, episode) => sum + episode.trajectories.length, 0);
  return { value, metrics: { "groups/num_trajs_before_filter": before } };
}

/** Compact filtering: a masked episode counts for no baseline and no gradient, for any grouping. */
export function filterMasked(
  episodes: readonly Episode[],
  { settings }: Pick<StageContext, "settings">,
): Staged<readonly Episode[]> {
  return { value: episodes.filter((episode) => !isMasked(episode, settings)), metrics: {} };
}

/**
 * `filter_token_mismatch`: removes trajectories with a step that lacks one log-prob per response token, and counts them
 * under the name of rLLM's Tinker backend. Without this filter `batch` refuses them.
 */
export function filterMismatched(
  episodes: readonly Episode[],
  { settings, warn }: Pick<StageContext, "settings" | "warn">,
): Staged<readonly Episode[]> {
  if (!settings.filter_token_mismatch) return { value: episodes, metrics: {} };
  const broken = episodes.flatMap(({ trajectories }) => trajectories.filter((each) => !isSound(each)));
  if (broken.length === 0) return { value: episodes, metrics: { "batch/dropped_malformed_sequences": 0 } };
  warn?.(
    "Trajectories are dropped because their response tokens and log-probs do not match (rllm.filter_token_mismatch): " +
      `see batch/dropped_malformed_sequences. The first is ${broken[0]!.uid}.`,
  );
  const value = episodes.map((episode) => ({
    ...episode,
    trajectories: episode.trajectories.filter(isSound),
  }));
  return { value, metrics: { "batch/dropped_malformed_sequences": broken.length } };
}

function isSound({ steps }: Trajectory): boolean {
  return steps.every(({ response_ids, logprobs }: Step) => response_ids.length === logprobs.length);
}

/** Groups by the run's hook, by the one named in `traj_grouping_hook`, or by task and name. */
export function group(
  episodes: readonly Episode[],
  context: Pick<StageContext, "settings" | "grouping"> & Partial<Pick<StageContext, "backend" | "teacher">>,
): Staged<readonly Grouping[]> {
  const { settings, grouping } = context;
  const named = settings.algorithm.traj_grouping_hook;
  const hook = grouping ?? (named === null ? groupByTaskAndName : groupings.find(named));
  return { value: hook(withTeacherPrompts(episodes, context), settings), metrics: {} };
}

/** rLLM's rule: one group for each task and trajectory name, in order of appearance. */
export function groupByTaskAndName(episodes: readonly Episode[]): Grouping[] {
  const attempts = episodes.flatMap((episode) => episode.trajectories.map((trajectory) => ({ episode, trajectory })));
  const filled = attempts.filter(({ trajectory }) => trajectory.steps.length > 0);
  const groups = groupBy(filled, ({ episode, trajectory }) => `${episode.task_index}:${trajectory.name}`);
  return Array.from(groups.values(), toGroup);
}

function toGroup(members: { episode: Episode; trajectory: Trajectory }[]): Grouping {
  const { episode, trajectory } = members[0]!;
  return {
    group_id: `${episode.task.id}:${trajectory.name}`,
    task_id: episode.task.id,
    group_role: trajectory.name,
    trajectories: members.map((member) => member.trajectory),
    metadata: members.map(({ episode: { task, rollout_index, termination_reason, is_correct }, trajectory }) => ({
      task_id: task.id,
      rollout_index,
      termination_reason: trajectory.termination_reason ?? termination_reason,
      is_correct,
    })),
  };
}

/**
 * Checks the rewards of groups. In a group all trajectories have a reward, or none has: then the reward of the last
 * step counts.
 * @throws {ConfigError} for a group that breaks this rule, and for a reward that is not finite
 */
export function checkRewards(groups: readonly Grouping[]): Staged<TrajectoryGroup[]> {
  const value = groups.map(checkGroup);
  return { value, metrics: groupMetrics(value) };
}

function checkGroup(group: Grouping): TrajectoryGroup {
  const rewarded = group.trajectories.filter(({ reward }) => reward !== null).length;
  if (rewarded !== 0 && rewarded !== group.trajectories.length) {
    throw new ConfigError(
      `Cannot compare the group ${group.group_id}: ${rewarded} of ${group.trajectories.length} trajectories have a reward. Give one to all of them, or to none.`,
      { kind: "code" },
    );
  }
  return { ...group, trajectories: group.trajectories.map((trajectory) => withReward(trajectory, group)) };
}

/** @throws {ConfigError} for a reward that is missing or not finite */
export function withReward(trajectory: Trajectory, group: Pick<Grouping, "group_role">): RewardedTrajectory {
  const reward = trajectory.reward ?? trajectory.steps.at(-1)?.reward;
  if (reward !== undefined && Number.isFinite(Math.fround(reward))) return { ...trajectory, reward };
  throw new ConfigError(
    `Cannot train on the trajectory ${trajectory.uid} (${group.group_role}): its reward must be a finite number (${reward ?? "none"}). Correct the reward function; this step trained nothing.`,
    { kind: "code" },
  );
}

function groupMetrics(groups: readonly TrajectoryGroup[]): Metrics {
  const sizes = groups.map((each) => each.trajectories.length);
  return {
    "groups/num_trajs_after_filter": sizes.reduce((sum, size) => sum + size, 0),
    "groups/num_groups": groups.length,
    "groups/avg_group_size": mean(sizes),
    "groups/max_group_size": sizes.length > 0 ? largest(sizes) : 0,
    "groups/min_group_size": sizes.length > 0 ? smallest(sizes) : 0,
  };
}
