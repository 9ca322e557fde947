/**
 * HTTP as the Tinker service wants it used: the key in a header, one idempotency key over all tries of a request, and
 * patience. What is worth another try and how long to wait before it follows the official SDK; the whole is bounded.
 */
import { RemoteError } from "../../errors.ts";

export interface TransportOptions {
  /** Paths are appended to it. */
  readonly baseUrl: string;
  /** Sent as X-API-Key and shown nowhere. */
  readonly apiKey: string;
  readonly fetch?: (url: string, init: RequestInit) => Promise<Response>;
  readonly clock?: Clock;
  /** How long a request that fails is tried again, ms. Default 5 minutes. */
  readonly patienceMs?: number;
  /** How long a paused account, or a service with too much to do (429), is waited for, ms. Default 1 hour each. */
  readonly pausePatienceMs?: number;
  /** Says that somebody waits for the end: from then on nothing that fails is tried for longer than 10 s. */
  readonly hurry?: AbortSignal;
  /** For people: what holds the run up. The same words come at most once a minute. */
  readonly notify?: (message: string) => void;
}

/** Time, so that tests need not wait for it. */
export interface Clock {
  now(): number;
  /** @throws the signal's reason when it aborts. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

export interface Call {
  readonly method?: "GET" | "POST";
  /** JSON, or a protobuf message. */
  readonly body?: object | Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** Of one try. Default 60 s. */
  readonly timeoutMs?: number;
  /** One of the requests that all wait when the service tells one of them that it has too much to do. */
  readonly isPaced?: boolean;
  /** Statuses that are answers and no failures. */
  readonly answers?: readonly number[];
  readonly signal?: AbortSignal | undefined;
}

export interface Reply {
  readonly status: number;
  /** What JSON held; undefined for a binary answer. */
  readonly json?: unknown;
  readonly bytes: Uint8Array;
}

const TIMEOUT_MS = 60_000;
const PATIENCE_MS = 5 * 60_000;
const HURRIED_PATIENCE_MS = 10_000;
const PAUSE_PATIENCE_MS = 60 * 60_000;
const BILLING_PAUSE_MS = 5_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
/** Of all samples, when the service refuses one for having too much to do. */
const PACE_MS = 1_000;
const LONGEST_ASKED_PAUSE_MS = 60_000;
const BETWEEN_NOTICES_MS = 60_000;
/** A failure that passes sooner is no news. */
const SILENT_MS = 10_000;
const PAYMENT_REQUIRED = 402;
const TOO_MANY_REQUESTS = 429;
const WORTH_A_RETRY: ReadonlySet<number> = new Set([408, 409, TOO_MANY_REQUESTS]);

/** A failed try: what happened, and whether and when another one makes sense. */
interface Failure {
  readonly status?: number;
  readonly message: string;
  readonly retryable: boolean;
  readonly pauseMs?: number | undefined;
}

/** Time that a request has lost, ms: to failures, and to pauses that the service wished for. */
interface Lost {
  failed: number;
  busy: number;
  unpaid: number;
}

export class Transport {
  private readonly options: TransportOptions;
  readonly clock: Clock;
  /** Ends the calls that have no signal of their own. */
  stop: AbortSignal | undefined;
  /** Until when paced requests wait. */
  private pacedUntil = 0;
  /** When each notice was last given. */
  private readonly noticed = new Map<string, number>();

  constructor(options: TransportOptions) {
    this.options = options;
    this.clock = options.clock ?? SYSTEM_CLOCK;
  }

  /** Tells people; hundreds of requests that meet the same thing say it once a minute. */
  notify(message: string): void {
    const now = this.clock.now();
    if (now - (this.noticed.get(message) ?? Number.NEGATIVE_INFINITY) < BETWEEN_NOTICES_MS) return;
    this.noticed.set(message, now);
    this.options.notify?.(message);
  }

  /** @throws {RemoteError} for what the service refuses, and for a failure that outlasts the patience. */
  async call(path: string, given: Call = {}): Promise<Reply> {
    const call = { ...given, signal: given.signal ?? this.stop };
    const idempotency = crypto.randomUUID();
    const lost: Lost = { failed: 0, busy: 0, unpaid: 0 };
    for (let attempt = 0; ; attempt++) {
      const began = this.clock.now();
      // Another's wait may grow while this one sleeps.
      while (call.isPaced && this.clock.now() < this.pacedUntil)
        await this.clock.sleep(this.pacedUntil - this.clock.now(), call.signal);
      const outcome = await this.tryOnce(path, { call, idempotency });
      if (!("message" in outcome)) return outcome;
      if (call.isPaced && kindOf(outcome) === "busy")
        this.pacedUntil = this.clock.now() + Math.max(outcome.pauseMs ?? 0, PACE_MS);
      await this.pause(path, { failure: outcome, attempt, lost, signal: call.signal });
      lost[kindOf(outcome)] += this.clock.now() - began;
    }
  }

  private async pause(
    path: string,
    {
      failure,
      attempt,
      lost,
      signal,
    }: { failure: Failure; attempt: number; lost: Lost; signal?: AbortSignal | undefined },
  ): Promise<void> {
    const kind = kindOf(failure);
    const patience = this.patienceFor(kind);
    const pauseMs = failure.pauseMs ?? backoff(attempt);
    if (!failure.retryable) throw this.error(path, failure);
    if (lost[kind] + pauseMs > patience)
      throw this.error(path, failure, ` It was tried for ${Math.round(lost[kind] / 1000)} s.`);
    if (kind === "unpaid")
      this.notify(`the service has paused the account, and is asked again: ${failure.message}`);
    // A moment of it is how the service paces its clients.
    if (kind === "busy" && lost.busy > BETWEEN_NOTICES_MS)
      this.notify(`the service has too much to do, and is asked again: ${failure.message}`);
    if (kind === "failed" && lost.failed > SILENT_MS)
      this.notify(`the service at ${this.options.baseUrl} fails, and is asked again: ${failure.message}`);
    await this.clock.sleep(pauseMs, signal);
  }

  private patienceFor(kind: keyof Lost): number {
    const { patienceMs = PATIENCE_MS, pausePatienceMs = PAUSE_PATIENCE_MS, hurry } = this.options;
    const most = kind === "failed" ? patienceMs : pausePatienceMs;
    return hurry?.aborted ? Math.min(most, HURRIED_PATIENCE_MS) : most;
  }

  private error(path: string, failure: Failure, more = ""): RemoteError {
    const { status, message, retryable } = failure;
    const how = status === undefined ? message : `it answered ${status}: ${message}`;
    const why = how.replace(/\.$/, "");
    return new RemoteError(`Cannot get an answer of ${this.options.baseUrl}${path} as ${why}.${more}`, {
      status,
      retryable,
    });
  }

  private async tryOnce(
    path: string,
    { call, idempotency }: { call: Call; idempotency: string },
  ): Promise<Reply | Failure> {
    const { signal, answers = [] } = call;
    signal?.throwIfAborted();
    // A loop of its own holds the timer: AbortSignal.timeout would not keep Node waiting for it.
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(), call.timeoutMs ?? TIMEOUT_MS);
    try {
      const response = await (this.options.fetch ?? fetch)(this.options.baseUrl + path, {
        ...this.request(call, idempotency),
        signal: signal ? AbortSignal.any([signal, deadline.signal]) : deadline.signal,
      });
      const bytes = new Uint8Array(await response.arrayBuffer());
      if (response.ok || answers.includes(response.status)) return reply(response, bytes);
      return failureOf(response, bytes);
    } catch (error) {
      signal?.throwIfAborted();
      const why = deadline.signal.aborted
        ? "it did not answer in time"
        : `it cannot be reached: ${reason(error)}`;
      return { message: why, retryable: true };
    } finally {
      clearTimeout(timer);
    }
  }

  private request({ method = "POST", body, headers }: Call, idempotency: string): RequestInit {
    const isBinary = body instanceof Uint8Array;
    return {
      method,
      headers: {
        "X-API-Key": this.options.apiKey,
        ...(method === "POST" && {
          "Content-Type": isBinary ? "application/x-protobuf" : "application/json",
          "X-Idempotency-Key": idempotency,
        }),
        ...headers,
      },
      ...(body && { body: isBinary ? (body as Uint8Array<ArrayBuffer>) : JSON.stringify(body) }),
    };
  }
}

function kindOf({ status }: Failure): keyof Lost {
  if (status === PAYMENT_REQUIRED) return "unpaid";
  return status === TOO_MANY_REQUESTS ? "busy" : "failed";
}

function reply(response: Response, bytes: Uint8Array): Reply {
  const isJson = response.headers.get("content-type")?.includes("json") ?? false;
  return { status: response.status, bytes, json: isJson ? parse(bytes) : undefined };
}

function parse(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}

function failureOf(response: Response, bytes: Uint8Array): Failure {
  const { status, headers } = response;
  const wish = headers.get("x-should-retry");
  // An empty 400 is a proxy's, not the service's.
  const isWorthwhile =
    WORTH_A_RETRY.has(status) || status >= 500 || status === PAYMENT_REQUIRED || isEmpty400(status, bytes);
  return {
    status,
    message: detailOf(bytes) || response.statusText || "nothing more",
    retryable: wish === null ? isWorthwhile : wish === "true",
    pauseMs: status === PAYMENT_REQUIRED ? BILLING_PAUSE_MS : askedPause(headers),
  };
}

function isEmpty400(status: number, bytes: Uint8Array): boolean {
  return status === 400 && bytes.byteLength === 0;
}

function askedPause(headers: Headers): number | undefined {
  const ms = Number(headers.get("retry-after-ms") ?? Number.NaN);
  const asked = Number.isFinite(ms) ? ms : 1000 * Number(headers.get("retry-after") ?? Number.NaN);
  return asked > 0 && asked <= LONGEST_ASKED_PAUSE_MS ? asked : undefined;
}

/** What an answer says of a failure: FastAPI's `detail`, or its text. */
export function detailOf(bytes: Uint8Array): string {
  const LONGEST = 500;
  const text = new TextDecoder().decode(bytes.subarray(0, 4 * LONGEST));
  const told = (parse(bytes) as { detail?: unknown } | undefined)?.detail;
  return (told === undefined ? text : typeof told === "string" ? told : JSON.stringify(told)).slice(
    0,
    LONGEST,
  );
}

function reason(error: unknown): string {
  const cause = (error as { cause?: unknown }).cause ?? error;
  return cause instanceof Error ? cause.message : String(cause);
}

/** Half a second, doubled each time up to ten, less up to a quarter of it, so that clients do not come all at once. */
function backoff(attempt: number): number {
  return Math.min(FIRST_PAUSE_MS * 2 ** attempt, LONGEST_PAUSE_MS) * (1 - Math.random() / 4);
}

const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      const leave = () => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", leave);
        resolve();
      }, ms);
      if (signal?.aborted) leave();
      else signal?.addEventListener("abort", leave, { once: true });
    }),
};
