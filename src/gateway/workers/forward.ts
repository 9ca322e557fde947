/** Sends a call to a worker and its answer back: whole, or chunk by chunk as it arrives. */
import { ApiError } from "../../chat/request.ts";
import type { JsonBody } from "../body.ts";
import { forwardedEvents } from "./events.ts";
import { type FieldSettings, forClient, isSampled, withExtensions } from "./fields.ts";
import { Gathered } from "./gathered.ts";
import type { RoutedWorker, WorkerPool } from "./pool.ts";

/** A call on its way to a worker. */
export interface WorkerCall {
  readonly request: Request;
  /** From `/v1` on. */
  readonly path: string;
  /** As the client sent it, with the session's parameters. */
  readonly body: JsonBody;
  readonly session: string | undefined;
  readonly signal: AbortSignal;
  readonly pool: WorkerPool;
  readonly fields: FieldSettings;
  /** Takes what was sampled, also by a call that broke off. Absent: the call is not recorded. */
  readonly record?: ((sampled: Gathered, how: HowItEnded) => Promise<void>) | undefined;
}

/** `abort`: the client went away; `error`: the worker broke off. */
export interface HowItEnded {
  readonly brokeOff?: "abort" | "error";
  readonly raw_response?: JsonBody | undefined;
}

/** Tries until a worker takes the call, in all. Only the answer is recorded, so that a repeated call leaves one trace. */
const TRIES = 3;

/** @throws {ApiError} 503 where no worker answers; the signal's reason */
export async function forward(call: WorkerCall): Promise<Response> {
  const { worker, response } = await reached(call);
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream") && response.body) return streamed(call, { worker, response });
  try {
    return await whole(call, response);
  } finally {
    worker.release();
  }
}

async function reached(call: WorkerCall): Promise<{ worker: RoutedWorker; response: Response }> {
  let failed: RoutedWorker | undefined;
  let cause: unknown;
  for (let tries = 0; tries < TRIES; tries++) {
    const worker = call.pool.route(call.session, { than: failed, model: call.body.model });
    if (!worker) break;
    try {
      return { worker, response: await send(call, worker) };
    } catch (error) {
      worker.release();
      call.signal.throwIfAborted();
      failed = worker;
      cause = error;
    }
  }
  throw new ApiError("Cannot answer: no worker takes the call. Check GET /health/workers.", {
    status: 503,
    type: "server_error",
    code: "no_worker",
    cause,
  });
}

async function send(
  { request, path, body, pool, fields, signal }: WorkerCall,
  worker: RoutedWorker,
): Promise<Response> {
  const { info, apiKey } = worker;
  const url = `${info.url}${info.api_path}${path.replace(/^\/v1/, "")}${new URL(request.url).search}`;
  const response = await pool.fetch(url, {
    method: request.method,
    signal,
    // A worker must not send conversations, or its key, elsewhere.
    redirect: "manual",
    headers: headersFor(request, apiKey),
    ...(request.method === "POST" && { body: JSON.stringify(withExtensions(body, path, fields)) }),
  });
  if (response.status < 300 || response.status > 399) return response;
  await response.body?.cancel();
  const message = `Cannot answer: the worker ${info.worker_id} redirects (${response.status}). Register its final address.`;
  return Response.json({ error: { message, type: "server_error", code: "worker_redirects" } }, { status: 502 });
}

/** Of one connection; the client's credentials for the gateway; the session, which the gateway itself names in the body. */
const OWN_HEADERS =
  /^(connection|keep-alive|transfer-encoding|te|trailer|upgrade|content-length|content-encoding|host|accept-encoding|authorization|x-api-key|cookie|origin|referer|expect|x-session-id)$/;

function headersFor({ headers }: Request, apiKey: string | undefined): Headers {
  const kept = new Headers([...headers].filter(([name]) => !OWN_HEADERS.test(name)));
  if (apiKey !== undefined) kept.set("authorization", `Bearer ${apiKey}`);
  return kept;
}

async function whole(call: WorkerCall, response: Response): Promise<Response> {
  const text = await response.text();
  const { status } = response;
  const answer = objectOf(text);
  if (!answer) return new Response(text, { status, headers: contentType(response) });
  if (response.ok && isSampled(call.path)) {
    const sampled = new Gathered();
    sampled.add(answer);
    await call.record?.(sampled, { raw_response: answer });
  }
  return Response.json(isSampled(call.path) ? forClient(answer, call.body, call.fields) : answer, { status });
}

function streamed(call: WorkerCall, it: { worker: RoutedWorker; response: Response }): Response {
  const { worker, response } = it;
  const sampled = new Gathered();
  const body = forwardedEvents(response.body!, {
    signal: call.signal,
    change: (event) => {
      sampled.add(event);
      return forClient(event, call.body, call.fields);
    },
    async end(brokeOff) {
      worker.release();
      if (!sampled.isEmpty) await call.record?.(sampled, brokeOff === undefined ? {} : { brokeOff });
    },
  });
  return new Response(body, {
    status: response.status,
    headers: { "content-type": "text/event-stream; charset=utf-8" },
  });
}

function contentType({ headers }: Response): Record<string, string> {
  const type = headers.get("content-type");
  return type === null ? {} : { "content-type": type };
}

function objectOf(text: string): JsonBody | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonBody) : undefined;
  } catch {
    return undefined;
  }
}
