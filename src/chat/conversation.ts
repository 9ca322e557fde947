/**
 * Turns requests into sampled replies: renders the prompt, draws, cuts at stop strings, parses the message. Remembers the
 * tokens of every call, so that later turns continue what was sampled. Rollouts and served sessions both use it.
 */

import type { SampledSequence, SampleRequest, SamplingParams, TokenListener } from "../engine/contract/backend.ts";
import type { ChatMessage, ChatOptions, Tokenizer } from "../engine/contract/text.ts";
import type { PromptOrigin, TraceRecord } from "../engine/contract/trace.ts";
import { mergedJson } from "../leaves/json.ts";
import type { ReplyDemands } from "./constraint.ts";
import type { ChatCall, ChoiceStart } from "./engine.ts";
import { PrefixTree } from "./prefix_tree.ts";
import { type AssistantMessage, type ParseOptions, parseReply, toolFormatOf } from "./reply.ts";
import { CALL_CLOSE, endsInReasoning } from "./reply_reader.ts";
import type { Drawn } from "./response.ts";
import { encodeText } from "./seams.ts";
import { cutAtStop, endsAtLlamaCall, endsAtStop } from "./stop.ts";
import type { TextWork } from "./text_work.ts";
import { type RenderedPrompt, Transcript, type TranscriptOptions } from "./transcript.ts";

/** A {@link ChatCall} for one choice. */
export interface ChoiceCall {
  readonly signal?: AbortSignal | undefined;
  readonly onStart?: ((start: ChoiceStart) => void) | undefined;
  readonly onReply?: ((drawn: Reply | ChatTurn) => void) | undefined;
  readonly onTokens?: TokenListener | undefined;
}

/** The part of a call that belongs to one of its choices. */
export function choiceCall({ signal, onStart, onReply, onTokens }: ChatCall = {}, choice: number): ChoiceCall {
  return {
    signal,
    ...(onStart && { onStart: (start: ChoiceStart) => onStart(choice, start) }),
    ...(onReply && { onReply: (drawn: Reply | ChatTurn) => onReply(choice, drawn) }),
    ...(onTokens && { onTokens: (...sampled: Parameters<TokenListener>) => onTokens(choice, ...sampled) }),
  };
}

/** Settings of any call; a caller adds its own. */
export interface CallSettings {
  /** The reply ends before the first of these. */
  readonly stop?: readonly string[];
  /** Further demands on the reply. */
  readonly demands?: ReplyDemands | undefined;
  readonly sampling?: ChoiceCall | undefined;
}

/** A call that {@link ConversationOptions.plan} receives. */
export interface PlannedCall<Settings> {
  readonly prompt_ids: readonly number[];
  readonly settings: Settings;
  /** Calls of this conversation before this one, those that failed included. Seeds are derived from it. */
  readonly call: number;
}

/** Parameters of a draw; the conversation adds the prompt, the listeners and the demands. */
export type PlannedDraw = Pick<SampleRequest, "params" | "seed">;

export interface ConversationOptions<Settings extends CallSettings> extends TranscriptOptions {
  /** Parameters and seed of a call. It throws for a call that is refused, such as one without room for a reply. */
  readonly plan: (call: PlannedCall<Settings>) => PlannedDraw;
  /** Samples one reply. It may be called again before it resolves. */
  readonly draw: (request: SampleRequest, settings: Settings) => Promise<SampledSequence>;
  /** Further variables of the chat template, for every call. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
  /** Start of the ids of tool calls. Default `call`: `call_0_1` is the second tool call of the first reply. */
  readonly toolCallPrefix?: string;
  /** Default true. False where no tokenizer can decode: replies have an empty text. */
  readonly decodes?: boolean;
  /** Renders and encodes prompts beside the work for other callers. Default: at once. */
  readonly texts?: TextWork | undefined;
}

/** One sampled reply. */
export interface Reply extends Drawn {
  /** See {@link PlannedCall.call}. */
  readonly call: number;
  readonly id: string;
  readonly prompt_origin: PromptOrigin;
  readonly sampling_params: SamplingParams;
  readonly weight_version: number;
}

export interface ChatTurn extends Reply {
  readonly message: AssistantMessage;
  /** The conversation in the form that the template read, without the reply. */
  readonly messages: readonly ChatMessage[];
}

/** See the head of this file. */
export class Conversation<Settings extends CallSettings = CallSettings> {
  private readonly options: ConversationOptions<Settings>;
  private readonly transcript: Transcript;
  private readonly sampled = new PrefixTree<string>();
  private calls = 0;
  private restored: Promise<void> | undefined;

  constructor(options: ConversationOptions<Settings>) {
    this.options = options;
    const { tokenizer = options.tokenizer } = options.texts ?? {};
    this.transcript = new Transcript({ ...options, tokenizer }, this.sampled);
  }

  /** Continues a text or tokens. */
  async complete(prompt: string | readonly number[], settings: Settings): Promise<Reply> {
    if (this.restored) await this.restored;
    const isText = typeof prompt === "string";
    const { texts } = this.options;
    const ids = (tokenizer: Tokenizer) => (typeof prompt === "string" ? encodeText(tokenizer, prompt) : [...prompt]);
    const prompt_ids = texts
      ? await texts.run(() => ids(texts.tokenizer), settings.sampling?.signal)
      : ids(this.options.tokenizer);
    const reply = await this.draw(prompt_ids, { settings, origin: isText ? "rendered" : "tokens" });
    settings.sampling?.onReply?.(reply);
    return reply;
  }

  /**
   * Replies to a conversation. Earlier replies keep their sampled tokens.
   * @throws {UnsupportedError} when the model has no chat template; {ConfigError} for messages that it refuses
   */
  async chat(
    messages: readonly ChatMessage[],
    options: Pick<ChatOptions, "tools" | "variables"> & { readonly settings: Settings },
  ): Promise<ChatTurn> {
    if (this.restored) await this.restored;
    const { tools, settings } = options;
    const variables = mergedJson(this.options.variables ?? {}, options.variables ?? {});
    const { texts, tokenizer, toolCallPrefix = "call" } = this.options;
    texts?.check(messages);
    const render = () => this.transcript.prompt(messages, { tools, variables });
    const prompt = texts ? await texts.run(render, settings.sampling?.signal) : render();
    const parse = {
      format: tools && toolFormatOf(tokenizer.chatTemplate ?? ""),
      id: `${toolCallPrefix}_${this.calls}`,
      isReasoning: endsInReasoning(prompt.text),
    };
    const reply = await this.draw(prompt.ids, { settings, origin: prompt.origin, parse, text: prompt.text });
    const message = parseReply(reply.model_response, parse);
    this.transcript.record(prompt, { responseIds: reply.response_ids, message });
    const turn = { ...reply, message, messages: prompt.messages };
    settings.sampling?.onReply?.(turn);
    return turn;
  }

  /**
   * Takes recorded calls, oldest first, as its own; later calls wait for it, and fail where it fails. Where a prompt is rendered
   * to the same tokens again, its reply is continued; where it is not, a prompt with that reply counts as diverged.
   */
  restore(history: readonly TraceRecord[]): void {
    if (history.length === 0) return;
    const finishAll = async () => {
      for (const trace of history) await this.restoreOne(trace);
    };
    this.restored = finishAll();
    this.restored.catch(() => {});
  }

  private async restoreOne(trace: TraceRecord): Promise<void> {
    const {
      prompt_token_ids,
      completion_token_ids: responseIds,
      messages,
      response_message,
      tools,
      raw_request,
    } = trace;
    this.calls++;
    this.sampled.add([...prompt_token_ids, ...responseIds], trace.trace_id);
    if (messages.length === 0) return;
    const asked = raw_request?.chat_template_kwargs as ChatOptions["variables"];
    const options = { tools, variables: mergedJson(this.options.variables ?? {}, asked ?? {}) };
    const render = (): RenderedPrompt => this.transcript.prompt(messages, options);
    const prompt = await (this.options.texts?.run(render) ?? render());
    const isSame = `${prompt.ids}` === `${prompt_token_ids}`;
    const message = response_message as ChatMessage;
    this.transcript.record(prompt, { message, ...(isSame ? { responseIds } : {}) });
  }

  private async draw(
    prompt_ids: readonly number[],
    options: {
      readonly settings: Settings;
      readonly origin: PromptOrigin;
      readonly parse?: ParseOptions;
      readonly text?: string;
    },
  ): Promise<Reply> {
    const { plan, draw } = this.options;
    const { stop = [], demands, sampling = {} } = options.settings;
    const call = this.calls++;
    sampling.signal?.throwIfAborted();
    const planned = plan({ prompt_ids, settings: options.settings, call });
    const parent = this.sampled.longestOf(prompt_ids);
    const common = {
      id: crypto.randomUUID(),
      prompt_ids,
      prompt_origin: options.origin,
      sampling_params: planned.params,
      ...(parent !== undefined && { parent }),
    };
    sampling.onStart?.({ ...common, ...(options.parse && { parse: options.parse }) });
    const demanded = demands?.drawOf(options.text ?? "");
    const listeners = this.listeners(options.settings);
    const drawn = await draw({ ...planned, ...demanded, prompt_ids, ...listeners }, options.settings);
    sampling.signal?.throwIfAborted();
    const { sequence, text } = this.textOf(drawn, stop);
    this.sampled.add([...prompt_ids, ...sequence.tokens], common.id);
    const { tokens, logprobs, finish_reason, weight_version, top_logprobs, constrained } = sequence;
    return {
      ...common,
      response_ids: tokens,
      logprobs,
      model_response: text,
      weight_version,
      finish_reason,
      call,
      ...(top_logprobs && { top_logprobs }),
      ...(constrained && { constrained }),
    };
  }

  private textOf(sequence: SampledSequence, stop: readonly string[]) {
    const { decodes = true, tokenizer } = this.options;
    return decodes || stop.length > 0 ? cutAtStop(sequence, { stop, tokenizer }) : { sequence, text: "" };
  }

  private listeners({ stop = [], demands, sampling: { signal, onTokens } = {} }: CallSettings) {
    const { tokenizer } = this.options;
    const marks = demands?.isSingleCall ? [...stop, CALL_CLOSE] : stop;
    const isLlama = demands?.isSingleCall && toolFormatOf(tokenizer.chatTemplate ?? "") === "llama3";
    const tests = [endsAtStop(marks, tokenizer), isLlama ? endsAtLlamaCall(tokenizer) : undefined];
    const defined = tests.filter((each) => each !== undefined);
    // A caller that went away ends its sequence at the sampler's next token.
    const ends = (tokens: readonly number[]) => signal?.aborted === true || defined.some((isAtEnd) => isAtEnd(tokens));
    return { ...((signal || defined.length > 0) && { ends }), ...(onTokens && { onTokens }) };
  }
}
