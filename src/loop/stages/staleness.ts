/**
 * Replies of old weights: `training.max_off_policy_threshold` is the most optimiser steps between the weights that sampled a
 * token and those that train on it. Replies without a weight version count as older.
 * @see verl's `max_off_policy_threshold` and `max_off_policy_strategy`
 */
import type { Metrics } from "../../contract/backend.ts";
import type { PackedRows } from "../../data/pack.ts";
import type { Episode, Trajectory } from "../../data/types.ts";
import type { StageContext, Staged } from "../contract.ts";

type Weights = Pick<StageContext, "settings" | "backend">;

/** Whether a reply of these weights is too old to train on now. Nothing is without a threshold. */
export function isStale(version: number | undefined, { settings, backend }: Weights): boolean {
  const threshold = settings.training.max_off_policy_threshold;
  return threshold !== null && (version === undefined || backend.weightVersion - version > threshold);
}

/** With the strategy `drop`: removes trajectories with a stale reply, which then count for no baseline. Not in validation. */
export function filterStale(episodes: readonly Episode[], context: StageContext): Staged<readonly Episode[]> {
  const { max_off_policy_threshold, max_off_policy_strategy } = context.settings.training;
  if (max_off_policy_threshold === null || max_off_policy_strategy !== "drop" || context.isValidation)
    return { value: episodes, metrics: {} };
  let dropped = 0;
  const isFresh = ({ steps }: Trajectory) => {
    const fresh = !steps.some(({ weight_version }) => isStale(weight_version, context));
    if (!fresh) dropped++;
    return fresh;
  };
  const value = episodes.map((each) => ({ ...each, trajectories: each.trajectories.filter(isFresh) }));
  return { value, metrics: { "batch/dropped_stale_trajectories": dropped } };
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
