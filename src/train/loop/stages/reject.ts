/** Stage 3, reject: chooses the groups that train now, and those that wait for a later step. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { populationDeviation } from "../../../leaves/statistics.ts";
import type { Episode, TrajectoryGroup } from "../../data/types.ts";
import type { Accepted, Candidates, RejectionFunction, StageContext, Staged } from "../contract.ts";
import { groupBy } from "../group_by.ts";
import type { LoopSettings } from "../settings.ts";
import { NOTHING_HELD } from "../state.ts";
import { hasBaselines, playsGreedy } from "./greedy.ts";
import { rejections } from "./hooks.ts";
import { filterStaleHeld } from "./staleness.ts";

/** Rewards with a deviation below this count as equal. */
const UNIFORM_BELOW = 1e-8;

/** rLLM's modes. `episode` holds groups back until `min_partial_solve_tasks` tasks are partly solved. */
const MODES: Readonly<Record<string, RejectionFunction>> = {
  none: ({ groups }) => groups,
  group: ({ groups }) => groups.filter((group) => !isUniform(group)),
  episode: ({ groups, held, solvePartial }, { rejection_sample }) => {
    const gathered = {
      groups: [...held.groups, ...groups],
      solvePartial: held.solvePartial + solvePartial,
    };
    const isEnough = gathered.solvePartial >= rejection_sample.min_partial_solve_tasks;
    return isEnough ? gathered.groups : { groups: [], held: gathered };
  },
};

export const REJECTION_MODES: readonly string[] = Object.keys(MODES);

/**
 * Drops groups without the greedy baseline that their estimator needs, groups that are too small (in every mode), and
 * those whose rewards are all equal (`filter_uniform_groups`). Then the
 * run's rejection function chooses, or the mode: one of rLLM's, or a registered one (see hooks.ts).
 */
export async function reject(candidates: Candidates, context: StageContext): Promise<Staged<Accepted>> {
  const { episodes, groups } = candidates;
  const { rejection_sample: options } = context.settings;
  const isLarge = (group: TrajectoryGroup) => group.trajectories.length >= options.min_trajs_per_group;
  const isVaried = (group: TrajectoryGroup) => !options.filter_uniform_groups || !isUniform(group);
  const isWhole = (group: TrajectoryGroup) => isLarge(group) && isVaried(group);
  const { value: held, metrics: aged } = filterStaleHeld(candidates.held, { weights: context, isWhole });
  const mode = options.mode ?? (options.enable ? "episode" : "none");
  const choose = context.rejection ?? MODES[mode] ?? rejections.find(mode);
  const judged = groups.filter((group) => hasBaselines(group, context.settings));
  const large = judged.filter(isLarge);
  if (large.length === 0 && judged.length > 0) context.warn?.(nothingLeft(judged, options));
  const varied = large.filter(isVaried);
  const solved = countSolved(episodes, { dropped: groups.filter((group) => !large.includes(group)) });
  const input = { episodes, groups: varied, held, solvePartial: solved.partial };
  const choice = await choose(input, context.settings);
  const value = "groups" in choice ? choice : { groups: choice, held: NOTHING_HELD };
  const kept = new Set([...value.groups, ...value.held.groups]);
  const rejected = varied.filter((group) => !kept.has(group)).length;
  const metrics = {
    ...solveMetrics(solved),
    ...aged,
    "batch/groups_before_filter": groups.length,
    "batch/groups_after_filter": varied.length - rejected,
    ...(playsGreedy(context.settings) && { "batch/groups_dropped_no_baseline": groups.length - judged.length }),
    "batch/groups_dropped_insufficient_trajs": judged.length - large.length,
    "batch/groups_dropped_uniform": large.length - varied.length,
    "batch/groups_rejected": rejected,
    "batch/groups_held": value.held.groups.length,
  };
  return { value, metrics };
}

function nothingLeft(groups: readonly TrajectoryGroup[], options: LoopSettings["rejection_sample"]): string {
  const most = groups.reduce((size, group) => Math.max(size, group.trajectories.length), 0);
  return (
    `A step trained nothing: rllm.rejection_sample.min_trajs_per_group=${options.min_trajs_per_group} drops every group, ` +
    `and the largest has ${most} trajectories. Raise rllm.rollout.n, or lower min_trajs_per_group.`
  );
}

function isUniform(group: TrajectoryGroup): boolean {
  return populationDeviation(group.trajectories.map(({ reward }) => reward)) < UNIFORM_BELOW;
}

interface Solved {
  readonly none: number;
  readonly partial: number;
  readonly all: number;
}

/**
 * Counts tasks by how many of their attempts solved them. As in rLLM, an attempt counts if it has a trajectory outside
 * the groups that are too small.
 */
function countSolved(episodes: readonly Episode[], { dropped }: { dropped: readonly TrajectoryGroup[] }): Solved {
  const gone = new Set(dropped.flatMap((group) => group.trajectories.map(({ uid }) => uid)));
  const attempts = episodes.filter(({ trajectories }) => trajectories.some(({ uid }) => !gone.has(uid)));
  const byTask = groupBy(attempts, (episode) => episode.task_index);
  const outcomes = Array.from(byTask.values(), (tries) =>
    tries.every(isCorrect) ? "all" : tries.some(isCorrect) ? "partial" : "none",
  );
  const count = (outcome: string) => outcomes.filter((each) => each === outcome).length;
  return { none: count("none"), partial: count("partial"), all: count("all") };
}

function isCorrect(episode: Episode): boolean {
  return episode.is_correct;
}

function solveMetrics({ none, partial, all: solved }: Solved): Metrics {
  const tasks = Math.max(none + partial + solved, 1);
  return {
    "batch/num_tasks": tasks,
    "batch/solve_none": none / tasks,
    "batch/solve_partial": partial / tasks,
    "batch/solve_all": solved / tasks,
  };
}
