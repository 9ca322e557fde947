/**
 * What a user writes: a rollout (how a task is attempted), a reward or an evaluator (what the attempt was worth), and an
 * environment, which joins data, reward and rollout under a name. Plain functions and objects; see registered.ts for how
 * a name finds them.
 */

import type { ChatClient, FetchFunction } from "../chat/endpoint.ts";
import type { AssistantMessage } from "../chat/reply.ts";
import type { SamplingParams } from "../contract/backend.ts";
import type { ChatMessage, ChatOptions, Tokenizer } from "../contract/text.ts";
import type { Episode, Step, Task, TerminationReason } from "../data/types.ts";
import { ConfigError } from "../errors.ts";

/**
 * The model as a rollout sees it: as a function of tokens or messages, or as OpenAI's API in this process. Every call
 * is recorded as a step, tokens and log-probs as they were sampled. Calls of rollouts that run at the same time are
 * drawn in one batch.
 */
export interface Policy {
  /** The agent whose steps are recorded here: "" for the rollout's own, see {@link Policy.agent}. */
  readonly name: string;
  /** The model's name, for requests. */
  readonly model: string;
  readonly tokenizer: Tokenizer;
  /** How calls are sampled unless they say otherwise. */
  readonly params: SamplingParams;
  readonly isValidation: boolean;
  /** Aborts when the run is stopped or the rollout has taken too long. */
  readonly signal: AbortSignal;
  /** Calls recorded so far, in order of their beginning. */
  readonly steps: readonly Step[];
  /** A client with `chat.completions.create`. Its temperature, top_p and top_k are the run's, whatever a request says. */
  readonly client: ChatClient;
  /** For libraries that take a `fetch`: serves `/v1/chat/completions`, `/v1/completions` and `/v1/models` here. */
  readonly fetch: FetchFunction;
  /** The base URL that goes with {@link Policy.fetch}. */
  readonly baseURL: string;
  /**
   * Continues a prompt. A step's response appended to its own prompt continues the conversation on the same tokens.
   * @throws {Termination} when the prompt is longer than `data.max_prompt_length`.
   */
  complete(prompt: string | readonly number[], params?: Partial<SamplingParams>): Promise<Completion>;
  /**
   * Replies to a conversation, rendered by the model's chat template. Earlier replies keep the tokens they were sampled as.
   * @throws {Termination} as `complete`; {UnsupportedError} when the model has no chat template.
   */
  chat(messages: readonly ChatMessage[], options?: ChatCallOptions): Promise<ChatReply>;
  /** Adds to the last recorded step what came of it. */
  annotate(notes: Partial<Pick<Step, "reward" | "done" | "action" | "observation" | "metadata">>): void;
  /** Another agent on the same model: its calls are a trajectory of that name, compared with others of its name. */
  agent(name: string): Policy;
  /** The steps recorded here as a trajectory. `reward` defaults to the sum of the steps' own. */
  trajectory(reward?: number, more?: Omit<RolloutTrajectory, "name" | "steps" | "reward">): RolloutTrajectory;
}

/** What a call of {@link Policy.chat} may say. */
export interface ChatCallOptions extends Pick<ChatOptions, "tools" | "variables"> {
  readonly params?: Partial<SamplingParams>;
  /** The reply ends where one of these begins. */
  readonly stop?: readonly string[];
}

/** One model call; spread it into a step: `{ ...completion, reward: 1 }`. */
export interface Completion extends Step {
  readonly finish_reason: "stop" | "length";
}

/** A model call's reply as a message, with its reasoning and tool calls apart. */
export interface ChatReply extends Completion {
  readonly message: AssistantMessage;
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
  readonly signals?: Readonly<Record<string, number>> | undefined;
}

/** What a rollout returns; the loop adds ids. */
export interface RolloutResult {
  readonly trajectories: readonly RolloutTrajectory[];
  /** Default: the sum of the trajectories' rewards is above 0. */
  readonly is_correct?: boolean;
  /** Default: `env_done`, or `max_response_length_exceeded` when the last call ran out of tokens. */
  readonly termination_reason?: TerminationReason;
  readonly metrics?: Readonly<Record<string, number>> | undefined;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/**
 * What a rollout came to: the trajectories themselves; or what all that was recorded was worth; or nothing, where a
 * reward or an evaluator shall say.
 */
// biome-ignore lint/suspicious/noConfusingVoidType: a function without a return statement is a rollout too.
export type Outcome = RolloutResult | Judgement | undefined | void;

/** Attempts a task: calls the policy as often as it likes and says what came of it. */
export type Rollout = (task: Task, policy: Policy) => Outcome | Promise<Outcome>;

/** What an answer was worth. */
export interface Evaluation {
  readonly reward: number;
  /** Default: the reward is above 0. */
  readonly is_correct?: boolean;
  /** Averaged over the batch as `batch/<name>`. */
  readonly metrics?: Readonly<Record<string, number>>;
  /** Kept with every trajectory. */
  readonly signals?: Readonly<Record<string, number>>;
}

/** A bare number is a reward. */
export type Judgement = number | Evaluation;

/** Arguments from a configuration: `task.args`, `agent_args`, `workflow_args`. */
export type Args = Readonly<Record<string, unknown>>;

/** Judges a response. `args` is `task.args`. */
export type RewardFunction = (response: string, task: Task, args: Args) => Judgement | Promise<Judgement>;

/** A reward that has its arguments. */
export type Reward = (response: string, task: Task) => Judgement | Promise<Judgement>;

/**
 * Judges a whole episode, after its rollout: its reward goes to the trajectories that have none, its signals to all.
 * `args` is `task.args`.
 */
export type Evaluator = (task: Task, episode: Episode, args: Args) => Judgement | Promise<Judgement>;

/** An evaluator that has its arguments. */
export type Evaluate = (task: Task, episode: Episode) => Judgement | Promise<Judgement>;

/** A prompt with the answer it should get: what the supervised warm-up learns from. */
export interface Example {
  readonly prompt: string | readonly ChatMessage[];
  readonly response: string;
}

/** What came of an action. */
export interface Turn {
  readonly observation: string;
  readonly reward: number;
  readonly done: boolean;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** One task as a game of turns: an observation in, an action out. */
export interface Game {
  /** The first observation, or a whole conversation to begin with. */
  reset(): string | readonly ChatMessage[] | Promise<string | readonly ChatMessage[]>;
  step(action: string): Turn | Promise<Turn>;
}

/** A kind of task, by name. */
export interface Environment {
  readonly name: string;
  readonly describe: string;
  /** Rows that come with it: files of one JSON object a line, beside the module, or `examples/NAME/FILE` of the package. */
  readonly train_files?: string;
  readonly val_files?: string;
  /** Characters that its texts are made of, for a model from scratch. */
  readonly alphabet?: string;
  /** Names of the arguments that it reads; any other is then an error. */
  readonly args?: readonly string[];
  /** Reward used where `task.reward` names none. */
  readonly reward?: RewardFunction;
  /** A game for a task, played by the multi-turn workflow. `args` is `task.args` and `rllm.env.env_args`. */
  play?(task: Task, args: Args): Game;
  /** Default: the game, where there is one; else one call of the model, then the reward. */
  rollout?(reward: Reward, args: Args): Rollout;
  /** Worked answers of a task, for the supervised warm-up. */
  examples?(task: Task, args: Args): readonly Example[];
}

/** The prompt of a task as it was given: a conversation or a text. */
export function promptOf(task: Task): string | readonly ChatMessage[] {
  return task.messages ?? task.instruction;
}

/** One call of the model on the task's prompt. */
export function answer(task: Task, policy: Policy): Promise<Completion> {
  return task.messages ? policy.chat(task.messages) : policy.complete(task.instruction);
}

/** The answer in a call: without reasoning, where the reply was a message. */
export function textOf(step: Step): string {
  return step.chat_completions?.at(-1)?.content ?? step.model_response;
}

/** The rollout of one model call: the task's prompt, the reward judges the response. */
export function singleTurn(name: string, reward: Reward): Rollout {
  return async (task, policy) => {
    const completion = await answer(task, policy);
    const judged = evaluationOf(await reward(textOf(completion), task));
    return {
      trajectories: [
        {
          name,
          steps: [{ ...completion, reward: judged.reward, done: true }],
          reward: judged.reward,
          signals: judged.signals,
        },
      ],
      is_correct: judged.is_correct ?? judged.reward > 0,
      metrics: judged.metrics,
    };
  };
}

/** @throws {ConfigError} for what is no judgement. */
export function evaluationOf(judgement: Judgement): Evaluation {
  if (typeof judgement === "number") return { reward: judgement };
  if (typeof judgement?.reward === "number") return judgement;
  throw new ConfigError(
    `Cannot take a judgement as it must be a number, or an object with a number named reward: ${shown(judgement)}`,
    { kind: "code" },
  );
}

/** @throws {ConfigError} for trajectories that are none. */
export function isResult(outcome: Outcome): outcome is RolloutResult {
  if (typeof outcome !== "object" || outcome === null || !("trajectories" in outcome)) return false;
  const { trajectories } = outcome;
  const wrong = Array.isArray(trajectories)
    ? trajectories.find((each) => !Array.isArray(each?.steps))
    : outcome;
  if (wrong === undefined) return true;
  throw new ConfigError(
    `Cannot take the rollout's trajectories as each must have steps, a list of model calls (policy.trajectory() makes one): ${shown(wrong)}`,
    { kind: "code" },
  );
}

function shown(value: unknown): string {
  return (JSON.stringify(value) ?? String(value)).slice(0, 200);
}
