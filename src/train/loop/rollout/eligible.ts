/** Chooses the trajectories of an episode that may join a group, and under which role. */
import type { Episode, Trajectory } from "../../data/types.ts";
import type { LoopSettings } from "../settings.ts";

/** The episode with its unnamed trajectories named by their index, or without them (`rllm.transform`). */
export function named(episode: Episode, { transform }: Pick<LoopSettings, "transform">): Episode {
  const { impute_missing_names, default_traj_name, drop_unnamed_traj } = transform;
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

/** Whether compact filtering masks an episode. */
export function isMasked(
  { termination_reason }: Episode,
  { compact_filtering }: Pick<LoopSettings, "compact_filtering">,
): boolean {
  return compact_filtering.enable && compact_filtering[`mask_${termination_reason}`];
}
