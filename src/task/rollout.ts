/**
 * What a user writes: a rollout (how a task is attempted), a reward (what the answer was worth), and an environment,
 * which joins the two under a name. Plain functions and objects; see registry.ts for how a name finds them.
 */
import type { SamplingParams, Tokenizer } from "../backend.ts";
import type { Step, Task, TerminationReason } from "../data/types.ts";

/** The model as a rollout sees it. Calls of rollouts that run at the same time are drawn in one batch. */
export interface Policy {
  readonly tokenizer: Tokenizer;
  readonly isValidation: boolean;
  /** Aborts when the run is stopped or the rollout has taken too long. */
  readonly signal: AbortSignal;
  /**
   * Continues a prompt. A step's response appended to its own prompt continues the conversation on the same tokens.
   * @throws {Termination} when the prompt is longer than `data.max_prompt_length`.
   */
  complete(prompt: string | readonly number[], params?: Partial<SamplingParams>): Promise<Completion>;
}

/** One model call; spread it into a step: `{ ...completion, reward: 1 }`. */
export interface Completion extends Step {
  readonly finish_reason: "stop" | "length";
}

/** Thrown by a rollout to end its episode for a reason that is no error. */
export class Termination extends Error {
  override readonly name = "Termination";
  readonly reason: TerminationReason;
  constructor(reason: TerminationReason) {
    super(`The episode ended: ${reason}`);
    this.reason = reason;
  }
}

/** One agent's part of an attempt. */
export interface RolloutTrajectory {
  /** Default: `default_traj_name`, which becomes `default_traj_name_0`, ... */
  readonly name?: string;
  readonly steps: readonly Step[];
  /** Default: the reward of the last step. */
  readonly reward?: number | null;
  readonly signals?: Readonly<Record<string, number>>;
}

/** What a rollout returns; the loop adds ids. */
export interface RolloutResult {
  readonly trajectories: readonly RolloutTrajectory[];
  /** Default: the sum of the trajectories' rewards is above 0. */
  readonly is_correct?: boolean;
  /** Default: `env_done`, or `max_response_length_exceeded` when the last call ran out of tokens. */
  readonly termination_reason?: TerminationReason;
  readonly metrics?: Readonly<Record<string, number>>;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** Attempts a task: calls the policy as often as it likes and says what came of it. */
export type Rollout = (task: Task, policy: Policy) => Promise<RolloutResult>;

/** What an answer was worth. A bare number is a reward, correct when above 0. */
export interface Evaluation {
  readonly reward: number;
  readonly is_correct?: boolean;
  readonly metrics?: Readonly<Record<string, number>>;
}

export type RewardFunction = (
  response: string,
  task: Task,
) => number | Evaluation | Promise<number | Evaluation>;

/** A prompt with the answer it should get: what the supervised warm-up learns from. */
export interface Example {
  readonly prompt: string;
  readonly response: string;
}

/** A kind of task, by name. */
export interface Environment {
  readonly name: string;
  readonly describe: string;
  /** Rows that come with it: files of one JSON object a line, beside the module or in `config/data`. */
  readonly train_files?: string;
  readonly val_files?: string;
  /** Characters that its texts are made of, for a model from scratch. */
  readonly alphabet?: string;
  /** Reward used where `task.reward` names none. */
  readonly reward?: RewardFunction;
  /** Default: one call of the model, then the reward. */
  rollout?(reward: RewardFunction): Rollout;
  /** Worked answers of a task, for the supervised warm-up. */
  examples?(task: Task): readonly Example[];
}

/** The rollout of one model call: the instruction is the prompt, the reward judges the response. */
export function singleTurn(name: string, reward: RewardFunction): Rollout {
  return async (task, policy) => {
    const completion = await policy.complete(task.instruction);
    const evaluation = await reward(completion.model_response, task);
    const judged = typeof evaluation === "number" ? { reward: evaluation } : evaluation;
    return {
      trajectories: [
        { name, steps: [{ ...completion, reward: judged.reward, done: true }], reward: judged.reward },
      ],
      is_correct: judged.is_correct ?? judged.reward > 0,
      metrics: judged.metrics,
    };
  };
}

export function rolloutOf(environment: Environment, reward: RewardFunction): Rollout {
  return environment.rollout?.(reward) ?? singleTurn(environment.name, reward);
}
