/** A recorded attempt as the episode that its rollout left, by the rules of a rollout that returns a judgement. */
import { type Episode, type Task, TERMINATION_REASONS, type TerminationReason } from "../../data/types.ts";
import type { RolloutResult } from "../../task/rollout.ts";
import type { RecordedAttempt } from "../../trace/attempts.ts";
import { toEpisode } from "../rollout/episode.ts";
import type { LoopSettings } from "../settings.ts";

/** Position of the episode in its batch. */
export interface RecordedPlace {
  readonly task: Task;
  readonly task_index: number;
  readonly rollout_index: number;
  /** `rllm.workflow.workflow_args`. */
  readonly shaping: LoopSettings["workflow"]["workflow_args"];
}

/** The episode of an attempt; its uids and metadata name the session. */
export function recordedEpisode(
  { session_id, trajectories, outcome }: RecordedAttempt,
  { shaping, ...attempt }: RecordedPlace,
): Episode {
  const { signals, metrics } = outcome ?? {};
  const reason = reasonOf(outcome?.termination_reason);
  const result: RolloutResult = {
    trajectories: trajectories.map((each) => ({
      ...each,
      // Those of the session came later, from a file.
      ...((each.signals || signals) && { signals: { ...each.signals, ...signals } }),
    })),
    metrics,
    metadata: { session_id },
    ...(reason && { termination_reason: reason }),
    ...correctness(outcome),
  };
  const episode = toEpisode(attempt, result, shaping);
  return {
    ...episode,
    trajectories: episode.trajectories.map((each, i) => ({ ...each, uid: `${session_id}/${i}` })),
  };
}

/** Returns correctness as for a rollout's judgement: a reward above 0 is correct, unless the outcome says otherwise. */
function correctness(outcome: RecordedAttempt["outcome"]): Pick<RolloutResult, "is_correct"> {
  const { is_correct, reward, trajectory_rewards } = outcome ?? {};
  if (is_correct !== undefined) return { is_correct };
  return typeof reward === "number" && !trajectory_rewards ? { is_correct: reward > 0 } : {};
}

function reasonOf(text: string | undefined): TerminationReason | undefined {
  if (text === undefined) return undefined;
  return TERMINATION_REASONS.find((reason) => reason === text) ?? "unknown";
}
