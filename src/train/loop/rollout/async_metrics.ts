/** Metrics of asynchronous training: how old the groups of a step are, and how long the trainer waited. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { largest, mean, smallest } from "../../../leaves/statistics.ts";
import type { EpisodeGroup, GroupBuffer } from "./group_buffer.ts";
import type { SyncWindow } from "./sync_window.ts";

/** Age of the groups that a step takes, in synchronisations. */
export function stalenessMetrics(groups: readonly EpisodeGroup[], now: number): Metrics {
  const ages = groups.map(({ version }) => now - version);
  return {
    "async/staleness_mean": mean(ages),
    "async/staleness_min": smallest(ages),
    "async/staleness_max": largest(ages),
    "async/groups_consumed": groups.length,
  };
}

export function windowMetrics(window: SyncWindow): Metrics {
  return {
    "async/dispatched_since_sync": window.used - window.inFlight,
    "async/quota_used": window.used,
    "async/in_flight_groups": window.inFlight,
    "async/steps_since_sync": window.stepsSinceSync,
    "async/max_rollout_quota": window.quota,
    "async/total_syncs": window.version,
  };
}

export function bufferMetrics(buffer: GroupBuffer): Metrics {
  return {
    "async/buffer_qsize": buffer.finished,
    "async/buffer_pending": buffer.unfinished,
    "async/buffer_consumed": buffer.consumed,
  };
}

/** The share of a step that waited for episodes. */
export function idleRatio(metrics: Metrics): Metrics {
  const [waited, step] = [metrics["time/buffer_wait"], metrics["time/step"]];
  return waited === undefined || !step ? {} : { "async/trainer_idle_ratio": waited / step };
}

/** How many groups of a step the filters dropped. */
export function droppedGroups(metrics: Metrics): number {
  const [before, after] = [metrics["batch/groups_before_filter"], metrics["batch/groups_after_filter"]];
  return before === undefined || after === undefined ? 0 : before - after;
}
