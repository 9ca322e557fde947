/**
 * Results of a rollout, under rLLM's field names: a task is attempted in an episode, an episode holds one trajectory
 * per agent, a trajectory holds the model calls (steps), and a group holds the trajectories that are compared with each
 * other.
 */
import type { ChatMessage } from "../../engine/contract/text.ts";
import type { PromptOrigin } from "../../engine/contract/trace.ts";

/** Reasons why an episode ends: rLLM's seven. */
export const TERMINATION_REASONS = [
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "env_done",
  "max_turns_exceeded",
  "timeout",
  "unknown",
  "error",
] as const;

/** One of {@link TERMINATION_REASONS}. */
export type TerminationReason = (typeof TERMINATION_REASONS)[number];

/** One problem to solve. */
export interface Task {
  /** Names the task in logs and errors. Rows that share an id are separate tasks. */
  readonly id: string;
  /** The prompt as text; the last user message of a conversation. */
  readonly instruction: string;
  /** The prompt as a conversation, for the model's chat template. */
  readonly messages?: readonly ChatMessage[];
  /** The whole row: the answer, the source, and everything else that the evaluator needs. */
  readonly metadata: Readonly<Record<string, unknown>>;
}

/** One call of the model: prompt, response and reward. */
export interface Step {
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** Log-prob of each response token at sampling time. */
  readonly logprobs: readonly number[];
  readonly prompt?: string;
  /** The conversation that was rendered, and the reply. */
  readonly chat_completions?: readonly ChatMessage[];
  readonly model_response: string;
  /** The agent's action for the response. */
  readonly action?: unknown;
  readonly observation?: unknown;
  readonly reward: number;
  readonly done: boolean;
  /**
   * Advantage from the workflow instead of an estimator: one for the step, or one per response token, each finite.
   * Absent or null: none; 0 is an advantage. Used only with `use_precomputed_advantage`.
   */
  readonly advantage?: number | readonly number[] | null | undefined;
  /** Optimiser steps in the weights that sampled it. */
  readonly weight_version?: number;
  /** Identifies the call; its trace has the same id. */
  readonly id?: string;
  /** The call whose prompt and response this prompt starts with. */
  readonly parent?: string;
  readonly prompt_origin?: PromptOrigin;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** One agent's run through an episode. */
export interface Trajectory {
  /** Unique in the run; errors name the trajectory by it. */
  readonly uid: string;
  /** The agent's name: the role under which rewards and advantages are reported. */
  readonly name: string;
  readonly steps: readonly Step[];
  /** Null: the reward of the last step. */
  readonly reward: number | null;
  /** Reward of the greedy attempt at the same task in this role: the baseline of `remax`. Absent: none was played. */
  readonly reward_baseline?: number;
  readonly signals?: Readonly<Record<string, number>> | undefined;
  readonly metadata?: Readonly<Record<string, unknown>>;
  /** How it ended, where its episode ended otherwise: the reply of another role was cut off. */
  readonly termination_reason?: TerminationReason;
}

/** Whether two answers, as a reward returns them, are one. */
export type EqualAnswers = (answer: string, other: string) => boolean;

/** One attempt at a task. */
export interface Episode {
  /** `<task id>:<rollout index>`, for people; programs read the two fields. */
  readonly id: string;
  readonly task: Task;
  /** Place of the task in the batch. Attempts are grouped by it, because ids may repeat. */
  readonly task_index: number;
  readonly rollout_index: number;
  readonly termination_reason: TerminationReason;
  readonly is_correct: boolean;
  readonly trajectories: readonly Trajectory[];
  /** Averaged over the batch as `batch/<name>`. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly metadata: Readonly<Record<string, unknown>>;
}

/** Trajectories of one role on one task: an estimator's baseline. */
export interface TrajectoryGroup {
  /** `<task id>:<role>`. */
  readonly group_id: string;
  readonly task_id: string;
  readonly group_role: string;
  readonly trajectories: readonly RewardedTrajectory[];
  /** One per trajectory. */
  readonly metadata: readonly GroupMember[];
}

/** A trajectory with a finite reward. */
export interface RewardedTrajectory extends Trajectory {
  readonly reward: number;
}

/** Facts about a trajectory's episode that its group keeps, with how the trajectory ended. */
export interface GroupMember {
  readonly task_id: string;
  readonly rollout_index: number;
  readonly termination_reason: TerminationReason;
  readonly is_correct: boolean;
}
