/** Answers of OpenAI's `/v1/chat/completions`, complete and as chunks. */
import type { Tokenizer, ToolCall } from "../../../engine/contract/text.ts";
import type { LivePart, LiveUpdate } from "../../engine.ts";
import type { ChatRequest } from "../../request.ts";
import { countTokens, type Drawn, type DrawnChat } from "../../response.ts";
import { type TokenLogprob, tokenLogprobs } from "../logprobs.ts";
import { type Usage, usageOf } from "../usage.ts";

export interface ChatCompletionMessage {
  readonly role: "assistant";
  readonly content: string | null;
  readonly refusal: null;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly ToolCall[];
}

type Logprobs = { readonly content: readonly TokenLogprob[]; readonly refusal: null };

export interface ChatCompletionChoice {
  readonly index: number;
  readonly message: ChatCompletionMessage;
  readonly finish_reason: "stop" | "length" | "tool_calls";
  readonly logprobs: Logprobs | null;
  /** Token ids, with `return_token_ids`. */
  readonly token_ids?: readonly number[];
  readonly weight_version?: number;
  /** Id of the trace that records the reply: a gateway in front of this server records it under the same id. */
  readonly trace_id?: string;
}

/** A reply of `/v1/chat/completions`, with OpenAI's fields and the sampled token ids. */
export interface ChatCompletion {
  readonly id: string;
  readonly object: "chat.completion";
  readonly created: number;
  readonly model: string;
  readonly choices: readonly ChatCompletionChoice[];
  readonly usage: Usage;
  /** Token ids of the prompt, with `return_token_ids`. */
  readonly prompt_token_ids?: readonly number[];
}

/** One event of a streamed reply of `/v1/chat/completions`. */
export interface ChatCompletionChunk {
  readonly id: string;
  readonly object: "chat.completion.chunk";
  readonly created: number;
  readonly model: string;
  readonly choices: readonly ChatCompletionChunkChoice[];
  readonly usage?: Usage | null;
  /** Token ids of the prompt, with `return_token_ids`, in the first chunk of a choice. */
  readonly prompt_token_ids?: readonly number[];
}

interface ChatCompletionChunkChoice {
  readonly index: number;
  readonly delta: Partial<Omit<ChatCompletionMessage, "refusal">>;
  readonly finish_reason: ChatCompletionChoice["finish_reason"] | null;
  readonly logprobs?: Logprobs | null;
  readonly token_ids?: readonly number[];
  readonly weight_version?: number;
  /** Id of the trace that records the reply: a gateway in front of this server records it under the same id. */
  readonly trace_id?: string;
}

export interface ResponseOptions {
  /** Unique; without a prefix such as `chatcmpl-`. */
  readonly id: string;
  readonly model: string;
  /** Seconds since 1970. */
  readonly created: number;
  readonly request: ChatRequest;
  readonly tokenizer: Tokenizer;
}

export function chatCompletion(drawn: readonly DrawnChat[], options: ResponseOptions): ChatCompletion {
  const { id, model, created, request, tokenizer } = options;
  return {
    id: `chatcmpl-${id}`,
    object: "chat.completion",
    created,
    model,
    choices: drawn.map((each, index) => chatChoice(each, { index, options })),
    usage: usageOf(countTokens(drawn, tokenizer)),
    ...(request.returnTokenIds && { prompt_token_ids: drawn[0]!.prompt_ids }),
  };
}

function chatChoice(drawn: DrawnChat, context: { index: number; options: ResponseOptions }): ChatCompletionChoice {
  const { content, reasoning_content, tool_calls } = drawn.message;
  const { response_ids: tokens, logprobs, top_logprobs } = drawn;
  return {
    index: context.index,
    message: {
      role: "assistant",
      content: content === "" && tool_calls ? null : content,
      refusal: null,
      ...(reasoning_content !== undefined && { reasoning_content }),
      ...(tool_calls && { tool_calls }),
    },
    finish_reason: finishReason(drawn),
    logprobs: null,
    ...tokenFields({ tokens, logprobs, top_logprobs }, context.options),
    ...recordFields(drawn, context.options),
  };
}

function finishReason({ message, finish_reason }: DrawnChat): ChatCompletionChoice["finish_reason"] {
  return message.tool_calls ? "tool_calls" : finish_reason;
}

function tokenFields(update: Omit<LiveUpdate, "parts">, { request, tokenizer }: ResponseOptions) {
  return {
    ...(request.logprobs && { logprobs: { content: tokenLogprobs(update, tokenizer), refusal: null } }),
    ...(request.returnTokenIds && { token_ids: update.tokens }),
  };
}

function recordFields({ weight_version, id }: Drawn, { request }: ResponseOptions) {
  if (!request.returnTokenIds) return {};
  return { ...(weight_version !== undefined && { weight_version }), ...(id !== undefined && { trace_id: id }) };
}

/** Makes the chunks of a streamed answer. */
export class ChatChunks {
  private readonly options: ResponseOptions;
  /** Calls of each choice so far. */
  private readonly calls = new Map<number, number>();

  constructor(options: ResponseOptions) {
    this.options = options;
  }

  start(index: number, prompt_token_ids: readonly number[]): ChatCompletionChunk {
    const { returnTokenIds } = this.options.request;
    const more = returnTokenIds ? { prompt_token_ids } : {};
    return this.chunk([{ index, delta: { role: "assistant", content: "" }, finish_reason: null }], more);
  }

  /** A chunk per part; new tokens lie in the first. */
  update(index: number, { parts, ...sampled }: LiveUpdate): ChatCompletionChunk[] {
    const fields = sampled.tokens.length > 0 ? tokenFields(sampled, this.options) : {};
    const deltas = parts.map((part) => this.delta(index, part));
    if (deltas.length === 0 && Object.keys(fields).length > 0) deltas.push({});
    return deltas.map((delta, i) => this.chunk([{ index, delta, finish_reason: null, ...(i === 0 && fields) }]));
  }

  end(index: number, drawn: DrawnChat): ChatCompletionChunk {
    const version = recordFields(drawn, this.options);
    return this.chunk([{ index, delta: {}, finish_reason: finishReason(drawn), ...version }]);
  }

  /** The last chunk, of no choice. */
  usage(drawn: readonly DrawnChat[]): ChatCompletionChunk {
    return this.chunk([], { usage: usageOf(countTokens(drawn, this.options.tokenizer)) });
  }

  private delta(index: number, part: LivePart): ChatCompletionChunkChoice["delta"] {
    if (part.type !== "call")
      return part.type === "content" ? { content: part.text } : { reasoning_content: part.text };
    const place = this.calls.get(index) ?? 0;
    this.calls.set(index, place + 1);
    return { tool_calls: [{ index: place, ...part.call } as ToolCall] };
  }

  private chunk(choices: ChatCompletionChunk["choices"], more: Partial<ChatCompletionChunk> = {}): ChatCompletionChunk {
    const { id, created, model, request } = this.options;
    return {
      id: `chatcmpl-${id}`,
      object: "chat.completion.chunk",
      created,
      model,
      choices,
      ...(request.includeUsage && { usage: null }),
      ...more,
    };
  }
}
