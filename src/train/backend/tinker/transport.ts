/**
 * Calls to the service, tried again as the official SDK does: which failures, after which pause, and for how long in
 * total. All attempts of a call carry one idempotency key.
 */

import { type Clock, SYSTEM_CLOCK } from "../../../leaves/clock.ts";
import { RemoteError } from "../../../leaves/errors.ts";
import { attempt, type FailedAttempt, PAYMENT_REQUIRED, type TinkerCall, TOO_MANY_REQUESTS } from "./attempt.ts";
import type { HttpReply } from "./reply.ts";

export interface TransportOptions {
  /** Paths are appended to it. */
  readonly baseUrl: string;
  /** Sent as X-API-Key and never shown. */
  readonly apiKey: string;
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
  readonly clock?: Clock | undefined;
  /** Time limit of one attempt of a call that sets no time of its own, ms. Default 60 s. */
  readonly timeoutMs?: number | undefined;
  /** How long a failing call is tried again, ms. Default 5 minutes. */
  readonly patienceMs?: number | undefined;
  /** How long to wait for a paused account (402), and for a busy service (429), ms. Default 1 hour each. */
  readonly pausePatienceMs?: number | undefined;
  /** Aborted on shutdown: from then on retries stop after 10 s. */
  readonly hurry?: AbortSignal | undefined;
  /** Takes messages for the user; each is given at most once a minute. */
  readonly notify?: ((message: string) => void) | undefined;
}

const PATIENCE_MS = 5 * 60_000;
const HURRIED_PATIENCE_MS = 10_000;
const PAUSE_PATIENCE_MS = 60 * 60_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
/** Shortest pause of all paced calls after one of them got 429. */
const PACE_MS = 1_000;
const BETWEEN_NOTICES_MS = 60_000;
/** Failures are reported once they have lasted this long. */
const SILENT_MS = 10_000;

/** The time that a call has lost so far, ms, by the kind of failure. */
interface Lost {
  failed: number;
  busy: number;
  unpaid: number;
}

export class Transport {
  private readonly options: TransportOptions;
  readonly clock: Clock;
  /** Aborts the calls that have no signal of their own. */
  stop: AbortSignal | undefined;
  /** Time until which paced calls wait. */
  private pacedUntil = 0;
  /** The time of each message's latest notice. */
  private readonly noticed = new Map<string, number>();

  constructor(options: TransportOptions) {
    this.options = options;
    this.clock = options.clock ?? SYSTEM_CLOCK;
  }

  /** Gives the user a message, at most once a minute. */
  notify(message: string): void {
    const now = this.clock.now();
    if (now - (this.noticed.get(message) ?? Number.NEGATIVE_INFINITY) < BETWEEN_NOTICES_MS) return;
    this.noticed.set(message, now);
    this.options.notify?.(message);
  }

  /** @throws {RemoteError} for a refused request, and for failures that outlast the patience. */
  async call(path: string, request: TinkerCall = {}): Promise<HttpReply> {
    const { baseUrl, apiKey, fetch, timeoutMs } = this.options;
    const call = { ...(timeoutMs && { timeoutMs }), ...request, signal: request.signal ?? this.stop };
    const to = { url: baseUrl + path, apiKey, fetch, idempotencyKey: crypto.randomUUID() };
    const lost: Lost = { failed: 0, busy: 0, unpaid: 0 };
    for (let count = 0; ; count++) {
      const began = this.clock.now();
      // Another call may prolong the pause while this one sleeps.
      while (call.isPaced && this.clock.now() < this.pacedUntil)
        await this.clock.sleep(this.pacedUntil - this.clock.now(), call.signal);
      const outcome = await attempt(call, to);
      if (!("message" in outcome)) return outcome;
      const kind = kindOf(outcome);
      if (call.isPaced && kind === "busy") this.pacedUntil = this.clock.now() + Math.max(outcome.pauseMs ?? 0, PACE_MS);
      const pauseMs = outcome.pauseMs ?? backoff(count);
      this.refuseUnretryable(path, { failure: outcome, lostMs: lost[kind], pauseMs });
      this.report(outcome, lost[kind]);
      await this.clock.sleep(pauseMs, call.signal);
      lost[kind] += this.clock.now() - began;
    }
  }

  private refuseUnretryable(
    path: string,
    { failure, lostMs, pauseMs }: { failure: FailedAttempt; lostMs: number; pauseMs: number },
  ): void {
    const isOver = lostMs + pauseMs > this.patienceFor(kindOf(failure));
    if (failure.retryable && !isOver) return;
    const { status, message, retryable } = failure;
    const answer = status === undefined ? message : `it answered ${status}: ${message}`;
    const tried = failure.retryable ? ` Tried for ${Math.round(lostMs / 1000)} s.` : "";
    throw new RemoteError(`Cannot call ${this.options.baseUrl}${path}: ${answer.replace(/\.$/, "")}.${tried}`, {
      status,
      retryable,
    });
  }

  private report(failure: FailedAttempt, lostMs: number): void {
    const kind = kindOf(failure);
    if (kind === "unpaid") this.notify(`the service has paused the account; trying again: ${failure.message}`);
    // A short 429 is how the service paces its clients.
    if (kind === "busy" && lostMs > BETWEEN_NOTICES_MS)
      this.notify(`the service is busy; trying again: ${failure.message}`);
    if (kind === "failed" && lostMs > SILENT_MS)
      this.notify(`the service at ${this.options.baseUrl} fails; trying again: ${failure.message}`);
  }

  private patienceFor(kind: keyof Lost): number {
    const { patienceMs = PATIENCE_MS, pausePatienceMs = PAUSE_PATIENCE_MS, hurry } = this.options;
    const most = kind === "failed" ? patienceMs : pausePatienceMs;
    return hurry?.aborted ? Math.min(most, HURRIED_PATIENCE_MS) : most;
  }
}

function kindOf({ status }: FailedAttempt): keyof Lost {
  if (status === PAYMENT_REQUIRED) return "unpaid";
  return status === TOO_MANY_REQUESTS ? "busy" : "failed";
}

/** 0.5 s, doubled up to 10 s, less a random part of up to a quarter that spreads the clients. */
function backoff(count: number): number {
  return Math.min(FIRST_PAUSE_MS * 2 ** count, LONGEST_PAUSE_MS) * (1 - Math.random() / 4);
}
