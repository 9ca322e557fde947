/** Stage 3, reject: which groups train now, and which wait for a batch that teaches more. */
import type { Metrics } from "../backend.ts";
import type { Episode, TrajectoryGroup } from "../data/types.ts";
import type { LoopSettings } from "./settings.ts";
import type { StageContext, Staged } from "./stages.ts";
import { groupBy, standardDeviation } from "./statistics.ts";

export interface Candidates {
  readonly episodes: readonly Episode[];
  readonly groups: readonly TrajectoryGroup[];
  /** Groups that an earlier step held back. */
  readonly held: Held;
}

/** What has gathered over steps in mode `episode`: part of a checkpoint. */
export interface Held {
  readonly groups: readonly TrajectoryGroup[];
  /** Tasks that some, but not all, attempts solved. */
  readonly solvePartial: number;
}

export interface Accepted {
  readonly groups: readonly TrajectoryGroup[];
  readonly held: Held;
}

export const NOTHING_HELD: Held = { groups: [], solvePartial: 0 };

/** A spread of rewards or advantages below this is none. */
const UNIFORM_BELOW = 1e-8;

/**
 * Drops groups that are too small (every mode) or whose rewards are all equal (`filter_uniform_groups`). Mode
 * `episode` then holds groups back until `min_partial_solve_tasks` tasks were partly solved; mode `group` drops
 * uniform groups one by one.
 */
export function reject(
  { episodes, groups, held }: Candidates,
  { settings: { rejection_sample } }: StageContext,
): Staged<Accepted> {
  const mode = rejection_sample.mode ?? (rejection_sample.enable ? "episode" : "none");
  const large = groups.filter((group) => group.trajectories.length >= rejection_sample.min_trajs_per_group);
  const dropsUniform = mode === "group" || rejection_sample.filter_uniform_groups;
  const kept = dropsUniform ? large.filter((group) => !isUniform(group)) : large;
  const solved = countSolved(episodes);
  const metrics = {
    ...solveMetrics(solved),
    "batch/groups_before_filter": groups.length,
    "batch/groups_after_filter": kept.length,
    "batch/groups_dropped_insufficient_trajs": groups.length - large.length,
    ...(dropsUniform && { "batch/groups_dropped_uniform": large.length - kept.length }),
  };
  if (mode !== "episode") return { value: { groups: kept, held: NOTHING_HELD }, metrics };
  const gathered = {
    groups: [...held.groups, ...kept],
    solvePartial: held.solvePartial + solved.partial,
  };
  return {
    value: release(gathered, rejection_sample),
    metrics: { ...metrics, "batch/groups_held": gathered.groups.length },
  };
}

function release(gathered: Held, options: LoopSettings["rejection_sample"]): Accepted {
  const isEnough = gathered.solvePartial >= options.min_partial_solve_tasks;
  return isEnough ? { groups: gathered.groups, held: NOTHING_HELD } : { groups: [], held: gathered };
}

function isUniform(group: TrajectoryGroup): boolean {
  return standardDeviation(group.trajectories.map(({ reward }) => reward)) < UNIFORM_BELOW;
}

interface Solved {
  readonly none: number;
  readonly partial: number;
  readonly all: number;
}

/** Tasks by how many of their attempts solved them; attempts without a trajectory do not count. */
function countSolved(episodes: readonly Episode[]): Solved {
  const attempts = episodes.filter((episode) => episode.trajectories.length > 0);
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

function solveMetrics({ none, partial, all }: Solved): Metrics {
  const tasks = Math.max(none + partial + all, 1);
  return {
    "batch/num_tasks": tasks,
    "batch/solve_none": none / tasks,
    "batch/solve_partial": partial / tasks,
    "batch/solve_all": all / tasks,
  };
}
