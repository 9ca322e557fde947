/** Requests as an engine takes them, whichever API they came by. */
import type { SamplingParams } from "../engine/contract/backend.ts";
import type { ChatMessage } from "../engine/contract/text.ts";

/** An error that an API answers with: in OpenAI's form `{"error": {message, type, param, code}}`. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly type: string;
  readonly code: string | null;
  readonly param: string | null;
  constructor(
    message: string,
    options: { status?: number; type?: string; code?: string; param?: string | undefined; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.status = options.status ?? 400;
    this.type = options.type ?? "invalid_request_error";
    this.code = options.code ?? null;
    this.param = options.param ?? null;
  }
}

/** The common part of both kinds of request. */
export interface SamplingRequest {
  /** Only those that the request sets. Its `stop_token_ids` end a reply beside those of the model. */
  readonly params: Partial<SamplingParams>;
  readonly stop: readonly string[];
  readonly n: number;
  readonly logprobs: boolean;
  readonly stream: boolean;
  /** Stream a last chunk with the token counts. */
  readonly includeUsage: boolean;
  /** vLLM's extension: token ids in addition to the text. */
  readonly returnTokenIds: boolean;
  /**
   * Seed of the first choice. The same seed, prompt, parameters and weights give the same tokens. A training run keeps
   * its own.
   */
  readonly seed?: number;
  /** Alternatives reported for each token. Default 0. */
  readonly topLogprobs?: number;
  /** The caller's own notes: recorded with the call. */
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** A request for one whole reply with every default. */
export const PLAIN_REQUEST: SamplingRequest = {
  params: {},
  stop: [],
  n: 1,
  logprobs: false,
  stream: false,
  includeUsage: false,
  returnTokenIds: false,
};

/** Whether the reply must, may or must not call tools, or the name of the tool that it must call. */
export type ToolChoice = "auto" | "none" | "required" | { readonly name: string };

/** The form of a reply's content. */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | { readonly type: "json_schema"; readonly name: string; readonly schema: Readonly<Record<string, unknown>> };

/** A conversation to reply to, read and checked, whichever API it came through. */
export interface ChatRequest extends SamplingRequest {
  readonly messages: readonly ChatMessage[];
  /** Absent with `toolChoice` "none": the template then shows no tools. */
  readonly tools?: readonly unknown[];
  /** Default "auto". */
  readonly toolChoice?: ToolChoice;
  /** Whether one reply may call several tools. Default true. */
  readonly parallelToolCalls?: boolean;
  /** Default text. */
  readonly responseFormat?: ResponseFormat;
  /** Further variables of the chat template (vLLM's `chat_template_kwargs`). */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** A text, or its token ids, to continue. */
export interface TextRequest extends SamplingRequest {
  readonly prompt: string | readonly number[];
}
