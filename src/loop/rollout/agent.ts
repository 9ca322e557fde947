/** The policy of a rollout: the model as a function or as OpenAI's API. Records every call as a step. */
import { type ChatClient, type ChatEngine, type FetchFunction, LOCAL_BASE_URL } from "../../chat/endpoint.ts";
import { type ParseOptions, parseReply, toolFormatOf } from "../../chat/reply.ts";
import { cutAtStop, endsAtStop } from "../../chat/stop.ts";
import { Transcript } from "../../chat/transcript.ts";
import type { Backend, SampleRequest, SamplingParams } from "../../contract/backend.ts";
import type { ChatMessage, Tokenizer } from "../../contract/text.ts";
import type { TerminationReason } from "../../data/types.ts";
import { UnsupportedError } from "../../errors.ts";
import { STREAM_SEEDS } from "../../random.ts";
import {
  type AttemptPlace,
  type ChatCallOptions,
  type ChatReply,
  type Completion,
  type Policy,
  type RolloutTrajectory,
  Termination,
} from "../../task/rollout.ts";
import { type ApiContext, apiOf, type Callable, type CallOptions } from "./agent_api.ts";
import type { DrawQueue } from "./draw_queue.ts";

export interface PolicyOptions {
  readonly draws: DrawQueue;
  readonly backend: Backend;
  readonly params: SamplingParams;
  readonly maxPromptLength: number;
  readonly isValidation: boolean;
  readonly signal: AbortSignal;
  /** Of this attempt; each call derives its own from it. */
  readonly seed: number;
  readonly rank: number;
  readonly place: AttemptPlace;
  /** Keeps the reasoning of earlier turns in later prompts. Default false. */
  readonly accumulateReasoning?: boolean | undefined;
  /** Further variables of the chat template, for every call. */
  readonly variables?: Readonly<Record<string, unknown>>;
  readonly warn?: ((message: string) => void) | undefined;
}

/** The policy of one attempt, and what it recorded. */
export interface AttemptPolicy {
  readonly policy: Policy;
  /** Of all agents that called the model, in order of creation. */
  trajectories(): RolloutTrajectory[];
  /** Why a call was refused. An agent behind HTTP sees an API error, and may throw one of its own. */
  refused(): TerminationReason | undefined;
}

/** Without a tokenizer, calls take token ids, and their text is empty. */
export function createPolicy(options: PolicyOptions): AttemptPolicy {
  const tokenizer = options.backend.tokenizer ?? noTokenizer(options.backend);
  const attempt: AttemptState = { ...options, tokenizer, agents: [], refused: undefined };
  return {
    policy: new Agent(attempt, ""),
    trajectories: () => attempt.agents.filter((agent) => agent.steps.length > 0).map((agent) => agent.trajectory()),
    refused: () => attempt.refused,
  };
}

/** A tokenizer whose methods throw {@link UnsupportedError}. */
function noTokenizer({ name, model: { vocabSize, eosTokenIds } }: Backend): Tokenizer {
  const refuse = (): never => {
    throw new UnsupportedError(
      `Cannot convert between text and tokens: the backend ${name} has no tokenizer. Call policy.complete with token ids, or give the backend a tokenizer.`,
      { part: name, capability: "tokenizer" },
    );
  };
  return { vocabSize, eosTokenIds, formatChat: refuse, encode: refuse, decode: refuse };
}

interface AttemptState extends PolicyOptions, ApiContext {
  readonly backend: Backend;
  readonly agents: Agent[];
}

/** See {@link Policy}. */
class Agent implements Policy, Callable {
  readonly name: string;
  readonly baseURL = LOCAL_BASE_URL;
  readonly client: ChatClient;
  readonly fetch: FetchFunction;
  readonly engine: ChatEngine;
  private readonly attempt: AttemptState;
  private readonly index: number;
  private readonly transcript: Transcript;
  private readonly recorded: (Completion | undefined)[] = [];

  constructor(attempt: AttemptState, name: string) {
    this.attempt = attempt;
    this.name = name;
    this.index = attempt.agents.push(this) - 1;
    const { tokenizer, accumulateReasoning } = attempt;
    this.transcript = new Transcript({ tokenizer, accumulateReasoning });
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

  async complete(prompt: string | readonly number[], params?: Partial<SamplingParams>): Promise<Completion> {
    return this.completeText(prompt, { params });
  }

  /** Like `complete`, with stop strings. */
  async completeText(prompt: string | readonly number[], options: CallOptions): Promise<Completion> {
    const prompt_ids = typeof prompt === "string" ? this.tokenizer.encode(prompt) : [...prompt];
    return this.record(async (call) => ({
      ...(await this.draw(prompt_ids, { ...options, call })),
      ...(typeof prompt === "string" && { prompt }),
    }));
  }

  async chat(messages: readonly ChatMessage[], options: ChatCallOptions = {}): Promise<ChatReply> {
    return this.chatOnce(messages, options);
  }

  /** Like `chat`, and for one choice of a request. */
  async chatOnce(messages: readonly ChatMessage[], options: ChatCallOptions & CallOptions): Promise<ChatReply> {
    const { tools, variables } = options;
    const prompt = this.transcript.prompt(messages, {
      tools,
      variables: { ...this.attempt.variables, ...variables },
    });
    return this.record(async (call) => {
      const parse = {
        format: tools && toolFormatOf(this.tokenizer.chatTemplate ?? ""),
        id: `call_${this.index}_${call}`,
      };
      const step = await this.draw(prompt.ids, { ...options, call, parse });
      const message = parseReply(step.model_response, parse);
      this.transcript.record(prompt, { responseIds: step.response_ids, message });
      return { ...step, message, chat_completions: [...prompt.messages, message] };
    });
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

  /** Reserves the call's place while it runs, so that steps are in the order of their start. */
  private async record<T extends Completion>(run: (call: number) => Promise<T>): Promise<T> {
    const call = this.recorded.push(undefined) - 1;
    const step = await run(call);
    this.recorded[call] = step;
    return step;
  }

  private async draw(
    prompt_ids: readonly number[],
    { params, stop = [], call, parse, sampling = {} }: CallOptions & { call: number; parse?: ParseOptions },
  ): Promise<Completion> {
    const { attempt, tokenizer } = this;
    const { signal, onStart, onTokens } = sampling;
    attempt.signal.throwIfAborted();
    signal?.throwIfAborted();
    const fitted = fitParams({ ...attempt.params, ...params }, { prompt_ids, options: attempt });
    const seed = STREAM_SEEDS.call(attempt.seed, { call, agent: this.index });
    const ends = endsAt({ stop: endsAtStop(stop, tokenizer), signal });
    const request = { prompt_ids, params: fitted, seed, ...(ends && { ends }), ...(onTokens && { onTokens }) };
    onStart?.({ prompt_ids, ...(parse && { parse }) });
    const sequence = await attempt.draws.draw(request, attempt.rank);
    signal?.throwIfAborted();
    const isText = attempt.backend.tokenizer !== undefined || stop.length > 0;
    const cut = isText ? cutAtStop(sequence, { stop, tokenizer }) : { sequence, text: "" };
    const { tokens, logprobs, finish_reason, weight_version } = cut.sequence;
    return {
      prompt_ids,
      response_ids: tokens,
      logprobs,
      model_response: cut.text,
      reward: 0,
      done: false,
      weight_version,
      finish_reason,
    };
  }
}

/** A caller that went away ends its sequence at the sampler's next token. */
function endsAt(of: { stop: SampleRequest["ends"]; signal: AbortSignal | undefined }): SampleRequest["ends"] {
  const { stop, signal } = of;
  return signal ? (tokens) => signal.aborted || stop?.(tokens) === true : stop;
}

function fitParams(
  params: SamplingParams,
  it: { prompt_ids: readonly number[]; options: PolicyOptions },
): SamplingParams {
  const room = it.options.backend.model.contextLength - it.prompt_ids.length;
  if (it.prompt_ids.length > it.options.maxPromptLength || room < 1) {
    throw new Termination("max_prompt_length_exceeded");
  }
  return { ...params, max_tokens: Math.min(params.max_tokens, room) };
}
