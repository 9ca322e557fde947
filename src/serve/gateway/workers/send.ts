/** Sends a request to a worker, and to another one where the first takes no connection. */

import { ApiError } from "../../../chat/request.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import type { RoutedWorker, WorkerPool } from "./pool.ts";

export interface WorkerRequest {
  readonly method: string;
  /** Path from `/v1` on, with its query. */
  readonly path: string;
  /** The client's; those for the gateway itself are left out. */
  readonly headers: Headers;
  /** Body of a POST. */
  readonly body?: JsonBody | undefined;
  /** Model that the body names. */
  readonly model: unknown;
  /** Only workers of that name take it. */
  readonly isNamed?: boolean | undefined;
  readonly session: string | undefined;
  readonly signal: AbortSignal;
  readonly pool: WorkerPool;
}

/** Its caller releases the worker when it has read the response. */
export interface WorkerAnswer {
  readonly worker: RoutedWorker;
  readonly response: Response;
}

/** Tries until a worker takes the connection, in all. */
const TRIES = 3;

/**
 * The answer of a worker, whatever its status.
 * @throws {ApiError} 503 where none takes a connection, 502 where one took the request and breaks off; the signal's reason
 */
export async function askWorker(request: WorkerRequest): Promise<WorkerAnswer> {
  const { pool, session, model, isNamed, signal } = request;
  let failed: RoutedWorker | undefined;
  let cause: unknown;
  for (let tries = 0; tries < TRIES; tries++) {
    const worker = pool.route(session, { than: failed, model, isNamed });
    if (!worker) break;
    try {
      return { worker, response: await send(request, worker) };
    } catch (error) {
      worker.release();
      signal.throwIfAborted();
      // What was sent may be sampled by now: the client knows whether a second sampling does harm.
      if (!isUnsent(error)) throw brokenOff(worker, error);
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

/** @returns also for a worker that breaks off within its answer */
export function brokenOff({ info }: Pick<RoutedWorker, "info">, cause?: unknown): ApiError {
  return new ApiError(
    `Cannot answer: the worker ${info.worker_id} broke off. It may have sampled already; send the request again if that does no harm.`,
    { status: 502, type: "server_error", code: "worker_failed", cause },
  );
}

async function send({ method, path, headers, body, pool, signal }: WorkerRequest, worker: RoutedWorker) {
  const { info, apiKey } = worker;
  const response = await pool.fetch(`${info.url}${info.api_path}${path.replace(/^\/v1/, "")}`, {
    method,
    signal,
    // A worker must not send conversations, or its key, elsewhere.
    redirect: "manual",
    headers: headersFor(headers, apiKey),
    ...(body && { body: stringifyJson(body) }),
  });
  if (response.status < 300 || response.status > 399) return response;
  await response.body?.cancel();
  const message = `Cannot answer: the worker ${info.worker_id} redirects (${response.status}). Register its final address.`;
  return Response.json({ error: { message, type: "server_error", code: "worker_redirects" } }, { status: 502 });
}

/**
 * Headers that are not passed on: those of one connection; the client's credentials for the gateway; the session, which
 * the gateway itself names in the body.
 */
const OWN_HEADERS =
  /^(connection|keep-alive|transfer-encoding|te|trailer|upgrade|content-length|content-encoding|host|accept-encoding|authorization|x-api-key|cookie|origin|referer|expect|x-session-id)$/;

function headersFor(headers: Headers, apiKey: string | undefined): Headers {
  const kept = new Headers([...headers].filter(([name]) => !OWN_HEADERS.test(name)));
  if (apiKey !== undefined) kept.set("authorization", `Bearer ${apiKey}`);
  return kept;
}

/** Error codes of a connection that was not made. `ETIMEDOUT` alone may come later as well. */
const UNSENT_CODES = [
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "EADDRNOTAVAIL",
  "UND_ERR_CONNECT_TIMEOUT",
];

/** Whether an error says that no byte of the request left. `fetch` hides why a connection failed in the cause of its error. */
export function isUnsent(error: unknown): boolean {
  const { code, syscall, cause } = (error ?? {}) as { code?: unknown; syscall?: unknown; cause?: unknown };
  if (UNSENT_CODES.includes(String(code)) || syscall === "connect" || syscall === "getaddrinfo") return true;
  return cause !== undefined && isUnsent(cause);
}
