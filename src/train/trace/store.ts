/** Features of our stores beyond the contract, and how they are opened. */
import type { SessionRecord, SessionSummary, TraceStore } from "../../engine/contract/trace.ts";

/** How a store is opened. */
export interface StoreOptions {
  /** Seconds since 1970: what a trace's insertion is dated with. Default: the system's clock. */
  readonly now?: () => number;
}

/** Contents of a store. */
export interface StoreSize {
  readonly sessions: number;
  readonly traces: number;
  /** Bytes of the traces: JSON text in a database, packed arrays and JSON text in memory. */
  readonly bytes: number;
}

/** Change from sessions as they are to those that replace them. */
export type SessionChange = (found: readonly (SessionSummary | undefined)[]) => readonly SessionRecord[];

/** A store of this package. */
export interface OpenTraceStore extends TraceStore {
  /**
   * Reads sessions and writes what `change` makes of them, as one step: all of it is stored or nothing, and no other
   * program writes in between. `found` is in the order of the ids, undefined for an unknown one.
   */
  changeSessions(sessionIds: readonly string[], change: SessionChange): Promise<void>;
  size(): Promise<StoreSize>;
}

export function systemSeconds(): number {
  return Date.now() / 1000;
}

/** A listing's facts about the traces of one session, by the time of their insertion. */
export interface SessionTraces {
  readonly count: number;
  readonly first_at: number | null;
  readonly last_at: number | null;
}

/**
 * A session as it is listed. One that no `putSession` announced (another program wrote its traces) was created with its
 * first trace.
 */
export function summaryOf(
  session: SessionRecord | undefined,
  session_id: string,
  { count, first_at, last_at }: SessionTraces,
): SessionSummary {
  const record = session ?? { session_id, metadata: {}, created_at: first_at ?? 0 };
  return { ...record, trace_count: count, first_at, last_at };
}

/** Newest first; of the same second by id, so that every store lists them alike. */
export function newestFirst(a: SessionSummary, b: SessionSummary): number {
  if (a.created_at !== b.created_at) return b.created_at - a.created_at;
  return a.session_id < b.session_id ? -1 : 1;
}

/** Whether anything happened in a session at or after `since`. */
export function isSince({ created_at, last_at }: SessionSummary, since: number | undefined): boolean {
  return since === undefined || Math.max(created_at, last_at ?? created_at) >= since;
}
