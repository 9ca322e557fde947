/** Runs that need a greedy baseline, and the groups that have none. */
import type { TrajectoryGroup } from "../../data/types.ts";
import { isTeacherOnly } from "../distill/choices.ts";
import { algorithmOf } from "../roles.ts";
import type { LoopSettings } from "../settings.ts";

type Chosen = Pick<LoopSettings, "algorithm" | "distillation">;

/** Whether a role's advantages are measured from the reward of a greedy attempt. */
function needsBaseline(role: string, { algorithm }: Pick<LoopSettings, "algorithm">): boolean {
  return algorithmOf(role, algorithm).estimator === "remax";
}

/** Whether each training task is also attempted greedily. Not where the teacher's advantages are the only ones. */
export function playsGreedy(settings: Chosen): boolean {
  const roles = ["", ...Object.keys(settings.algorithm.traj_group_adv_estimator_map)];
  return !isTeacherOnly(settings) && roles.some((role) => needsBaseline(role, settings));
}

/** False for a group that lacks a baseline which its estimator needs: the greedy attempt failed or did not play its role. */
export function hasBaselines({ group_role, trajectories }: TrajectoryGroup, settings: Chosen): boolean {
  if (isTeacherOnly(settings) || !needsBaseline(group_role, settings)) return true;
  return trajectories.every(({ reward_baseline }) => reward_baseline !== undefined);
}
