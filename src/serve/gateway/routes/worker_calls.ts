/** Model calls that workers answer: forwarded, or asked of them in the form that reports tokens. */

import { createFetch, type FetchFunction } from "../../../chat/endpoint.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import type { GatewayService } from "../gateway.ts";
import { guardedEngine } from "../guarded_engine.ts";
import type { LiveSession } from "../live_session.ts";
import { workerChatEngine } from "../workers/chat_engine.ts";
import { withExtensions } from "../workers/fields.ts";
import { forward, type HowItEnded } from "../workers/forward.ts";
import type { Gathered } from "../workers/gathered.ts";
import { checkWorkerPath } from "../workers/paths.ts";
import { askWorker } from "../workers/send.ts";
import { workerTraces } from "../workers/worker_traces.ts";
import { paramsFor } from "./session_params.ts";

/** A call on its way to an engine or a worker. */
export interface PendingCall {
  readonly request: Request;
  /** Path from `/v1` on. */
  readonly path: string;
  /** Body with what the gateway sets, without the session's parameters. */
  readonly body: JsonBody;
  /** The session's parameters, under the names of chat completions. They overwrite those of the body. */
  readonly params: JsonBody;
  /** The model that is meant; undefined: the default. */
  readonly model: string | undefined;
  /** Model as the client named it. */
  readonly named: string | undefined;
  readonly session: LiveSession | undefined;
  readonly caller: string;
  /** The caller went away, or the session ended. */
  readonly signal: AbortSignal;
  readonly service: GatewayService;
}

const CHAT = "/v1/chat/completions";
/** Their answers do not tell the tokens: a session's calls are asked as chat completions. */
const TRANSLATED = /^\/v1\/(responses|messages)$/;
/** Paths of the calls that cumulative token mode renders itself. */
const RENDERED = /^\/v1\/(chat\/completions|completions|responses|messages|messages\/count_tokens)$/;

/** @throws {ApiError} 404 for a path that workers do not get */
export async function answerThere(asked: PendingCall): Promise<Response> {
  const call = { ...asked, body: withoutSession(asked.body) };
  const { request, path, body, params, session, model, signal, service } = call;
  checkWorkerPath(request.method, path);
  const { workers: pool, fields } = service;
  // A run that is the session's worker continues tokens itself, and reads messages and metadata.
  const isRuns = params.rllm_metadata !== undefined;
  if (session && request.method === "POST" && service.isCumulative && !isRuns && RENDERED.test(path))
    return answerWith(await service.cumulativeApi(session, model), call, paramsFor(path, params));
  if (session && request.method === "POST" && TRANSLATED.test(path)) return translated(session, call);
  const isCount = path === "/v1/messages/count_tokens";
  const whole = { ...body, ...(isCount && !isRuns ? paramsFor(path, params) : params) };
  const record = session && (await recorderOf(session, call));
  return forward({
    request,
    path,
    body: whole,
    session: session?.id,
    isNamed: namesRun(params),
    signal,
    pool,
    fields,
    ...(record && { record: (sampled: Gathered, how: HowItEnded) => record(whole, sampled, how) }),
  });
}

/** A run's session names its worker: another one, while a gateway that was started again lacks it, has other weights. */
function namesRun({ rllm_metadata, model }: JsonBody): boolean {
  return rllm_metadata !== undefined && model !== undefined;
}

/**
 * A worker may be a run, or another gateway, whose sessions the gateway's key opens: only the session's parameters, which an
 * administrator sets, name one there.
 */
function withoutSession(body: JsonBody): JsonBody {
  const { session_id, ...metadata } = (body.metadata ?? {}) as JsonBody;
  return session_id === undefined ? body : { ...body, metadata };
}

/** The answer of an API in this process. */
export function answerWith(api: FetchFunction, call: PendingCall, params: JsonBody): Promise<Response> {
  const { request, path, body, signal } = call;
  return api(`http://gateway.local${path}`, {
    method: request.method,
    signal,
    headers: { "content-type": "application/json", ...versionOf(request) },
    ...(request.method === "POST" && { body: stringifyJson({ ...body, ...params }) }),
  });
}

/** Returns the headers that an API's handler reads. */
export function versionOf({ headers }: Request): Record<string, string> {
  const names = ["anthropic-version", "anthropic-beta"];
  return Object.fromEntries(names.flatMap((name) => (headers.has(name) ? [[name, headers.get(name)!]] : [])));
}

/** Answered from chat completions, which are recorded. */
async function translated(session: LiveSession, call: PendingCall): Promise<Response> {
  const { request, params, model, service } = call;
  const whole = (body: JsonBody): JsonBody => ({ ...body, ...params });
  const record = await recorderOf(session, call);
  const engine = workerChatEngine({
    model,
    ask: (body, signal = call.signal) =>
      askWorker({
        method: "POST",
        path: CHAT,
        headers: request.headers,
        body: withExtensions(whole(body), CHAT, service.fields),
        model,
        isNamed: namesRun(params),
        session: session.id,
        signal,
        pool: service.workers,
      }),
    record: (body, sampled, how) => record(whole(body), sampled, how),
  });
  const guarded = guardedEngine(engine, { calls: service.running, session: session.id, log: service.log });
  return answerWith(createFetch(guarded, { responses: service.responsesOf(session, call.caller) }), call, {});
}

/** Writes the traces of a call, and remembers them in the session. */
async function recorderOf(session: LiveSession, { named, service }: PendingCall) {
  const timestamp = Date.now() / 1000;
  const started = performance.now();
  const weight_version = service.weightVersion;
  const history = await service.historyOf(session);
  return async (body: JsonBody, sampled: Gathered, how: HowItEnded): Promise<void> => {
    const latency_ms = performance.now() - started;
    const call = { session: session.record, body, model: named, history, weight_version, timestamp, latency_ms };
    for (const trace of workerTraces(sampled, how, call)) {
      service.sessions.remember(session, trace);
      await service.recorder.put(trace);
    }
  };
}
