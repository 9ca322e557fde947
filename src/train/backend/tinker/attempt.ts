/** One HTTP request to the service, and the meaning of its failure. */

import { readReply } from "../../../leaves/read_reply.ts";
import { detailOf, type HttpReply, parseReplyJson } from "./reply.ts";

export interface TinkerCall {
  readonly method?: "GET" | "POST";
  /** JSON, or a protobuf message. */
  readonly body?: object | Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** Time limit of one attempt. Default 60 s. */
  readonly timeoutMs?: number;
  /** Waits together with all other paced calls when the service answers one of them with 429. */
  readonly isPaced?: boolean;
  /** Statuses to return as replies instead of failures. */
  readonly answers?: readonly number[];
  readonly signal?: AbortSignal | undefined;
}

/** A failed attempt, and whether and when to try again. */
export interface FailedAttempt {
  readonly status?: number;
  readonly message: string;
  readonly retryable: boolean;
  readonly pauseMs?: number | undefined;
}

export interface Destination {
  readonly url: string;
  /** Sent as X-API-Key. */
  readonly apiKey: string;
  /** The same for all attempts of one call. */
  readonly idempotencyKey: string;
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
}

export const PAYMENT_REQUIRED = 402;
export const TOO_MANY_REQUESTS = 429;
const RETRYABLE: ReadonlySet<number> = new Set([408, 409, PAYMENT_REQUIRED, TOO_MANY_REQUESTS]);
const TIMEOUT_MS = 60_000;
const BILLING_PAUSE_MS = 5_000;
const LONGEST_ASKED_PAUSE_MS = 60_000;
/** Log-probs of a whole batch, and more. */
const MOST_BYTES = 2 ** 30;

/** @throws the reason of the call's signal when it aborts. */
export async function attempt(call: TinkerCall, to: Destination): Promise<HttpReply | FailedAttempt> {
  const { signal, answers = [] } = call;
  signal?.throwIfAborted();
  // AbortSignal.timeout does not keep Node alive.
  const deadline = new AbortController();
  const timer = setTimeout(() => deadline.abort(), call.timeoutMs ?? TIMEOUT_MS);
  // Not AbortSignal.any, which leaves an entry of each attempt in a signal that lives longer.
  const end = () => deadline.abort(signal?.reason);
  signal?.addEventListener("abort", end);
  try {
    const response = await (to.fetch ?? fetch)(to.url, {
      ...requestOf(call, to),
      signal: deadline.signal,
    });
    const bytes = await readReply(response, MOST_BYTES);
    if (response.ok || answers.includes(response.status)) return replyOf(response, bytes);
    return failureOf(response, bytes);
  } catch (error) {
    signal?.throwIfAborted();
    const message = deadline.signal.aborted ? "it did not answer in time" : `it cannot be reached: ${reasonOf(error)}`;
    return { message, retryable: true };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

function requestOf({ method = "POST", body, headers }: TinkerCall, to: Destination): RequestInit {
  const isBinary = body instanceof Uint8Array;
  return {
    method,
    headers: {
      "X-API-Key": to.apiKey,
      ...(method === "POST" && {
        "Content-Type": isBinary ? "application/x-protobuf" : "application/json",
        "X-Idempotency-Key": to.idempotencyKey,
      }),
      ...headers,
    },
    ...(body && { body: isBinary ? (body as Uint8Array<ArrayBuffer>) : JSON.stringify(body) }),
  };
}

function replyOf(response: Response, bytes: Uint8Array): HttpReply {
  const isJson = response.headers.get("content-type")?.includes("json") ?? false;
  return { status: response.status, bytes, json: isJson ? parseReplyJson(bytes) : undefined };
}

function failureOf({ status, statusText, headers }: Response, bytes: Uint8Array): FailedAttempt {
  const wish = headers.get("x-should-retry");
  // An empty 400 comes from a proxy, not from the service.
  const isRetryable = RETRYABLE.has(status) || status >= 500 || (status === 400 && bytes.byteLength === 0);
  return {
    status,
    message: detailOf(bytes) || statusText || "no reason given",
    retryable: wish === null ? isRetryable : wish === "true",
    pauseMs: status === PAYMENT_REQUIRED ? BILLING_PAUSE_MS : askedPause(headers),
  };
}

function askedPause(headers: Headers): number | undefined {
  const ms = Number(headers.get("retry-after-ms") ?? Number.NaN);
  const asked = Number.isFinite(ms) ? ms : 1000 * Number(headers.get("retry-after") ?? Number.NaN);
  return asked > 0 && asked <= LONGEST_ASKED_PAUSE_MS ? asked : undefined;
}

function reasonOf(error: unknown): string {
  const cause = (error as { cause?: unknown }).cause ?? error;
  return cause instanceof Error ? cause.message : String(cause);
}
