/** Limits on one caller: requests at once, requests a minute, bytes of a body. */
import { ApiError } from "../../chat/request.ts";
import type { CallerId } from "./auth.ts";

/** Limits of a gateway's callers, for each and for all together. */
export interface GatewayLimits {
  /** Calls of one key or session that run at the same time. */
  readonly concurrency: number;
  /** Calls of one key or session in a minute; a burst may use them at once. */
  readonly perMinute: number;
  /** Largest size of one body, bytes. */
  readonly bodyBytes: number;
  /** Largest total of all bodies that are being answered, bytes. */
  readonly allBodyBytes: number;
  /** Most letters of a session's metadata, and of its sampling parameters, as JSON: every trace repeats the metadata. */
  readonly metadataLetters: number;
  /** Sessions kept in memory; those longest unused go first, and are restored from the store. */
  readonly sessions: number;
  /** Approximate bytes that the calls of sessions in memory may hold together; beyond it those longest unused go as well. */
  readonly sessionBytes: number;
  /** Bytes that responses named by `previous_response_id` may hold together; beyond it the oldest go. */
  readonly responseBytes: number;
  /** Bytes of streams that their readers leave unread, all together; one alone may hold a sixteenth. Beyond it they end. */
  readonly unreadBytes: number;
  /** Bytes of answers that their clients left before they had them, with their requests; beyond it the oldest go. */
  readonly undeliveredBytes: number;
  /** Approximate bytes of traces that the store has not taken yet; beyond it new ones are dropped. */
  readonly unwrittenBytes: number;
}

export const GATEWAY_LIMITS: GatewayLimits = {
  concurrency: 1024,
  perMinute: 60_000,
  bodyBytes: 32 * 2 ** 20,
  allBodyBytes: 512 * 2 ** 20,
  metadataLetters: 64 * 2 ** 10,
  sessions: 10_000,
  sessionBytes: 256 * 2 ** 20,
  responseBytes: 64 * 2 ** 20,
  unreadBytes: 256 * 2 ** 20,
  undeliveredBytes: 64 * 2 ** 20,
  unwrittenBytes: 256 * 2 ** 20,
};

interface Use {
  running: number;
  /** Calls that may start now; grows with time up to a minute's. */
  left: number;
  at: number;
}

const MINUTE_MS = 60_000;

/** Counts the calls of each caller. */
export class CallLimits {
  private readonly limits: GatewayLimits;
  /** The one longest unused comes first. */
  private readonly uses = new Map<CallerId, Use>();

  constructor(limits: GatewayLimits) {
    this.limits = limits;
  }

  /** Counts a call until the returned function is called; calling it again does nothing. @throws {ApiError} 429 */
  enter(caller: CallerId): () => void {
    const use = this.refilled(caller);
    const { concurrency, perMinute } = this.limits;
    if (use.running >= concurrency) throw tooMany(`${use.running} calls of this key run already`);
    if (use.left < 1) throw tooMany(`the key has used its ${perMinute} calls a minute`);
    use.left--;
    use.running++;
    let isRunning = true;
    return () => {
      if (isRunning) use.running--;
      isRunning = false;
    };
  }

  private refilled(caller: CallerId): Use {
    const now = performance.now();
    const { perMinute } = this.limits;
    const use = this.uses.get(caller) ?? { running: 0, left: perMinute, at: now };
    use.left = Math.min(perMinute, use.left + ((now - use.at) / MINUTE_MS) * perMinute);
    use.at = now;
    this.uses.delete(caller);
    this.uses.set(caller, use);
    this.forgetIdle(now);
    return use;
  }

  /** Session keys come and go: a caller that is as good as new is forgotten. */
  private forgetIdle(now: number): void {
    for (const [caller, { running, at }] of this.uses) {
      if (this.uses.size <= this.limits.sessions || now - at < MINUTE_MS) return;
      if (running === 0) this.uses.delete(caller);
    }
  }
}

function tooMany(rule: string): ApiError {
  return new ApiError(`Cannot answer now: ${rule}. Try again in a moment.`, {
    status: 429,
    type: "rate_limit_error",
    code: "rate_limit_exceeded",
  });
}
