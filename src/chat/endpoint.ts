/**
 * OpenAI's API in this process: a `fetch` for any client library, and a client object for code without one. Both call
 * the same engine.
 */
import type { TokenListener } from "../contract/backend.ts";
import type { Tokenizer } from "../contract/text.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import type { ParseOptions } from "./reply.ts";
import { ApiError, type ChatRequest, readChatRequest, readTextRequest, type TextRequest } from "./request.ts";
import {
  type AnswerOptions,
  type ChatCompletion,
  type ChatCompletionChunk,
  chatChunks,
  chatCompletion,
  type Drawn,
  type DrawnChat,
  textCompletion,
} from "./response.ts";

/** What belongs to one call of an engine, beside its request. */
export interface ChatCall {
  /** Ends the sampling: the call rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /**
   * Called once for each choice before its first token, with its prompt and how the engine parses its reply (absent for plain
   * text). An engine that does not call it is answered from whole replies.
   */
  readonly onStart?: ((choice: number, start: ChoiceStart) => void) | undefined;
  /** Called with a choice's new tokens while it is sampled, stop strings included. */
  readonly onTokens?: ((choice: number, ...sampled: Parameters<TokenListener>) => void) | undefined;
}

/** What is known of a choice before it is sampled. */
export interface ChoiceStart {
  readonly prompt_ids: readonly number[];
  readonly parse?: ParseOptions;
}

/** Answers requests: a policy in a rollout, or a served model. */
export interface ChatEngine {
  /** Name of the model, in answers and in `/v1/models`. */
  readonly model: string;
  readonly tokenizer: Tokenizer;
  /** Samples `request.n` replies. */
  chat(request: ChatRequest, call?: ChatCall): Promise<readonly DrawnChat[]>;
  complete(request: TextRequest, call?: ChatCall): Promise<readonly Drawn[]>;
}

/** A function with the signature of `fetch`. */
export type FetchFunction = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

/** The base URL of {@link createFetch}. No server listens there. */
export const LOCAL_BASE_URL = "http://policy.local/v1";

type Route = (engine: ChatEngine, body: unknown) => Promise<Response>;

const ROUTES: Readonly<Record<string, Route>> = {
  "POST chat/completions": answerChat,
  "POST completions": answerText,
  "GET models": async ({ model }) =>
    Response.json({ object: "list", data: [{ id: model, object: "model", created: 0, owned_by: "grpu" }] }),
};

/** A `fetch` that serves `POST /v1/chat/completions`, `POST /v1/completions` and `GET /v1/models` in this process. */
export function createFetch(engine: ChatEngine): FetchFunction {
  return async (input, init) => {
    const request = new Request(input, init);
    const path = new URL(request.url).pathname.replace(/^.*\/v1\//, "");
    const route = ROUTES[`${request.method} ${path}`];
    try {
      if (!route) throw noRoute(request, path);
      return await route(engine, request.method === "POST" ? await readBody(request) : undefined);
    } catch (error) {
      return errorResponse(error);
    }
  };
}

function noRoute({ method }: Request, path: string): ApiError {
  const known = Object.keys(ROUTES).join(", ");
  return new ApiError(`Cannot answer ${method} /v1/${path}: there is no such route. Known: ${known}.`, {
    status: 404,
    code: "unknown_url",
  });
}

async function readBody(request: Request): Promise<unknown> {
  try {
    return await request.json();
  } catch (cause) {
    throw new ApiError(`Cannot read the body: it is not JSON (${(cause as Error).message}).`);
  }
}

/** The error as a response in OpenAI's form: 400 for the caller's faults, 500 for all others. */
export function errorResponse(error: unknown): Response {
  const { status, type, code, param, message } = toApiError(error);
  return Response.json(
    { error: { message, type, param, code } },
    // The official clients retry a 500 without this header.
    { status, headers: { "x-should-retry": "false" } },
  );
}

function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  const message = error instanceof Error ? error.message : String(error);
  const isCallers = error instanceof ConfigError || error instanceof UnsupportedError;
  return isCallers ? new ApiError(message) : new ApiError(message, { status: 500, type: "server_error" });
}

async function answerChat(engine: ChatEngine, body: unknown): Promise<Response> {
  const request = readChatRequest(body);
  const drawn = await engine.chat(request);
  const options = answerOptions(engine, request);
  if (!request.stream) return Response.json(chatCompletion(drawn, options));
  return streamed(chatChunks(drawn, options));
}

async function answerText(engine: ChatEngine, body: unknown): Promise<Response> {
  const request = readTextRequest(body);
  const drawn = await engine.complete(request);
  const whole = textCompletion(drawn, answerOptions(engine, request));
  if (!request.stream) return Response.json(whole);
  const { usage, ...chunk } = whole;
  return streamed(request.includeUsage ? [chunk, { ...chunk, choices: [], usage }] : [chunk]);
}

function answerOptions(engine: ChatEngine, request: ChatRequest | TextRequest): AnswerOptions {
  const { model, tokenizer } = engine;
  return { id: crypto.randomUUID(), model, created: Math.floor(Date.now() / 1000), request, tokenizer };
}

/** Server-sent events, one per chunk, and `[DONE]`. */
function streamed(chunks: readonly object[]): Response {
  const events = [...chunks.map((chunk) => JSON.stringify(chunk)), "[DONE]"];
  const body = events.map((data) => `data: ${data}\n\n`).join("");
  return new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8" } });
}

/** A request of {@link ChatClient}: OpenAI's body; `model` is optional. */
export type ChatCompletionRequest = { readonly messages: readonly object[] } & Readonly<Record<string, unknown>>;

/** The part of OpenAI's client that agents use, without a library. */
export interface ChatClient {
  readonly chat: {
    readonly completions: {
      create(request: ChatCompletionRequest & { readonly stream: true }): Promise<AsyncIterable<ChatCompletionChunk>>;
      create(request: ChatCompletionRequest): Promise<ChatCompletion>;
    };
  };
}

/** A client that throws the engine's errors, and {@link ApiError} for a request that cannot be read. */
export function createClient(engine: ChatEngine): ChatClient {
  async function create(body: ChatCompletionRequest): Promise<never> {
    const request = readChatRequest(body);
    const drawn = await engine.chat(request);
    const options = answerOptions(engine, request);
    return (request.stream ? iterate(chatChunks(drawn, options)) : chatCompletion(drawn, options)) as never;
  }
  return { chat: { completions: { create } } };
}

async function* iterate<T>(items: readonly T[]): AsyncIterable<T> {
  yield* items;
}
