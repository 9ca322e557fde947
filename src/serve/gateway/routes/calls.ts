/** Model calls: `/v1/*` and `/sessions/{id}/v1/*`. */
import { formOf } from "../../../chat/apis/errors.ts";
import { modelList } from "../../../chat/apis/models.ts";
import { answerStored, ResponseStore } from "../../../chat/apis/responses/store.ts";
import { type JsonBody, objectIn, type ReadJson } from "../../../leaves/http/json_body.ts";
import { mergedJson } from "../../../leaves/json.ts";
import { callError } from "../errors.ts";
import type { GatewayService } from "../gateway.ts";
import { publicError } from "../guarded_engine.ts";
import type { LiveSession } from "../live_session.ts";
import { whenSent } from "../sent.ts";
import { checkedId, idInUrl } from "../session_id.ts";
import { bodyOf, type RouteContext } from "./context.ts";
import { paramsFor } from "./session_params.ts";
import { answerThere, answerWith, type PendingCall, versionOf } from "./worker_calls.ts";

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
  const running: (() => void)[] = [];
  const ended = () => {
    for (const leave of running) leave();
  };
  const settle = () => {
    for (const release of held) release();
  };
  try {
    const read = request.method === "POST" ? await bodyOf(request, context) : undefined;
    if (read) held.push(() => read.lease.release());
    const response = await answer({ request, path: at.path, read, named, caller, context, held, running });
    return whenSent(response, { unread: service.unread, ended, settle });
  } catch (error) {
    ended();
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
  /** Takes it from the running calls, when its answer is complete. */
  readonly running: (() => void)[];
}

async function answer(call: Call): Promise<Response> {
  const { request, path, read, caller, context } = call;
  const { service, access } = context;
  const session = await sessionOf(call);
  const stored = request.method === "POST" ? undefined : STORED.exec(path)?.[1];
  if (stored !== undefined && isStoredHere(stored, call, session)) {
    // A session that is not in memory has none.
    const responses = session || call.named === null ? service.responsesOf(session, caller) : new ResponseStore();
    return answerStored(responses, { method: request.method, id: stored });
  }
  const params = session?.record.sampling_params ?? {};
  const model = service.modelOf(params.model ?? read?.body.model);
  const isLocal = isAnsweredHere(service, { session, model });
  if (isLocal && !session?.engine && request.method === "GET" && path === "/v1/models")
    return Response.json(modelList(modelsOf(service), formOf(request)));
  const changed = changedBody(call);
  const isSame = read !== undefined && changed === undefined && Object.keys(params).length === 0;
  const { signal, done } = service.running.enter(
    [request.signal, ...(session ? [session.ending.signal] : [])],
    session?.id,
  );
  call.running.push(done);
  if (session) {
    session.running++;
    call.held.push(() => session.running--);
    // A run may have opened the session while the body arrived, or ended it.
    if (session.key) await access.agent(request, session);
    session.ending.signal.throwIfAborted();
  }
  const body = changed ?? read?.body ?? {};
  const named = typeof body.model === "string" ? body.model : undefined;
  const apiCall = { request, path, body, params, model, named, session, caller, signal, service };
  const respond = () => (isLocal ? answerHere(apiCall, isSame ? read.text : undefined) : answerThere(apiCall));
  if (!session || !read) return respond();
  return service.retryCache.once({ session, path, text: read.text }, { request, respond });
}

/** Whether the model that a call means, named or the default, is one of this process. Workers have the others. */
function isAnsweredHere(
  { models, workers }: GatewayService,
  { session, model = models[0] }: { readonly session: LiveSession | undefined; readonly model: string | undefined },
): boolean {
  if (session?.engine || workers.size === 0) return true;
  return model !== undefined && models.includes(model);
}

const STORED = /^\/v1\/responses\/([\w.-]+)$/;

/** Responses of sessions are kept here. Without a session a worker may have the response, under an id of its own. */
function isStoredHere(id: string, { named, caller, context }: Call, session: LiveSession | undefined): boolean {
  const { service } = context;
  return named !== null || service.workers.size === 0 || service.responsesOf(session, caller).has(id);
}

/** Models of this process, then those that workers have by a name that callers may know. */
function modelsOf({ models, workers }: GatewayService): readonly string[] {
  const theirs = workers.list().flatMap(({ model_name, is_listed }) => (is_listed ? (model_name ?? []) : []));
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
  for (const candidate of [rllm_metadata, metadata]) {
    const id = (candidate as JsonBody | null | undefined)?.session_id;
    if (typeof id === "string" && id !== "") return id;
  }
  return undefined;
}

/** The body with what the gateway sets. Undefined where nothing changes. */
function changedBody(call: Call): JsonBody | undefined {
  const { request, read, context } = call;
  if (!read) return undefined;
  const { rllm_metadata, ...rest } = read.body;
  const model = context.service.modelOf(rest.model);
  // For clients that cannot send metadata.
  const trajectory = request.headers.get("x-trajectory");
  const hasMore = rllm_metadata !== undefined || trajectory !== null;
  if (!hasMore && model === rest.model) return undefined;
  const named = trajectory === null ? {} : { trajectory_name: trajectory };
  const metadata = mergedJson(objectIn(read.body, "rllm_metadata") ?? {}, objectIn(rest, "metadata") ?? {}, named);
  return { ...rest, ...(hasMore && { metadata }), ...(model !== undefined && { model }) };
}

async function answerHere(call: PendingCall, text: string | undefined): Promise<Response> {
  const { request, path, session, model, params, caller, signal, service } = call;
  const api = await service.apiOf(session, model, caller);
  // Written again only where something changes.
  if (text === undefined) return answerWith(api, call, paramsFor(path, params));
  const headers = { "content-type": "application/json", ...versionOf(request) };
  return api(`http://gateway.local${path}`, { method: request.method, signal, headers, body: text });
}
