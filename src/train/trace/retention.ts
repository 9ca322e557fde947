/** How much a trace store keeps: the oldest sessions go first, each as a whole. */
import type { SessionSummary } from "../../engine/contract/trace.ts";
import type { OpenTraceStore } from "./store.ts";

/** Limits of a store; absent: none. */
export interface Retention {
  /** Seconds since the store got the last call, or the session ended. */
  readonly max_age_s?: number | undefined;
  readonly max_traces?: number | undefined;
  /** Limit in bytes as `size()` counts them. */
  readonly max_bytes?: number | undefined;
}

/** Counts of deleted sessions and traces. */
export interface Pruned {
  readonly sessions: number;
  readonly traces: number;
}

/** A session without an outcome whose last call is younger than this is still running, and stays. */
export const RUNNING_S = 600;

/** Deletes the oldest sessions until the store keeps to its limits. */
export async function prune(
  store: OpenTraceStore,
  { retention, now }: { readonly retention: Retention; readonly now: number },
): Promise<Pruned> {
  const sessions = (await store.sessions({})).filter((session) => !isRunning(session, now));
  const oldestFirst = sessions.toSorted((a, b) => activeAt(a) - activeAt(b));
  const toDelete = new Set(oldestFirst.filter((each) => now - activeAt(each) > (retention.max_age_s ?? Infinity)));
  let { traces } = await store.size();
  for (const session of toDelete) traces -= session.trace_count;
  for (const session of oldestFirst) {
    if (traces <= (retention.max_traces ?? Infinity)) break;
    if (toDelete.has(session)) continue;
    toDelete.add(session);
    traces -= session.trace_count;
  }
  const deleted = { sessions: toDelete.size, traces: await deleteAll(store, [...toDelete]) };
  const left = oldestFirst.filter((session) => !toDelete.has(session));
  const more = await shrink(store, { sessions: left, max_bytes: retention.max_bytes ?? Infinity });
  return { sessions: deleted.sessions + more.sessions, traces: deleted.traces + more.traces };
}

/** Deletes in rounds, because how many bytes a session takes shows only when it is gone. */
async function shrink(
  store: OpenTraceStore,
  { sessions, max_bytes }: { sessions: SessionSummary[]; max_bytes: number },
): Promise<Pruned> {
  const pruned = { sessions: 0, traces: 0 };
  while (sessions.length > 0) {
    const { bytes } = await store.size();
    if (bytes <= max_bytes) break;
    const share = (bytes - max_bytes) / bytes;
    const oldest = sessions.splice(0, Math.max(1, Math.floor(sessions.length * share)));
    pruned.sessions += oldest.length;
    pruned.traces += await deleteAll(store, oldest);
  }
  return pruned;
}

async function deleteAll(store: OpenTraceStore, sessions: readonly SessionSummary[]): Promise<number> {
  return sessions.length > 0 ? store.deleteSessions(sessions.map(({ session_id }) => session_id)) : 0;
}

function activeAt({ created_at, last_at, outcome }: SessionSummary): number {
  return Math.max(created_at, last_at ?? created_at, outcome?.ended_at ?? created_at);
}

function isRunning(session: SessionSummary, now: number): boolean {
  return session.outcome === undefined && now - activeAt(session) < RUNNING_S;
}

/** Puts between two looks at the limits. */
const PUTS_PER_LOOK = 256;

/** The store, kept to its limits from its opening on: it is looked at once, and after every 256 puts. */
export async function withRetention(
  store: OpenTraceStore,
  { retention, now }: { readonly retention: Retention; readonly now: () => number },
): Promise<OpenTraceStore> {
  const look = () => prune(store, { retention, now: now() });
  await look();
  let puts = 0;
  const putTrace: OpenTraceStore["putTrace"] = async (trace) => {
    await store.putTrace(trace);
    if (++puts % PUTS_PER_LOOK === 0) await look();
  };
  return {
    putTrace,
    getTrace: (id) => store.getTrace(id),
    traces: (query) => store.traces(query),
    putSession: (session) => store.putSession(session),
    changeSessions: (ids, change) => store.changeSessions(ids, change),
    getSession: (id) => store.getSession(id),
    sessions: (query) => store.sessions(query),
    deleteSessions: (ids) => store.deleteSessions(ids),
    flush: () => store.flush(),
    close: () => store.close(),
    size: () => store.size(),
  };
}
