/** Bodies of OpenAI's chat and completion requests. Parameters without an effect here are refused. */
import { z } from "zod";
import type { SamplingParams } from "../contract/backend.ts";
import type { ChatMessage } from "../contract/text.ts";
import { readMessages } from "../data/messages.ts";
import { ConfigError } from "../errors.ts";

/** An error of OpenAI's API: `{"error": {message, type, param, code}}`. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly type: string;
  readonly code: string | null;
  readonly param: string | null;
  constructor(
    message: string,
    options: { status?: number; type?: string; code?: string; param?: string | undefined } = {},
  ) {
    super(message);
    this.status = options.status ?? 400;
    this.type = options.type ?? "invalid_request_error";
    this.code = options.code ?? null;
    this.param = options.param ?? null;
  }
}

/** The common part of both kinds of request. */
export interface SamplingRequest {
  /** Only those that the request sets. */
  readonly params: Partial<Pick<SamplingParams, "max_tokens" | "temperature" | "top_p" | "top_k">>;
  readonly stop: readonly string[];
  readonly n: number;
  readonly logprobs: boolean;
  readonly stream: boolean;
  /** Stream a last chunk with the token counts. */
  readonly includeUsage: boolean;
  /** vLLM's extension: token ids in addition to the text. */
  readonly returnTokenIds: boolean;
  /** Of the first choice. The same seed, prompt, parameters and weights give the same tokens. A training run keeps its own. */
  readonly seed?: number;
  /** Alternatives reported for each token. Default 0. */
  readonly topLogprobs?: number;
  /** The caller's own notes: recorded with the call. */
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** Whether the reply must, may or must not call tools, or the name of the tool that it must call. */
export type ToolChoice = "auto" | "none" | "required" | { readonly name: string };

/** The form of a reply's content. */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | { readonly type: "json_schema"; readonly name: string; readonly schema: Readonly<Record<string, unknown>> };

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

export interface TextRequest extends SamplingRequest {
  readonly prompt: string | readonly number[];
}

const count = z.number().int().min(1).nullish();
const SAMPLING = {
  model: z.string().optional(),
  max_tokens: count,
  temperature: z.number().min(0).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.number().int().min(-1).nullish(),
  n: count,
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
  return_token_ids: z.boolean().nullish(),
  // Without effect at these values; a policy samples with its own seed.
  presence_penalty: z.literal(0, "only 0 is supported").nullish(),
  frequency_penalty: z.literal(0, "only 0 is supported").nullish(),
  seed: z.number().nullish(),
  user: z.string().nullish(),
  metadata: z.record(z.string(), z.unknown()).nullish(),
};

const CHAT = z.strictObject({
  ...SAMPLING,
  messages: z.unknown().optional(),
  max_completion_tokens: count,
  logprobs: z.boolean().nullish(),
  top_logprobs: z.literal(0, "only the sampled token's log-prob is available").nullish(),
  tools: z.array(z.looseObject({ type: z.literal("function") })).nullish(),
  tool_choice: z.enum(["auto", "none"], "only auto and none are supported").nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  response_format: z.object({ type: z.literal("text", "only text is supported") }).nullish(),
  chat_template_kwargs: z.record(z.string(), z.unknown()).nullish(),
  store: z.literal(false, "only false is supported").nullish(),
});

const TEXT = z.strictObject({
  ...SAMPLING,
  prompt: z.union([z.string(), z.array(z.number().int().min(0)).min(1)], "it must be one text, or its token ids"),
  logprobs: z.number().int().min(0).max(1, "only the sampled token's log-prob is available").nullish(),
  echo: z.literal(false, "only false is supported").nullish(),
  best_of: z.literal(1, "only 1 is supported").nullish(),
});

/** @throws {ApiError} for a parameter that is wrong, or that has no effect here */
export function readChatRequest(body: unknown): ChatRequest {
  const read = check(CHAT, body);
  return {
    ...samplingOf({ ...read, max_tokens: read.max_completion_tokens ?? read.max_tokens }),
    messages: checkMessages(read.messages),
    logprobs: read.logprobs ?? false,
    ...(read.tools && read.tools.length > 0 && read.tool_choice !== "none" && { tools: read.tools }),
    ...(read.chat_template_kwargs && { variables: read.chat_template_kwargs }),
  };
}

/** @throws {ApiError} for a parameter that is wrong, or that has no effect here */
export function readTextRequest(body: unknown): TextRequest {
  const read = check(TEXT, body);
  return { ...samplingOf(read), prompt: read.prompt, logprobs: typeof read.logprobs === "number" };
}

function check<T extends z.ZodType>(schema: T, body: unknown): z.infer<T> {
  const { success, data, error } = schema.safeParse(body);
  if (success) return data;
  const [issue] = error.issues;
  const param = issue!.code === "unrecognized_keys" ? issue.keys[0] : issue!.path.join(".");
  const rule = issue!.code === "unrecognized_keys" ? "there is no such parameter" : issue!.message;
  throw new ApiError(`Cannot use ${param || "the body"}: ${rule}.`, { param });
}

function checkMessages(value: unknown): ChatMessage[] {
  try {
    return readMessages(value);
  } catch (error) {
    if (error instanceof ConfigError) throw new ApiError(error.message, { param: "messages" });
    throw error;
  }
}

type ReadSampling = z.infer<z.ZodObject<typeof SAMPLING>>;

function samplingOf(read: ReadSampling): Omit<SamplingRequest, "logprobs"> {
  const { max_tokens, temperature, top_p, top_k } = read;
  const given = Object.entries({ max_tokens, temperature, top_p, top_k }).filter(([, value]) => value != null);
  return {
    params: Object.fromEntries(given),
    stop: [read.stop ?? []].flat(),
    n: read.n ?? 1,
    stream: read.stream ?? false,
    includeUsage: read.stream_options?.include_usage ?? false,
    returnTokenIds: read.return_token_ids ?? false,
    ...(read.metadata && { metadata: read.metadata }),
  };
}
