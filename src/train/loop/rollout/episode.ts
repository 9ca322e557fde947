/** Turns the outcome of a rollout into an episode: ids, rewards, how it ended. */
import type { Episode, Step, TerminationReason, Trajectory } from "../../data/types.ts";
import {
  type Evaluation,
  evaluationOf,
  isResult,
  notesOf,
  type Outcome,
  type RolloutResult,
  type RolloutTrajectory,
  signalsOf,
} from "../../task/rollout.ts";
import type { Attempt } from "./attempts_per_task.ts";

/** The trajectories of an outcome; a judgement applies to all that were recorded. */
export function resultOf(outcome: Outcome, recorded: () => RolloutTrajectory[]): RolloutResult {
  if (isResult(outcome)) return outcome;
  if (outcome === undefined) return { trajectories: recorded().map((each) => ({ ...each, reward: null })) };
  const evaluation = evaluationOf(outcome);
  const { reward, is_correct, metrics } = evaluation;
  const signals = signalsOf(evaluation);
  return {
    trajectories: recorded().map((each) => ({ ...each, reward, signals })),
    is_correct: is_correct ?? reward > 0,
    metrics,
    metadata: notesOf(evaluation),
  };
}

export function toEpisode(attempt: Attempt, result: RolloutResult, shaping: Shaping): Episode {
  const id = episodeId(attempt);
  const termination_reason = result.termination_reason ?? inferReason(result);
  const endings = result.termination_reason ? [] : result.trajectories.map(endingOf);
  const trajectories = result.trajectories.map((trajectory, i) => ({
    ...toTrajectory(trajectory, `${id}/${i}`),
    ...(endings[i] !== undefined && endings[i] !== termination_reason && { termination_reason: endings[i] }),
  }));
  const total = trajectories.reduce((sum, { reward, steps }) => sum + (reward ?? steps.at(-1)?.reward ?? 0), 0);
  return {
    ...placeOf(attempt),
    id,
    trajectories: trajectories.map((each) => ({ ...each, steps: shapeRewards(each.steps, shaping) })),
    termination_reason,
    is_correct: result.is_correct ?? total > 0,
    metrics: result.metrics ?? {},
    metadata: result.metadata ?? {},
  };
}

function placeOf({ task, task_index, rollout_index }: Attempt): Pick<Episode, "task" | "task_index" | "rollout_index"> {
  return { task, task_index, rollout_index };
}

/** The episode of an attempt whose rollout threw. */
export function failedEpisode(attempt: Attempt, error: unknown): Episode {
  return {
    ...placeOf(attempt),
    id: episodeId(attempt),
    trajectories: [],
    termination_reason: "error",
    is_correct: false,
    metrics: {},
    metadata: { error: String(error) },
  };
}

/** Adds an evaluator's judgement: its reward to trajectories that have none, its signals and metrics to all. */
export function judged<T extends Episode | RolloutResult>(attempted: T, evaluation: Evaluation): T {
  const { reward, is_correct, metrics } = evaluation;
  const signals = signalsOf(evaluation);
  return {
    ...attempted,
    trajectories: attempted.trajectories.map((trajectory) => ({
      ...trajectory,
      reward: trajectory.reward ?? reward,
      ...((signals || trajectory.signals) && { signals: { ...signals, ...trajectory.signals } }),
    })),
    is_correct: is_correct ?? reward > 0,
    metrics: { ...attempted.metrics, ...metrics },
    metadata: { ...attempted.metadata, ...notesOf(evaluation) },
  };
}

export function episodeId({ task, rollout_index }: Attempt): string {
  return `${task.id}:${rollout_index}`;
}

/** `rllm.workflow.workflow_args`. */
interface Shaping {
  readonly gamma: number;
  readonly reward_bonus_coeff: number;
}

/**
 * rLLM's reward shaping of a trajectory of several steps: each step gains `reward_bonus_coeff` times its increase over
 * the step before; with `gamma` above 0 each reward is then replaced by its discounted return.
 */
export function shapeRewards(steps: readonly Step[], { gamma, reward_bonus_coeff }: Shaping): readonly Step[] {
  if (steps.length < 2 || (gamma === 0 && reward_bonus_coeff === 0)) return steps;
  const rewards = steps.map(({ reward }, i) =>
    i === 0 ? reward : reward + reward_bonus_coeff * (reward - steps[i - 1]!.reward),
  );
  if (gamma > 0) for (let i = rewards.length - 2; i >= 0; i--) rewards[i]! += gamma * rewards[i + 1]!;
  return steps.map((step, i) => ({ ...step, reward: rewards[i]! }));
}

function toTrajectory(trajectory: RolloutTrajectory, uid: string): Trajectory {
  return { ...trajectory, uid, name: trajectory.name ?? "", reward: trajectory.reward ?? null };
}

const CUT_OFF = "max_response_length_exceeded";

/** An attempt in which the last reply of any role was cut off is truncated. */
function inferReason({ trajectories }: RolloutResult): TerminationReason {
  return trajectories.some((each) => endingOf(each) === CUT_OFF) ? CUT_OFF : "env_done";
}

function endingOf({ steps }: RolloutTrajectory): TerminationReason {
  const last = steps.at(-1) as { finish_reason?: string } | undefined;
  return last?.finish_reason === "length" ? CUT_OFF : "env_done";
}
