/**
 * Model APIs in this process: a `fetch` for any client library, and a client object for code without one. Both call the same
 * engine.
 */

import { parseJson } from "../leaves/json.ts";
import { answerChat, answerOptions, streamChat } from "./apis/chat/answer.ts";
import { readChatRequest } from "./apis/chat/request.ts";
import { type ChatCompletion, type ChatCompletionChunk, chatCompletion } from "./apis/chat/response.ts";
import { answerText } from "./apis/completions/answer.ts";
import { errorResponse, formOf, withRequestId } from "./apis/errors.ts";
import { collected } from "./apis/events.ts";
import { answerCount, answerMessages } from "./apis/messages/answer.ts";
import { findModel, modelList } from "./apis/models.ts";
import { answerResponse, type ResponseCall } from "./apis/responses/answer.ts";
import { answerStored, ResponseStore } from "./apis/responses/store.ts";
import type { ChatEngine } from "./engine.ts";
import { ApiError } from "./request.ts";

export { ResponseMemory, ResponseStore } from "./apis/responses/store.ts";
export type { ChatCall, ChatEngine, ChoiceStart } from "./engine.ts";

/** A function with the signature of `fetch`. */
export type FetchFunction = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

/** The base URL of {@link createFetch}. No server listens there. */
export const LOCAL_BASE_URL = "http://policy.local/v1";

interface RouteCall extends ResponseCall {
  readonly request: Request;
  /** The body, where the caller gave a long one as text: a request would encode it, to be decoded again. */
  readonly text: string | undefined;
  /** Value of `{id}` in the path. */
  readonly id: string;
}

/** Reads the body itself where it needs one. */
type Route = (call: RouteCall) => Promise<Response>;

const ROUTES: Readonly<Record<string, Route>> = {
  "POST chat/completions": async (call) => answerChat(call, await readBody(call)),
  "POST completions": async (call) => answerText(call, await readBody(call)),
  "POST responses": async (call) => answerResponse(call, await readBody(call)),
  "GET responses/{id}": async ({ responses, id }) => answerStored(responses, { method: "GET", id }),
  "DELETE responses/{id}": async ({ responses, id }) => answerStored(responses, { method: "DELETE", id }),
  "POST messages": async (call) => answerMessages(call, await readBody(call)),
  "POST messages/count_tokens": async (call) => answerCount(call, await readBody(call)),
  "GET models": async ({ engine, request }) => Response.json(modelList([engine.model], formOf(request))),
  "GET models/{id}": async ({ engine, request, id }) =>
    Response.json(findModel(id, { ids: [engine.model], form: formOf(request) })),
};

/**
 * A `fetch` that serves OpenAI's API (`/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/models`) and Anthropic's
 * (`/v1/messages`, `/v1/messages/count_tokens`) from one engine. What stands before `/v1/` in a path is ignored, and so is the
 * model that a request names, and the version of Anthropic's API. The last 1000 responses of `/v1/responses` are kept for requests that continue them,
 * in at most 16 MiB, or in `responses`, which several engines of one caller may share.
 *
 * Errors are responses in the API's own form. A request whose signal aborts rejects, as with `fetch`, and ends its sampling.
 */
export function createFetch(
  engine: ChatEngine,
  { responses = new ResponseStore() }: { readonly responses?: ResponseStore | undefined } = {},
): FetchFunction {
  return async (input, init) => {
    const text = typeof init?.body === "string" && init.body.length > LONG_BODY ? init.body : undefined;
    const request = new Request(input, text === undefined ? init : { ...init, body: null });
    const { signal } = request;
    try {
      const { route, id } = findRoute(request);
      return withRequestId(await route({ engine, responses, request, text, id, signal }), formOf(request));
    } catch (error) {
      signal.throwIfAborted();
      return errorResponse(error, formOf(request));
    }
  };
}

function findRoute(request: Request): { route: Route; id: string } {
  const path = new URL(request.url).pathname.replace(/^.*?\/v1\//, "").replace(/\/$/, "");
  const exact = ROUTES[`${request.method} ${path}`];
  if (exact) return { route: exact, id: "" };
  // The name of a model may contain slashes.
  const [first = "", ...rest] = path.split("/");
  const route = rest.length > 0 ? ROUTES[`${request.method} ${first}/{id}`] : undefined;
  const id = decoded(rest.join("/"));
  if (!route || id === undefined) throw noRoute(request, path);
  return { route, id };
}

/** Undefined where the encoding is broken. */
function decoded(id: string): string | undefined {
  try {
    return decodeURIComponent(id);
  } catch {
    return undefined;
  }
}

function noRoute({ method }: Request, path: string): ApiError {
  const routes = Object.keys(ROUTES).join(", ");
  return new ApiError(`Cannot answer ${method} /v1/${path}: there is no such route. Known: ${routes}.`, {
    status: 404,
    code: "unknown_url",
  });
}

/** Letters that take about ten milliseconds. */
const LONG_BODY = 2 ** 21;
const UTF8 = new TextDecoder("utf-8", { fatal: true });

async function readBody({ request, text: readText }: RouteCall): Promise<unknown> {
  const text = readText ?? (await textOf(request));
  // So that others do not wait for all steps of a long one at once.
  if (text.length > LONG_BODY) await new Promise((resolve) => setTimeout(resolve, 0));
  try {
    return parseJson(text);
  } catch (cause) {
    throw new ApiError(`Cannot read the body: it is not JSON (${(cause as Error).message}).`);
  }
}

async function textOf(request: Request): Promise<string> {
  try {
    return UTF8.decode(await request.arrayBuffer());
  } catch (cause) {
    if (request.signal.aborted || !(cause instanceof TypeError)) throw cause;
    throw new ApiError("Cannot read the body: it is not UTF-8. Send it as UTF-8.");
  }
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
    if (request.stream) return collected<ChatCompletionChunk>((send) => streamChat(engine, request, { send })) as never;
    return chatCompletion(await engine.chat(request), answerOptions(engine, request)) as never;
  }
  return { chat: { completions: { create } } };
}
