/** Sends a call to a worker and its answer back: whole, or chunk by chunk as it arrives. */

import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { jsonResponse, parseJson } from "../../../leaves/json.ts";
import { readReplyText } from "../../../leaves/read_reply.ts";
import { forwardedEvents } from "./events.ts";
import { type FieldSettings, forClient, isSampled, withExtensions } from "./fields.ts";
import { Gathered } from "./gathered.ts";
import type { WorkerPool } from "./pool.ts";
import { askWorker, brokenOff, type WorkerAnswer } from "./send.ts";

/** A call on its way to a worker. */
export interface WorkerCall {
  readonly request: Request;
  /** Path from `/v1` on. */
  readonly path: string;
  /** Body as the client sent it, with the session's parameters. */
  readonly body: JsonBody;
  readonly session: string | undefined;
  /** Only workers of the body's model take it. */
  readonly isNamed?: boolean | undefined;
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

/** @throws {ApiError} as {@link askWorker} */
export async function forward(call: WorkerCall): Promise<Response> {
  const { request, path, body, fields, session, isNamed, signal, pool } = call;
  const isPost = request.method === "POST";
  const answer = await askWorker({
    method: request.method,
    path: `${path}${new URL(request.url).search}`,
    headers: request.headers,
    body: isPost ? withExtensions(body, path, fields) : undefined,
    model: body.model,
    isNamed,
    session,
    signal,
    pool,
  });
  const { worker, response } = answer;
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream") && response.body) return streamed(call, answer);
  try {
    return await whole(call, answer);
  } finally {
    worker.release();
  }
}

async function whole(call: WorkerCall, { worker, response }: WorkerAnswer): Promise<Response> {
  const text = await readReplyText(response).catch((error: unknown) => {
    call.signal.throwIfAborted();
    throw brokenOff(worker, error);
  });
  const { status } = response;
  const answer = objectOf(text);
  if (!answer) return new Response(text, { status, headers: contentType(response) });
  if (response.ok && isSampled(call.path)) {
    const sampled = new Gathered();
    sampled.add(answer);
    await call.record?.(sampled, { raw_response: answer });
  }
  return jsonResponse(isSampled(call.path) ? forClient(answer, call.body, call.fields) : answer, { status });
}

function streamed(call: WorkerCall, { worker, response }: WorkerAnswer): Response {
  const sampled = new Gathered();
  let hasError = false;
  const body = forwardedEvents(response.body!, {
    signal: call.signal,
    change: (event) => {
      // vLLM ends a stream that fails with an error and `[DONE]`, as it ends a whole one.
      hasError ||= Boolean(event.error);
      sampled.add(event);
      return forClient(event, call.body, call.fields);
    },
    async end(brokeOff = hasError || !sampled.isWhole ? "error" : undefined) {
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
    const value: unknown = parseJson(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonBody) : undefined;
  } catch {
    return undefined;
  }
}
