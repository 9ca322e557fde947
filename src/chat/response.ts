/** OpenAI's response shapes, complete and as a stream of chunks. */
import type { TopLogprob } from "../contract/backend.ts";
import type { Tokenizer, ToolCall } from "../contract/text.ts";
import type { PromptOrigin } from "../contract/trace.ts";
import type { AssistantMessage } from "./reply.ts";
import type { SamplingRequest } from "./request.ts";

/** One sampled continuation, as a response needs it. */
export interface Drawn {
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** One per response token. */
  readonly logprobs: readonly number[];
  readonly finish_reason: "stop" | "length";
  readonly model_response: string;
  readonly weight_version?: number;
  /** With `topLogprobs`: the most likely tokens of each draw, best first. */
  readonly top_logprobs?: readonly (readonly TopLogprob[])[];
  /** Identifies the reply; a recorder takes it as its trace's id. */
  readonly id?: string;
  /** How the prompt's tokens were made. */
  readonly prompt_origin?: PromptOrigin;
  /** `id` of the reply whose prompt and tokens this prompt starts with. */
  readonly parent?: string;
}

export interface DrawnChat extends Drawn {
  readonly message: AssistantMessage;
}

export interface AnswerOptions {
  /** Unique; without a prefix such as `chatcmpl-`. */
  readonly id: string;
  readonly model: string;
  /** Seconds since 1970. */
  readonly created: number;
  readonly request: SamplingRequest;
  readonly tokenizer: Tokenizer;
}

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
}

export interface ChatCompletionMessage {
  readonly role: "assistant";
  readonly content: string | null;
  readonly refusal: null;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly ToolCall[];
}

export interface ChatCompletionChoice {
  readonly index: number;
  readonly message: ChatCompletionMessage;
  readonly finish_reason: "stop" | "length" | "tool_calls";
  readonly logprobs: { readonly content: readonly TokenLogprob[]; readonly refusal: null } | null;
  /** With `return_token_ids`. */
  readonly token_ids?: readonly number[];
  readonly weight_version?: number;
}

export interface TokenLogprob {
  readonly token: string;
  readonly logprob: number;
  readonly bytes: readonly number[];
  readonly top_logprobs: readonly never[];
}

/** A reply of `/v1/chat/completions`, with OpenAI's fields and the sampled token ids. */
export interface ChatCompletion {
  readonly id: string;
  readonly object: "chat.completion";
  readonly created: number;
  readonly model: string;
  readonly choices: readonly ChatCompletionChoice[];
  readonly usage: Usage;
  /** With `return_token_ids`. */
  readonly prompt_token_ids?: readonly number[];
}

/** One event of a streamed reply of `/v1/chat/completions`. */
export interface ChatCompletionChunk {
  readonly id: string;
  readonly object: "chat.completion.chunk";
  readonly created: number;
  readonly model: string;
  readonly choices: readonly {
    readonly index: number;
    readonly delta: Partial<Omit<ChatCompletionMessage, "refusal">>;
    readonly finish_reason: ChatCompletionChoice["finish_reason"] | null;
    readonly logprobs?: ChatCompletionChoice["logprobs"];
    readonly token_ids?: readonly number[];
  }[];
  readonly usage?: Usage | null;
}

export function chatCompletion(drawn: readonly DrawnChat[], options: AnswerOptions): ChatCompletion {
  const { id, model, created, request } = options;
  return {
    id: `chatcmpl-${id}`,
    object: "chat.completion",
    created,
    model,
    choices: drawn.map((each, index) => chatChoice(each, { index, options })),
    usage: usageOf(drawn),
    ...(request.returnTokenIds && { prompt_token_ids: drawn[0]!.prompt_ids }),
  };
}

function chatChoice(drawn: DrawnChat, it: { index: number; options: AnswerOptions }): ChatCompletionChoice {
  const { content, reasoning_content, tool_calls } = drawn.message;
  const { request, tokenizer } = it.options;
  return {
    index: it.index,
    message: {
      role: "assistant",
      content: content === "" && tool_calls ? null : content,
      refusal: null,
      ...(reasoning_content !== undefined && { reasoning_content }),
      ...(tool_calls && { tool_calls }),
    },
    finish_reason: tool_calls ? "tool_calls" : drawn.finish_reason,
    logprobs: request.logprobs ? { content: tokenLogprobs(drawn, tokenizer), refusal: null } : null,
    ...tokenFields(drawn, request),
  };
}

/** One delta per part of each choice, because a reply is sampled as a whole. */
export function chatChunks(drawn: readonly DrawnChat[], options: AnswerOptions): ChatCompletionChunk[] {
  const { id, created, model, choices, usage } = chatCompletion(drawn, options);
  const { includeUsage } = options.request;
  const chunk = (part: Partial<ChatCompletionChunk>): ChatCompletionChunk => ({
    id,
    object: "chat.completion.chunk",
    created,
    model,
    choices: [],
    ...(includeUsage && { usage: null }),
    ...part,
  });
  const chunks = choices.flatMap(({ index, message, finish_reason, logprobs, token_ids }) => {
    const { tool_calls, reasoning_content, content } = message;
    const delta = (part: ChatCompletionChunk["choices"][number]["delta"], more = {}) =>
      chunk({ choices: [{ index, delta: part, finish_reason: null, ...more }] });
    return [
      delta({ role: "assistant", content: "" }),
      ...(reasoning_content ? [delta({ reasoning_content })] : []),
      ...(content ? [delta({ content }, { logprobs, ...(token_ids && { token_ids }) })] : []),
      ...(tool_calls ? [delta({ tool_calls: tool_calls.map((call, i) => ({ index: i, ...call })) })] : []),
      chunk({ choices: [{ index, delta: {}, finish_reason }] }),
    ];
  });
  return includeUsage ? [...chunks, chunk({ usage })] : chunks;
}

export function textCompletion(drawn: readonly Drawn[], options: AnswerOptions) {
  const { id, model, created, request, tokenizer } = options;
  return {
    id: `cmpl-${id}`,
    object: "text_completion" as const,
    created,
    model,
    choices: drawn.map((each, index) => ({
      index,
      text: each.model_response,
      finish_reason: each.finish_reason,
      logprobs: request.logprobs ? textLogprobs(each, tokenizer) : null,
      ...tokenFields(each, request),
      ...(request.returnTokenIds && { prompt_token_ids: each.prompt_ids }),
    })),
    usage: usageOf(drawn),
  };
}

function tokenFields({ response_ids, weight_version }: Drawn, { returnTokenIds }: SamplingRequest) {
  if (!returnTokenIds) return {};
  return { token_ids: response_ids, ...(weight_version !== undefined && { weight_version }) };
}

function usageOf(drawn: readonly Drawn[]): Usage {
  const prompt_tokens = drawn[0]!.prompt_ids.length;
  const completion_tokens = drawn.reduce((sum, { response_ids }) => sum + response_ids.length, 0);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}

function tokenLogprobs({ response_ids, logprobs }: Drawn, tokenizer: Tokenizer): TokenLogprob[] {
  return response_ids.map((id, i) => {
    const token = tokenizer.decode([id], { skipSpecialTokens: false });
    const bytes = [...new TextEncoder().encode(token)];
    return { token, logprob: logprobs[i]!, bytes, top_logprobs: [] };
  });
}

function textLogprobs(drawn: Drawn, tokenizer: Tokenizer) {
  const tokens = tokenLogprobs(drawn, tokenizer);
  let offset = 0;
  return {
    tokens: tokens.map(({ token }) => token),
    token_logprobs: tokens.map(({ logprob }) => logprob),
    top_logprobs: null,
    text_offset: tokens.map(({ token }) => {
      offset += token.length;
      return offset - token.length;
    }),
  };
}
