/** The policy of a rollout: the model as a function or as OpenAI's API. Records every call as a step. */
import { Conversation, type PlannedCall, type PlannedDraw, type Reply } from "../../../chat/conversation.ts";
import { type ChatClient, type ChatEngine, type FetchFunction, LOCAL_BASE_URL } from "../../../chat/endpoint.ts";
import type { Backend, SamplingParams } from "../../../engine/contract/backend.ts";
import type { ChatMessage, Tokenizer } from "../../../engine/contract/text.ts";
import { UnsupportedError } from "../../../leaves/errors.ts";
import { STREAM_SEEDS } from "../../../leaves/random.ts";
import type { TerminationReason } from "../../data/types.ts";
import {
  type AttemptEnd,
  type AttemptPlace,
  type ChatCallOptions,
  type ChatReply,
  type Completion,
  type Policy,
  type RolloutTrajectory,
  Termination,
} from "../../task/rollout.ts";
import { type ApiContext, apiOf, type CallableAgent, type CallOptions } from "./agent_api.ts";
import type { Draws } from "./draw_queue.ts";

/** Parts of the sampling backend that an attempt reads. */
export type SampledModel = Pick<Backend, "name" | "model" | "tokenizer" | "weightVersion" | "isConstrainable">;

export interface PolicyOptions {
  readonly draws: Draws;
  readonly backend: SampledModel;
  readonly params: SamplingParams;
  readonly maxPromptLength: number;
  readonly isValidation: boolean;
  readonly signal: AbortSignal;
  /** Seed of this attempt; each call derives its own from it. */
  readonly seed: number;
  readonly rank: number;
  readonly place: AttemptPlace;
  /** Keeps the reasoning of earlier turns in later prompts. Default false. */
  readonly accumulateReasoning?: boolean | undefined;
  /** Further variables of the chat template, for every call. */
  readonly variables?: Readonly<Record<string, unknown>>;
  readonly warn?: ((message: string) => void) | undefined;
}

/** The most likely tokens, as verl samples with `do_sample=False`. */
export const GREEDY: Pick<SamplingParams, "temperature" | "top_p" | "top_k"> = { temperature: 0, top_p: 1, top_k: -1 };

/** The policy of one attempt, and what it recorded. */
export interface AttemptPolicy {
  readonly policy: Policy;
  /** Returns the trajectories of all agents that called the model, in order of creation. */
  trajectories(): RolloutTrajectory[];
  /** Returns the reason why a call was refused. An agent behind HTTP sees an API error, and may throw one of its own. */
  refused(): TerminationReason | undefined;
  /** Calls every listener of {@link Policy.onEnd}. @throws the first error of a listener */
  end(how: AttemptEnd): Promise<void>;
}

/** Creates the policy of an attempt. Without a tokenizer, calls take token ids, and their text is empty. */
export function createPolicy(options: PolicyOptions): AttemptPolicy {
  const tokenizer = options.backend.tokenizer ?? noTokenizer(options.backend);
  const attempt: AttemptState = {
    ...options,
    tokenizer,
    agents: [],
    listeners: [],
    ended: undefined,
    refused: undefined,
  };
  return {
    policy: new Agent(attempt, ""),
    trajectories: () => attempt.agents.filter((agent) => agent.steps.length > 0).map((agent) => agent.trajectory()),
    refused: () => attempt.refused,
    async end(how) {
      attempt.ended = how;
      const failed: unknown[] = [];
      for (const listener of attempt.listeners)
        await Promise.resolve(how)
          .then(listener)
          .catch((error: unknown) => void failed.push(error));
      if (failed.length > 0) throw failed[0];
    },
  };
}

/** A tokenizer whose methods throw {@link UnsupportedError}. */
function noTokenizer({ name, model: { vocabSize, eosTokenIds } }: SampledModel): Tokenizer {
  const refuse = (): never => {
    throw new UnsupportedError(
      `Cannot convert between text and tokens: the backend ${name} has no tokenizer. Call policy.complete with token ids, or give the backend a tokenizer.`,
      { part: name, capability: "tokenizer" },
    );
  };
  return { vocabSize, eosTokenIds, formatChat: refuse, encode: refuse, decode: refuse };
}

interface AttemptState extends PolicyOptions, ApiContext {
  readonly backend: SampledModel;
  readonly place: AttemptPlace;
  readonly agents: Agent[];
  readonly listeners: ((end: AttemptEnd) => void | Promise<void>)[];
  ended: AttemptEnd | undefined;
}

/** See {@link Policy}. */
class Agent implements Policy, CallableAgent {
  readonly name: string;
  readonly baseURL = LOCAL_BASE_URL;
  readonly client: ChatClient;
  readonly fetch: FetchFunction;
  readonly engine: ChatEngine;
  private readonly attempt: AttemptState;
  private readonly index: number;
  private readonly conversation: Conversation<CallOptions>;
  private readonly recorded: (Completion | undefined)[] = [];

  constructor(attempt: AttemptState, name: string) {
    this.attempt = attempt;
    this.name = name;
    this.index = attempt.agents.push(this) - 1;
    const { tokenizer, accumulateReasoning } = attempt;
    this.conversation = new Conversation({
      tokenizer,
      accumulateReasoning,
      variables: attempt.variables,
      toolCallPrefix: `call_${this.index}`,
      decodes: attempt.backend.tokenizer !== undefined,
      plan: (call) => this.plan(call),
      draw: (request) => {
        const asked = attempt.isValidation ? { ...request, mayTrain: false } : request;
        return attempt.draws.draw(asked, attempt.rank);
      },
    });
    const { client, fetch, engine } = apiOf(this, attempt);
    this.client = client;
    this.fetch = fetch;
    this.engine = engine;
  }

  get model(): string {
    return this.attempt.backend.model.name;
  }
  get tokenizer(): Tokenizer {
    return this.attempt.tokenizer;
  }
  get params(): SamplingParams {
    return this.attempt.params;
  }
  get place(): AttemptPlace {
    return this.attempt.place;
  }
  get isValidation(): boolean {
    return this.attempt.isValidation;
  }
  get signal(): AbortSignal {
    return this.attempt.signal;
  }
  get steps(): readonly Completion[] {
    return this.recorded.filter((step) => step !== undefined);
  }

  complete(prompt: string | readonly number[], params?: Partial<SamplingParams>): Promise<Completion> {
    return unwatched(this.completeText(prompt, { params }));
  }

  /** Completes like `complete`, and for one choice of a request. */
  async completeText(prompt: string | readonly number[], options: CallOptions): Promise<Completion> {
    const reply = await this.conversation.complete(prompt, options);
    return this.record(reply.call, { ...stepOf(reply), ...(typeof prompt === "string" && { prompt }) });
  }

  chat(messages: readonly ChatMessage[], options: ChatCallOptions = {}): Promise<ChatReply> {
    return unwatched(this.chatOnce(messages, options));
  }

  /** Answers like `chat`, and for one choice of a request. */
  async chatOnce(messages: readonly ChatMessage[], options: ChatCallOptions & CallOptions): Promise<ChatReply> {
    const { tools, variables, ...settings } = options;
    const turn = await this.conversation.chat(messages, { tools, variables, settings });
    const { message, messages: rendered, ...reply } = turn;
    return this.record(reply.call, { ...stepOf(reply), message, chat_completions: [...rendered, message] });
  }

  annotate(notes: Parameters<Policy["annotate"]>[0]): void {
    const last = this.recorded.findLastIndex((step) => step !== undefined);
    const step = this.recorded[last];
    if (!step) throw new Error("Cannot annotate a step: the model was not called yet. Call the policy first.");
    this.recorded[last] = { ...step, ...notes };
  }

  agent(name: string): Policy {
    return new Agent(this.attempt, name);
  }

  trajectory(reward?: number, more: Parameters<Policy["trajectory"]>[1] = {}): RolloutTrajectory {
    const { name, steps } = this;
    return { ...more, name, steps, reward: reward ?? steps.reduce((sum, step) => sum + step.reward, 0) };
  }

  onEnd(listener: AttemptState["listeners"][number]): void {
    const { ended, listeners } = this.attempt;
    // Not both: `end` may be calling the listeners.
    if (ended === undefined) listeners.push(listener);
    // A rollout that nobody waits for any more, nor for what its listeners do.
    else
      Promise.resolve(ended)
        .then(listener)
        .catch(() => {});
  }

  /** Steps are in the order in which their calls started. */
  private record<T extends Completion>(call: number, step: T): T {
    this.recorded[call] = step;
    return step;
  }

  private plan({ prompt_ids, settings, call }: PlannedCall<CallOptions>): PlannedDraw {
    const { attempt } = this;
    attempt.signal.throwIfAborted();
    const asked = { ...attempt.params, ...settings.params, ...(attempt.place.is_greedy && GREEDY) };
    const params = fitParams(asked, { prompt_ids, options: attempt });
    return { params, seed: STREAM_SEEDS.call(attempt.seed, { call, agent: this.index }) };
  }
}

/**
 * A rollout that makes two calls and awaits them one after the other never sees the second fail where the first does, when
 * both are given up: that must not end the process.
 */
function unwatched<T>(call: Promise<T>): Promise<T> {
  call.catch(() => {});
  return call;
}

function stepOf({ call, ...reply }: Reply): Completion {
  return { ...reply, reward: 0, done: false };
}

function fitParams(
  params: SamplingParams,
  call: { prompt_ids: readonly number[]; options: PolicyOptions },
): SamplingParams {
  const room = call.options.backend.model.contextLength - call.prompt_ids.length;
  if (call.prompt_ids.length > call.options.maxPromptLength || room < 1) {
    throw new Termination("max_prompt_length_exceeded");
  }
  return { ...params, max_tokens: Math.min(params.max_tokens, room) };
}
