/** Model calls: `/v1/*` and `/sessions/{id}/v1/*`. */
import { formOf } from "../../chat/apis/errors.ts";
import { modelList } from "../../chat/apis/models.ts";
import type { JsonBody, ReadJson } from "../body.ts";
import { callError } from "../errors.ts";
import type { GatewayService } from "../gateway.ts";
import { publicError } from "../guarded_engine.ts";
import type { LiveSession } from "../live_session.ts";
import { whenSent } from "../sent.ts";
import { checkedId, idInUrl } from "../session_id.ts";
import { forward, type WorkerCall } from "../workers/forward.ts";
import { checkWorkerPath } from "../workers/paths.ts";
import { workerTraces } from "../workers/worker_traces.ts";
import { bodyOf, type RouteContext } from "./context.ts";

/** A call's session, where its URL names one, and its path from `/v1` on. */
export interface CallPath {
  readonly session: string | undefined;
  readonly path: string;
}

/** Ids may contain slashes: the shortest part before `/v1`, as in rLLM's gateway. */
const CALL = /^(?:\/sessions\/(.+?))?(\/v1(?:\/.*)?)$/;

/** Undefined for a request that is no model call. */
export function callPath(request: Request): CallPath | undefined {
  const [, session, path] = CALL.exec(new URL(request.url).pathname) ?? [];
  return path === undefined ? undefined : { session, path };
}

export function callRoute(context: RouteContext): (request: Request, at: CallPath) => Promise<Response> {
  return async (request, at) => {
    try {
      return await admitted(request, at, context);
    } catch (error) {
      const shown = request.signal.aborted ? error : publicError(error, context.service.log);
      return callError(shown, request);
    }
  };
}

/** Checks the caller's key and limits before the body is read. */
async function admitted(request: Request, at: CallPath, context: RouteContext): Promise<Response> {
  const { service, access, calls } = context;
  service.checkOpen();
  const named = at.session === undefined ? request.headers.get("x-session-id") : idInUrl(at.session);
  const caller = await access.agent(
    request,
    named === null ? undefined : await service.sessions.guardOf(checkedId(named)),
  );
  const held = [calls.enter(caller)];
  const settle = () => {
    for (const release of held) release();
  };
  try {
    const read = request.method === "POST" ? await bodyOf(request, context) : undefined;
    if (read) held.push(() => read.lease.release());
    const response = await answer({ request, path: at.path, read, named, caller, context, held });
    return whenSent(response, { unread: service.unread, settle });
  } catch (error) {
    settle();
    throw error;
  }
}

interface Call {
  readonly request: Request;
  readonly path: string;
  readonly read: ReadJson | undefined;
  readonly named: string | null;
  readonly caller: string;
  readonly context: RouteContext;
  /** Releases what the call holds until its answer is sent or given up. */
  readonly held: (() => void)[];
}

async function answer(call: Call): Promise<Response> {
  const { request, path, read, context } = call;
  const { service, access } = context;
  const session = await sessionOf(call);
  const isLocal = isAnsweredHere(call, session);
  if (isLocal && !session?.engine && request.method === "GET" && path === "/v1/models")
    return Response.json(modelList(modelsOf(service), formOf(request)));
  const trajectory = request.headers.get("x-trajectory") ?? undefined;
  const { body, text } = bodyFor(session, { read, path, service, trajectory });
  const { signal, done } = service.running.enter([request.signal, ...(session ? [session.ending.signal] : [])]);
  call.held.push(done);
  if (session) {
    session.running++;
    call.held.push(() => session.running--);
    // A run may have opened the session while the body arrived, or ended it.
    if (session.key) await access.agent(request, session);
    session.ending.signal.throwIfAborted();
  }
  const it = { request, path, body, text, session, caller: call.caller, signal, service };
  return isLocal ? answerHere(it) : answerThere(it);
}

/** Whether the model that a call means, named or the default, is one of this process. Workers have the others. */
function isAnsweredHere({ read, context: { service } }: Call, session: LiveSession | undefined): boolean {
  if (session?.engine || service.workers.size === 0) return true;
  const model = service.modelOf(read?.body.model) ?? service.models[0];
  return model !== undefined && service.models.includes(model);
}

/** Models of this process, then those that workers have by name. */
function modelsOf({ models, workers }: GatewayService): readonly string[] {
  const theirs = workers.list().flatMap(({ model_name }) => model_name ?? []);
  return [...new Set([...models, ...theirs])];
}

/** The session that the URL, a header or the request's metadata names; it is created with its first call. */
async function sessionOf({ request, read, named, context }: Call): Promise<LiveSession | undefined> {
  const { service, access } = context;
  const inBody = named === null && read ? idInBody(read.body) : undefined;
  const id = named ?? inBody;
  if (id === undefined) return undefined;
  if (inBody !== undefined) await access.agent(request, await service.sessions.guardOf(checkedId(inBody)));
  return request.method === "POST" ? service.sessions.ensure(id) : service.sessions.get(id);
}

/** rLLM's SDK, and a gateway in front of this one, send `rllm_metadata`; OpenAI's clients send `metadata`. */
function idInBody({ metadata, rllm_metadata }: JsonBody): string | undefined {
  for (const given of [rllm_metadata, metadata]) {
    const id = (given as JsonBody | null | undefined)?.session_id;
    if (typeof id === "string" && id !== "") return id;
  }
  return undefined;
}

/** The body with what the gateway and the session set. Text is written again only where something changes. */
function bodyFor(
  session: LiveSession | undefined,
  it: {
    readonly read: ReadJson | undefined;
    readonly path: string;
    readonly service: GatewayService;
    /** Of the header `X-Trajectory`, for clients that cannot send metadata. */
    readonly trajectory: string | undefined;
  },
): { body: JsonBody; text: string | undefined } {
  const { read, path, service, trajectory } = it;
  if (!read) return { body: {}, text: undefined };
  const { rllm_metadata, ...own } = read.body;
  const model = service.modelOf(own.model);
  const params = paramsFor(path, session?.record.sampling_params);
  const hasMore = rllm_metadata !== undefined || trajectory !== undefined;
  const isChanged = hasMore || model !== own.model || params !== undefined;
  if (!isChanged) return { body: own, text: read.text };
  const named = trajectory !== undefined && { trajectory_name: trajectory };
  const metadata = { ...(rllm_metadata as JsonBody), ...(own.metadata as JsonBody), ...named };
  const body = {
    ...own,
    ...(hasMore && { metadata }),
    ...(model !== undefined && { model }),
    ...params,
  };
  return { body, text: JSON.stringify(body) };
}

/** A session's sampling parameters carry the names of chat completions; the responses API has its own for one of them. */
function paramsFor(path: string, params: JsonBody | undefined): JsonBody | undefined {
  if (!params || path !== "/v1/responses") return params;
  const { max_tokens, max_completion_tokens, ...others } = params;
  const most = max_completion_tokens ?? max_tokens;
  return { ...others, ...(most !== undefined && { max_output_tokens: most }) };
}

/** A call on its way to an engine or a worker. */
export interface SessionCall {
  readonly request: Request;
  readonly path: string;
  readonly body: JsonBody;
  readonly text: string | undefined;
  readonly session: LiveSession | undefined;
  readonly caller: string;
  /** The caller went away, or the session ended. */
  readonly signal: AbortSignal;
  readonly service: GatewayService;
}

async function answerHere(call: SessionCall): Promise<Response> {
  const { request, path, body, text, session, caller, signal, service } = call;
  const api = await service.apiOf(session, body.model, caller);
  return api(`http://gateway.local${path}`, {
    method: request.method,
    signal,
    headers: { "content-type": "application/json", ...versionOf(request) },
    ...(text !== undefined && { body: text }),
  });
}

/** The answer of a worker. */
async function answerThere({ request, path, body, session, signal, service }: SessionCall): Promise<Response> {
  const { workers: pool, fields } = service;
  checkWorkerPath(request.method, path);
  const timestamp = Date.now() / 1000;
  const started = performance.now();
  const weight_version = service.weightVersion;
  const history = session && (await service.historyOf(session));
  const record: WorkerCall["record"] = async (sampled, how) => {
    const latency_ms = performance.now() - started;
    const own = { session: session!.record, body, history: history!, weight_version, timestamp, latency_ms };
    for (const trace of workerTraces(sampled, how, own)) {
      service.sessions.remember(session!, trace);
      await service.recorder.put(trace);
    }
  };
  return forward({ request, path, body, session: session?.id, signal, pool, fields, ...(session && { record }) });
}

/** What an API's handler reads of the headers. */
function versionOf({ headers }: Request): Record<string, string> {
  const names = ["anthropic-version", "anthropic-beta"];
  return Object.fromEntries(names.flatMap((name) => (headers.has(name) ? [[name, headers.get(name)!]] : [])));
}
