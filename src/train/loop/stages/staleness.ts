/**
 * Replies of old weights: `training.max_off_policy_threshold` is the most optimiser steps between the weights that sampled a
 * token and those that its training step begins with. The mini-batches of one step do not count: the loss bounds their drift
 * by the ratio to the old log-probs. Replies without a weight version count as older.
 * @see verl's `max_off_policy_threshold` and `max_off_policy_strategy`, which its sampler applies to whole batches too
 */
import type { Metrics } from "../../../engine/contract/backend.ts";
import type { PackedRows } from "../../data/pack.ts";
import type { Episode, Trajectory, TrajectoryGroup } from "../../data/types.ts";
import type { Held, StageContext, Staged } from "../contract.ts";
import { groupBy } from "../group_by.ts";

type Weights = Pick<StageContext, "settings" | "backend">;

/** Whether a reply of these weights is too old to train on now. Nothing is without a threshold. */
export function isStale(version: number | undefined, { settings, backend }: Weights): boolean {
  const threshold = settings.training.max_off_policy_threshold;
  return threshold !== null && (version === undefined || backend.weightVersion - version > threshold);
}

/** Removes trajectories with a stale reply with the strategy `drop`; they then count for no baseline. Not in validation. */
export function filterStale(episodes: readonly Episode[], context: StageContext): Staged<readonly Episode[]> {
  if (!dropsStale(context) || context.isValidation) return { value: episodes, metrics: {} };
  let dropped = 0;
  const value = episodes.map((each) => {
    const trajectories = each.trajectories.filter((trajectory) => isFresh(trajectory, context));
    dropped += each.trajectories.length - trajectories.length;
    return { ...each, trajectories };
  });
  return { value, metrics: { "batch/dropped_stale_trajectories": dropped } };
}

function dropsStale({ settings: { training } }: Weights): boolean {
  return training.max_off_policy_threshold !== null && training.max_off_policy_strategy === "drop";
}

function isFresh({ steps }: Trajectory, weights: Weights): boolean {
  return !steps.some(({ weight_version }) => isStale(weight_version, weights));
}

/**
 * The same for groups that an earlier step held back, which age while they wait. `isWhole` says whether what is left of a
 * group may still train. Tasks whose groups are all gone no longer count as partly solved.
 */
export function filterStaleHeld(
  held: Held,
  { weights, isWhole }: { weights: Weights; isWhole: (group: TrajectoryGroup) => boolean },
): Staged<Held> {
  if (!dropsStale(weights)) return { value: held, metrics: {} };
  const kept: { readonly before: TrajectoryGroup; readonly after: TrajectoryGroup }[] = [];
  for (const before of held.groups) {
    const after = freshPart(before, weights);
    if (after === before || isWhole(after)) kept.push({ before, after });
  }
  const groups = kept.map(({ after }) => after);
  const gone = partlySolved(held.groups) - partlySolved(kept.map(({ before }) => before));
  const value = { groups, solvePartial: Math.max(0, held.solvePartial - gone) };
  return { value, metrics: { "batch/dropped_stale_held_trajectories": sizeOf(held.groups) - sizeOf(groups) } };
}

function freshPart(group: TrajectoryGroup, weights: Weights): TrajectoryGroup {
  const fresh = group.trajectories.map((trajectory) => isFresh(trajectory, weights));
  if (!fresh.includes(false)) return group;
  const isKept = (_: unknown, i: number) => fresh[i]!;
  return { ...group, trajectories: group.trajectories.filter(isKept), metadata: group.metadata.filter(isKept) };
}

function sizeOf(groups: readonly TrajectoryGroup[]): number {
  return groups.reduce((sum, { trajectories }) => sum + trajectories.length, 0);
}

/** Tasks that some, but not all, attempts solved. A task that came up again counts again; its roles count once. */
function partlySolved(groups: readonly TrajectoryGroup[]): number {
  const isPartly = ({ metadata }: TrajectoryGroup) =>
    metadata.some(({ is_correct }) => is_correct) && !metadata.every(({ is_correct }) => is_correct);
  const byTask = groupBy(groups.filter(isPartly), ({ task_id }) => task_id);
  const counts = Array.from(byTask.values(), (members) =>
    Array.from(groupBy(members, ({ group_role }) => group_role).values(), (role) => role.length),
  );
  return counts.reduce((sum, roles) => sum + Math.max(...roles), 0);
}

/** Removes stale replies from the loss, not from the baseline. Changes the rows' mask. */
export function maskStale(rows: PackedRows, context: Weights): Metrics {
  if (context.settings.training.max_off_policy_threshold === null) return {};
  const { mask, offsets, stepOfToken, trajectories, trajectoryOfRow } = rows;
  let masked = 0;
  trajectoryOfRow.forEach((trajectory, row) => {
    const { steps } = trajectories[trajectory]!;
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
      if (mask[t] === 0 || !isStale(steps[stepOfToken[t]!]!.weight_version, context)) continue;
      mask[t] = 0;
      masked++;
    }
  });
  return { "batch/masked_stale_tokens": masked };
}
