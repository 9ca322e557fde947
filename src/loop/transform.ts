/** Stage 2, transform: episodes into groups of trajectories that are compared with each other. */
import type { Metrics } from "../backend.ts";
import type { Episode, RewardedTrajectory, Trajectory, TrajectoryGroup } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import type { LoopSettings } from "./settings.ts";
import type { StageContext, Staged } from "./stages.ts";
import { groupBy, largest, mean, smallest } from "./statistics.ts";

/** A group before its rewards are checked. */
export interface Grouping extends Omit<TrajectoryGroup, "trajectories"> {
  readonly trajectories: readonly Trajectory[];
}

/** Decides what is compared with what. Episodes that compact filtering masks are already left out. */
export type GroupingHook = (episodes: readonly Episode[], settings: LoopSettings) => readonly Grouping[];

/**
 * Names trajectories, leaves out masked episodes, groups by task and role (or by your hook), and checks every reward.
 * @throws {ConfigError} naming the trajectory whose reward is missing or not finite.
 */
export function transform(
  episodes: readonly Episode[],
  { settings, grouping = groupByTaskAndName }: StageContext,
): Staged<TrajectoryGroup[]> {
  const named = episodes.map((episode) => nameTrajectories(episode, settings.transform));
  const unmasked = named.filter((episode) => !isMasked(episode, settings.compact_filtering));
  const groups = grouping(unmasked, settings).map(checkRewards);
  return { value: groups, metrics: groupMetrics(named, groups) };
}

function nameTrajectories(episode: Episode, options: LoopSettings["transform"]): Episode {
  const { impute_missing_names, default_traj_name, drop_unnamed_traj } = options;
  const isUnnamed = ({ name }: Trajectory) => name === "" || name === default_traj_name;
  if (!impute_missing_names) {
    if (!drop_unnamed_traj) return episode;
    return { ...episode, trajectories: episode.trajectories.filter((trajectory) => !isUnnamed(trajectory)) };
  }
  const trajectories = episode.trajectories.map((trajectory, i) =>
    isUnnamed(trajectory) ? { ...trajectory, name: `${default_traj_name}_${i}` } : trajectory,
  );
  return { ...episode, trajectories };
}

/** Compact filtering: a masked episode adds neither to a baseline nor to a gradient. */
function isMasked({ termination_reason }: Episode, filtering: LoopSettings["compact_filtering"]): boolean {
  return filtering.enable && filtering[`mask_${termination_reason}`];
}

/** rLLM's rule: one group for each task and trajectory name, in order of appearance. */
export function groupByTaskAndName(episodes: readonly Episode[]): Grouping[] {
  const attempts = episodes.flatMap((episode) =>
    episode.trajectories.map((trajectory) => ({ episode, trajectory })),
  );
  const filled = attempts.filter(({ trajectory }) => trajectory.steps.length > 0);
  const groups = groupBy(filled, ({ episode, trajectory }) => `${episode.task_index}:${trajectory.name}`);
  return Array.from(groups.values(), toGroup);
}

function toGroup(members: { episode: Episode; trajectory: Trajectory }[]): Grouping {
  const [{ episode, trajectory }] = members;
  return {
    group_id: `${episode.task.id}:${trajectory.name}`,
    task_id: episode.task.id,
    group_role: trajectory.name,
    trajectories: members.map((member) => member.trajectory),
    metadata: members.map(({ episode: { task, rollout_index, termination_reason, is_correct } }) => ({
      task_id: task.id,
      rollout_index,
      termination_reason,
      is_correct,
    })),
  };
}

function checkRewards(group: Grouping): TrajectoryGroup {
  const given = group.trajectories.filter(({ reward }) => reward !== null).length;
  if (given !== 0 && given !== group.trajectories.length) {
    throw new ConfigError(
      `Cannot compare the group ${group.group_id} as either all of its trajectories have a reward or none: ${given} of ${group.trajectories.length} do`,
    );
  }
  return { ...group, trajectories: group.trajectories.map((trajectory) => withReward(trajectory, group)) };
}

function withReward(trajectory: Trajectory, group: Grouping): RewardedTrajectory {
  const reward = trajectory.reward ?? trajectory.steps.at(-1)?.reward ?? Number.NaN;
  if (Number.isFinite(reward)) return { ...trajectory, reward };
  throw new ConfigError(
    `Cannot train on a reward as it must be a finite number: ${reward}, of the trajectory ${trajectory.uid} (${group.group_role}). Mend the reward function; nothing was trained in this step.`,
  );
}

function groupMetrics(episodes: readonly Episode[], groups: readonly TrajectoryGroup[]): Metrics {
  const sizes = groups.map((group) => group.trajectories.length);
  const before = episodes.reduce((sum, episode) => sum + episode.trajectories.length, 0);
  return {
    "groups/num_trajs_before_filter": before,
    "groups/num_trajs_after_filter": sizes.reduce((sum, size) => sum + size, 0),
    "groups/num_groups": groups.length,
    "groups/avg_group_size": mean(sizes),
    "groups/max_group_size": sizes.length > 0 ? largest(sizes) : 0,
    "groups/min_group_size": sizes.length > 0 ? smallest(sizes) : 0,
  };
}
