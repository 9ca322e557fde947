/**
 * Looks whether an agent that answered 202 is still there, so that an attempt whose agent has died fails before its time limit.
 * Any answer is a sign of life, whatever its status, because agents need not know the question; so is none in time, because a
 * server may be busy with the attempt itself. What counts is a connection that cannot be made, and the status 410.
 */
import type { FetchFunction } from "../../../chat/endpoint.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Asked } from "./answer.ts";

/** When an agent that owes a report is asked for. */
export interface AliveTimes {
  /** Time between two questions, ms. */
  readonly everyMs: number;
  /** How long an answer may take until the next question, ms. */
  readonly answerMs: number;
  /** Connections in a row that cannot be made until the attempt fails: a server may be started again. */
  readonly most: number;
}

export const ALIVE_TIMES: AliveTimes = { everyMs: 10_000, answerMs: 10_000, most: 3 };

export interface AliveOptions {
  readonly asked: Asked;
  /** Address that the 202 named; it is asked instead of the agent's. */
  readonly location: string | undefined;
  readonly fetch: FetchFunction;
  readonly times: AliveTimes;
  /** Ends the questions, quietly. */
  readonly signal: AbortSignal;
}

/** Never resolves. @throws {ConfigError} when the agent is gone */
export async function untilGone({ asked, location, fetch, times, signal }: AliveOptions): Promise<never> {
  const url = location ?? asked.url;
  for (let failed = 0; !signal.aborted; ) {
    await rest(times.everyMs, signal);
    if (signal.aborted) break;
    const found = await statusOf(url, { fetch, limit: AbortSignal.any([signal, AbortSignal.timeout(times.answerMs)]) });
    if (found === 410 && location !== undefined) throw gone(asked, `${url} answers 410`);
    failed = found instanceof Error ? failed + 1 : 0;
    if (found instanceof Error && failed >= times.most)
      throw gone(asked, `${url} cannot be reached, ${failed} times in a row (${found.message})`, found);
  }
  return new Promise<never>(() => {});
}

/** Undefined for no answer in time; an error for no connection. */
async function statusOf(
  url: string,
  { fetch, limit }: { fetch: FetchFunction; limit: AbortSignal },
): Promise<number | Error | undefined> {
  try {
    const response = await fetch(url, { method: "GET", redirect: "manual", signal: limit });
    await response.body?.cancel();
    return response.status;
  } catch (error) {
    if (limit.aborted) return undefined;
    return error instanceof Error ? error : new Error(String(error));
  }
}

function gone({ url, session_id }: Asked, why: string, cause?: Error): ConfigError {
  return new ConfigError(
    `Cannot wait for the agent ${url}, which answered 202 to the session ${session_id}: it is gone, ${why}. Keep its server running until it has reported.`,
    { kind: "code" },
    { cause },
  );
}

/** Ends early where the signal aborts: the caller looks. */
function rest(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}
