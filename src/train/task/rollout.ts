/**
 * Functions that a user writes: a rollout (attempts a task), a reward or an evaluator (judges the attempt), and an
 * environment, which combines data, reward and rollout under a name. Plain functions and objects; registered.ts maps
 * names to them.
 */

import type { ChatClient, ChatEngine, FetchFunction } from "../../chat/endpoint.ts";
import type { AssistantMessage } from "../../chat/reply.ts";
import type { SamplingParams } from "../../engine/contract/backend.ts";
import type { ChatMessage, ChatOptions, Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { NeedsAnswer } from "../data/answer.ts";
import type { Episode, Step, Task, TerminationReason } from "../data/types.ts";

/**
 * The model as a rollout sees it: a function of tokens or messages, or OpenAI's API in this process. Every call is
 * recorded as a step, with tokens and log-probs exactly as sampled. Concurrent rollouts are sampled in one batch.
 */
export interface Policy {
  /** The agent whose steps are recorded here: "" for the rollout itself, see {@link Policy.agent}. */
  readonly name: string;
  /** The model's name, for requests. */
  readonly model: string;
  readonly tokenizer: Tokenizer;
  /** Default sampling parameters of a call. */
  readonly params: SamplingParams;
  readonly isValidation: boolean;
  /** Aborts when the run is stopped or the rollout has taken too long. */
  readonly signal: AbortSignal;
  /** Calls recorded so far, in order of their start. */
  readonly steps: readonly Step[];
  /** A client with `chat.completions.create`. The run's temperature, top_p and top_k override those of a request. */
  readonly client: ChatClient;
  /** A `fetch` for libraries that take one: it serves OpenAI's and Anthropic's APIs, see `createFetch` of grpu/chat. */
  readonly fetch: FetchFunction;
  /** The base URL for {@link Policy.fetch}. */
  readonly baseURL: string;
  /** The engine that {@link Policy.fetch} asks: for a server that answers in the place of this policy. */
  readonly engine: ChatEngine;
  readonly place: AttemptPlace;
  /**
   * Continues a prompt. To continue a conversation on the same tokens, append a step's response to its prompt.
   * @throws {Termination} when the prompt is longer than `data.max_prompt_length`
   */
  complete(prompt: string | readonly number[], params?: Partial<SamplingParams>): Promise<Completion>;
  /**
   * Replies to a conversation, rendered by the model's chat template. Earlier replies keep their sampled tokens.
   * @throws {Termination} as `complete`; {UnsupportedError} when the model has no chat template
   */
  chat(messages: readonly ChatMessage[], options?: ChatCallOptions): Promise<ChatReply>;
  /** Adds the outcome to the last recorded step. */
  annotate(notes: Partial<Pick<Step, "reward" | "done" | "action" | "observation" | "metadata">>): void;
  /** Another agent on the same model: its calls are a trajectory of that name, compared with others of the name. */
  agent(name: string): Policy;
  /** The steps recorded here as a trajectory. `reward` defaults to the sum of the steps' rewards. */
  trajectory(reward?: number, more?: Omit<RolloutTrajectory, "name" | "steps" | "reward">): RolloutTrajectory;
  /**
   * Calls the listener once, when the attempt has ended and is judged. The run waits for it; an error of it fails the
   * attempt, unless that has failed. After the end it is called at once. For recorders.
   */
  onEnd(listener: (end: AttemptEnd) => void | Promise<void>): void;
}

/** How an attempt ended: with what is trained on, after an evaluator and before rewards are shaped; or with an error. */
export type AttemptEnd = { readonly result: RolloutResult } | { readonly error: unknown };

/** Position in a run of the attempt that a policy belongs to. */
export interface AttemptPlace {
  /** The training step; in validation the last one before it. */
  readonly step: number;
  /** Place of the task in its batch: ids may repeat. */
  readonly task_index: number;
  readonly rollout_index: number;
  /** Number of failed tries before this one. */
  readonly trial: number;
  /** Optimiser steps in the weights when the attempt started. */
  readonly weight_version: number;
  /** Marks the greedy attempt that `remax` takes as a baseline, whose `rollout_index` is `rollout.n`. Absent for others. */
  readonly is_greedy?: true;
}

/** Options of {@link Policy.chat}. */
export interface ChatCallOptions extends Pick<ChatOptions, "tools" | "variables"> {
  readonly params?: Partial<SamplingParams>;
  /** The reply ends before the first of these. */
  readonly stop?: readonly string[];
}

/** One model call; spread it into a step: `{ ...completion, reward: 1 }`. */
export interface Completion extends Step {
  readonly finish_reason: "stop" | "length";
}

/** A model call with its reply as a message, which separates reasoning and tool calls. */
export interface ChatReply extends Completion {
  readonly message: AssistantMessage;
}

/** Thrown by a rollout to end its episode for a reason other than an error. */
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

/** The full result of a rollout; the loop adds ids. */
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
 * Result of a rollout: trajectories; or a judgement of everything recorded; or nothing, when a reward or an evaluator
 * judges later.
 */
// biome-ignore lint/suspicious/noConfusingVoidType: a function without a return statement is a rollout too.
export type Outcome = RolloutResult | Judgement | undefined | void;

/** Attempts a task with any number of policy calls. */
export type Rollout = (task: Task, policy: Policy) => Outcome | Promise<Outcome>;

/** A judgement with details. */
export interface Evaluation {
  readonly reward: number;
  /** Default: the reward is above 0. */
  readonly is_correct?: boolean;
  /** Averaged over the batch as `batch/<name>`. */
  readonly metrics?: Readonly<Record<string, number>>;
  /** Kept with every trajectory. */
  readonly signals?: Readonly<Record<string, number>>;
  /** Rewards by name, of which `gdpo` normalises each on its own. Kept among the signals; of one name, the component counts. */
  readonly components?: Readonly<Record<string, number>>;
  /** The answer that was judged: `grpu eval` takes majorities of equal ones ({@link registerReward}). */
  readonly answer?: string;
}

/** A bare number is a reward. */
export type Judgement = number | Evaluation;

/** Arguments from a configuration: `task.args`, `agent_args`, `workflow_args`. */
export type Args = Readonly<Record<string, unknown>>;

/** Judges a response. `args` is `task.args`. */
export interface RewardFunction extends NeedsAnswer {
  (response: string, task: Task, args: Args): Judgement | Promise<Judgement>;
}

/** A reward with its arguments bound. */
export type Reward = (response: string, task: Task) => Judgement | Promise<Judgement>;

/**
 * Judges a whole episode after its rollout. Its reward goes to trajectories without one, its signals to all.
 * `args` is `task.args`.
 */
export interface Evaluator extends NeedsAnswer {
  (task: Task, episode: Episode, args: Args): Judgement | Promise<Judgement>;
}

/** An evaluator with its arguments bound. */
export type Evaluate = (task: Task, episode: Episode) => Judgement | Promise<Judgement>;

/**
 * Example of the supervised warm-up: a prompt with its correct response, or a conversation with correct turns of the
 * assistant.
 */
export type Example = PromptExample | ConversationExample;

export interface PromptExample {
  readonly prompt: string | readonly ChatMessage[];
  readonly response: string;
}

/** Trained on the turns of the assistant alone. */
export interface ConversationExample {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly unknown[] | undefined;
}

/** The outcome of an action. */
export interface Turn {
  readonly observation: string;
  readonly reward: number;
  readonly done: boolean;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** One task as a game: an action for each observation. */
export interface Game {
  /** The first observation, or a whole conversation to start from. */
  reset(): string | readonly ChatMessage[] | Promise<string | readonly ChatMessage[]>;
  step(action: string): Turn | Promise<Turn>;
}

/** A kind of task, by name. `needsAnswer` is that of its game and of a rollout of its own. */
export interface Environment extends NeedsAnswer {
  readonly name: string;
  readonly describe: string;
  /** JSONL files with its rows, relative to the module, or `examples/NAME/FILE` of the package. */
  readonly train_files?: string;
  readonly val_files?: string;
  /** The characters of its texts, for a model from scratch. */
  readonly alphabet?: string;
  /** Names of its arguments; others are then errors. */
  readonly args?: readonly string[];
  /** Default of `task.reward`. */
  readonly reward?: RewardFunction;
  /** A game for a task, played by the multi-turn workflow. `args` is `task.args` and `rllm.env.env_args`. */
  play?(task: Task, args: Args): Game;
  /** Default: the game, if there is one; else one call of the model, then the reward. */
  rollout?(reward: Reward, args: Args): Rollout;
  /** Worked answers of a task, for the supervised warm-up. */
  examples?(task: Task, args: Args): readonly Example[];
}

/** The prompt of a task: a conversation or a text. */
export function promptOf(task: Task): string | readonly ChatMessage[] {
  return task.messages ?? task.instruction;
}

/** One call of the model on the task's prompt. */
export function answer(task: Task, policy: Policy): Promise<Completion> {
  return task.messages ? policy.chat(task.messages) : policy.complete(task.instruction);
}

/** The text of a reply; without reasoning for a chat message. */
export function replyText(step: Step): string {
  return step.chat_completions?.at(-1)?.content ?? step.model_response;
}

/** A rollout of one model call on the task's prompt; the reward judges the response. */
export function singleTurn(name: string, reward: Reward): Rollout {
  return async (task, policy) => {
    const completion = await answer(task, policy);
    const judged = evaluationOf(await reward(replyText(completion), task));
    return {
      trajectories: [
        {
          name,
          steps: [{ ...completion, reward: judged.reward, done: true }],
          reward: judged.reward,
          signals: signalsOf(judged),
        },
      ],
      is_correct: judged.is_correct ?? judged.reward > 0,
      metrics: judged.metrics,
      metadata: notesOf(judged),
    };
  };
}

/** Returns the parts of a judgement that an episode's metadata keep. */
export function notesOf({ answer }: Evaluation): { readonly answer?: string } {
  return answer === undefined ? {} : { answer };
}

/** Returns the parts of a judgement that trajectories keep: its signals, and the components of its reward. */
export function signalsOf({
  signals,
  components,
}: Pick<Evaluation, "signals" | "components">): Readonly<Record<string, number>> | undefined {
  return components ? { ...signals, ...components } : signals;
}

/** @throws {ConfigError} for a value that is neither a number nor an {@link Evaluation}, and for a field of another type */
export function evaluationOf(judgement: Judgement): Evaluation {
  if (typeof judgement === "number") return { reward: judgement };
  if (typeof judgement?.reward !== "number")
    throw unusable("a judgement", {
      is: `it must be a number, or an object with a number named reward (${shown(judgement)})`,
      advice: "Correct the reward function.",
    });
  checkNotes("a judgement", judgement);
  checkComponents(judgement.components);
  return judgement;
}

function checkComponents(components: unknown): void {
  if (components === undefined) return;
  const isTable = typeof components === "object" && components !== null && !Array.isArray(components);
  if (isTable && Object.values(components).every(Number.isFinite)) return;
  throw unusable("a judgement", {
    is: `its components must be finite numbers by name (${shownNumbers(components)})`,
    advice: "Correct the reward function.",
  });
}

/** @throws {ConfigError} for trajectories without a list of steps, and for a field of another type */
export function isResult(outcome: Outcome): outcome is RolloutResult {
  if (typeof outcome !== "object" || outcome === null || !("trajectories" in outcome)) return false;
  const { trajectories } = outcome;
  const wrong = Array.isArray(trajectories) ? trajectories.find((each) => !Array.isArray(each?.steps)) : outcome;
  if (wrong !== undefined)
    throw unusable("the rollout's trajectories", {
      is: `each needs a list of steps (${shown(wrong)})`,
      advice: "Make them with policy.trajectory().",
    });
  checkNotes("the rollout's result", outcome);
  for (const { signals } of trajectories) checkFigures("the rollout's result", "signals", signals);
  return true;
}

/** Checks what user code returns besides a reward, because a text would count as true, and a metric that is no number as 0. */
function checkNotes(
  what: string,
  notes: Partial<Record<"is_correct" | "metrics" | "signals" | "answer", unknown>>,
): void {
  const { is_correct, metrics, signals, answer } = notes;
  if (is_correct != null && typeof is_correct !== "boolean")
    throw unusable(what, { is: `is_correct must be true or false (${shown(is_correct)})` });
  if (answer != null && typeof answer !== "string")
    throw unusable(what, { is: `answer must be a text (${shown(answer)})` });
  checkFigures(what, "metrics", metrics);
  checkFigures(what, "signals", signals);
}

/** NaN and infinities are numbers of a metric that was measured. */
function checkFigures(what: string, name: string, figures: unknown): void {
  if (figures == null) return;
  if (typeof figures !== "object" || Array.isArray(figures))
    throw unusable(what, { is: `${name} must be an object of numbers (${shown(figures)})` });
  for (const [key, value] of Object.entries(figures))
    if (typeof value !== "number") throw unusable(what, { is: `${name}.${key} must be a number (${shown(value)})` });
}

function unusable(what: string, problem: { is: string; advice?: string }): ConfigError {
  const { is, advice = "Correct the function that returns it." } = problem;
  return new ConfigError(`Cannot use ${what}: ${is}. ${advice}`, { kind: "code" });
}

/** NaN and Infinity as they are, which JSON has not. */
function shownNumbers(value: unknown): string {
  return shown(
    JSON.parse(JSON.stringify(value, (_, each) => (typeof each === "number" ? String(each) : each)) ?? "null"),
  );
}

function shown(value: unknown): string {
  return (stringifyJson(value) ?? String(value)).slice(0, 200);
}
