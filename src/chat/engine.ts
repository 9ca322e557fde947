/** Engines that answer requests: the contract between the APIs and a model. */
import type { SamplingParams, TokenListener, TopLogprob } from "../engine/contract/backend.ts";
import type { Tokenizer, ToolCall } from "../engine/contract/text.ts";
import type { PromptOrigin } from "../engine/contract/trace.ts";
import type { ParseOptions, ReplyPart } from "./reply_reader.ts";
import type { ChatRequest, TextRequest } from "./request.ts";
import type { Drawn, DrawnChat } from "./response.ts";

/** Parts of one call of an engine besides its request. */
export interface ChatCall {
  /** Ends the sampling: the call rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /**
   * Called once for each choice before its first token, with its prompt and how the engine parses its reply (absent for plain
   * text). An engine that does not call it is answered from whole replies.
   */
  readonly onStart?: ((choice: number, start: ChoiceStart) => void) | undefined;
  /** Called with each choice that is whole, while others of the call may still be sampled. */
  readonly onReply?: ((choice: number, drawn: Drawn | DrawnChat) => void) | undefined;
  /** Called with a choice's new tokens while it is sampled, stop strings included. */
  readonly onTokens?: ((choice: number, ...sampled: Parameters<TokenListener>) => void) | undefined;
}

/** A choice as far as it is known before it is sampled. */
export interface ChoiceStart {
  readonly prompt_ids: readonly number[];
  readonly parse?: ParseOptions;
  /** Id of the choice, as in the reply that follows. */
  readonly id?: string;
  readonly prompt_origin?: PromptOrigin;
  readonly sampling_params?: SamplingParams;
  readonly parent?: string;
}

/** A piece of a reply, with calls as on the wire. */
export type LivePart =
  | Exclude<ReplyPart, { readonly type: "call" }>
  | { readonly type: "call"; readonly call: ToolCall };

/** Changes of a choice since the last update. */
export interface LiveUpdate {
  readonly parts: readonly LivePart[];
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  readonly top_logprobs?: readonly (readonly TopLogprob[])[] | undefined;
}

/** Takes replies while they are sampled. */
export interface LiveListener {
  readonly signal?: AbortSignal | undefined;
  /** Before the first update of a choice. */
  onStart?(choice: number, start: ChoiceStart): void;
  onUpdate(choice: number, update: LiveUpdate): void;
}

/** Answers requests: a policy in a rollout, or a served model. */
export interface ChatEngine {
  /** Name of the model, in answers and in `/v1/models`. */
  readonly model: string;
  readonly tokenizer: Tokenizer;
  /** Whether replies can have `topLogprobs`. Default true; an engine without them refuses requests that need them. */
  readonly hasAlternatives?: boolean;
  /** Samples `request.n` replies. */
  chat(request: ChatRequest, call?: ChatCall): Promise<readonly DrawnChat[]>;
  /**
   * Answers like `chat`, for an engine that reads its replies itself. Absent: they are read from the tokens that it
   * reports.
   */
  chatLive?(request: ChatRequest, listener: LiveListener): Promise<readonly DrawnChat[]>;
  complete(request: TextRequest, call?: ChatCall): Promise<readonly Drawn[]>;
  /** The tokens of a request's prompt, for counting. Absent: the template's rendering is counted. */
  promptIds?(request: ChatRequest): readonly number[] | Promise<readonly number[]>;
}
