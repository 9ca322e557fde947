/** A trace store in memory: for a run that trains on its traces and keeps none. */

import type { SessionRecord, SessionSummary, TraceQuery, TraceRecord } from "../../engine/contract/trace.ts";
import { parseJson, stringifyJson } from "../../leaves/json.ts";
import { type PackedTrace, packedBytes, packTrace, unpackTrace } from "./packed.ts";
import {
  isSince,
  newestFirst,
  type OpenTraceStore,
  type SessionChange,
  type StoreOptions,
  type StoreSize,
  summaryOf,
  systemSeconds,
} from "./store.ts";

interface Kept {
  readonly packed: PackedTrace;
  readonly created_at: number;
  /** Rank of its first insertion. */
  readonly place: number;
  /** The session of every `putTrace` with this id. */
  readonly sessions: ReadonlySet<string>;
}

/** Keeps traces in memory, under the rules of the SQLite store. */
export class MemoryTraceStore implements OpenTraceStore {
  /** A key that is set again keeps its place in a Map. */
  readonly #traces = new Map<string, Kept>();
  readonly #sessions = new Map<string, string>();
  /** Trace ids of each session. */
  readonly #members = new Map<string, Set<string>>();
  readonly #now: () => number;
  #places = 0;

  constructor({ now = systemSeconds }: StoreOptions = {}) {
    this.#now = now;
  }

  async putTrace(trace: TraceRecord): Promise<void> {
    const { trace_id, session_id } = trace;
    const before = this.#traces.get(trace_id);
    const created_at = before?.created_at ?? this.#now();
    const place = before?.place ?? this.#places++;
    const sessions = new Set([...(before?.sessions ?? []), session_id]);
    this.#traces.set(trace_id, { packed: packTrace(trace), created_at, place, sessions });
    const members = this.#members.get(session_id);
    if (members) members.add(trace_id);
    else this.#members.set(session_id, new Set([trace_id]));
  }

  async getTrace(traceId: string): Promise<TraceRecord | undefined> {
    const kept = this.#traces.get(traceId);
    return kept && unpackTrace(kept.packed);
  }

  async traces({ session_id, trace_ids, since, limit }: TraceQuery): Promise<readonly TraceRecord[]> {
    const wanted = trace_ids && new Set(trace_ids);
    const found: TraceRecord[] = [];
    for (const [id, { packed, created_at }] of this.#tracesOf(session_id)) {
      if (limit !== undefined && found.length >= limit) break;
      if (wanted && !wanted.has(id)) continue;
      if (since === undefined || created_at >= since) found.push(unpackTrace(packed));
    }
    return found;
  }

  /** Yields the traces of one session or of all, oldest first. */
  #tracesOf(sessionId: string | undefined): Iterable<readonly [string, Kept]> {
    if (sessionId === undefined) return this.#traces;
    const members = Array.from(this.#members.get(sessionId) ?? [], (id) => [id, this.#traces.get(id)!] as const);
    return members.sort(([, a], [, b]) => a.place - b.place);
  }

  async putSession(session: SessionRecord): Promise<void> {
    this.#sessions.set(session.session_id, stringifyJson(session));
  }

  async changeSessions(sessionIds: readonly string[], change: SessionChange): Promise<void> {
    for (const session of change(sessionIds.map((id) => this.#summary(id))))
      this.#sessions.set(session.session_id, stringifyJson(session));
  }

  async getSession(sessionId: string): Promise<SessionSummary | undefined> {
    return this.#summary(sessionId);
  }

  #summary(sessionId: string): SessionSummary | undefined {
    const json = this.#sessions.get(sessionId);
    const members = this.#members.get(sessionId);
    if (json === undefined && !members) return undefined;
    const times = Array.from(members ?? [], (id) => this.#traces.get(id)!.created_at);
    const record = json === undefined ? undefined : (parseJson(json) as SessionRecord);
    return summaryOf(record, sessionId, {
      count: times.length,
      first_at: times.length > 0 ? Math.min(...times) : null,
      last_at: times.length > 0 ? Math.max(...times) : null,
    });
  }

  async sessions({ since, limit }: Pick<TraceQuery, "since" | "limit">): Promise<readonly SessionSummary[]> {
    const ids = new Set([...this.#sessions.keys(), ...this.#members.keys()]);
    const summaries = Array.from(ids, (id) => this.#summary(id));
    const listed = summaries.filter((session) => session !== undefined).filter((session) => isSince(session, since));
    return listed.sort(newestFirst).slice(0, limit);
  }

  async deleteSessions(sessionIds: readonly string[]): Promise<number> {
    return sessionIds.reduce((deleted, id) => deleted + this.#deleteSession(id), 0);
  }

  #deleteSession(sessionId: string): number {
    const members = this.#members.get(sessionId) ?? [];
    this.#members.delete(sessionId);
    this.#sessions.delete(sessionId);
    let deleted = 0;
    for (const id of members) {
      const kept = this.#traces.get(id)!;
      const sessions = new Set(kept.sessions);
      sessions.delete(sessionId);
      if (sessions.size > 0) this.#traces.set(id, { ...kept, sessions });
      else if (this.#traces.delete(id)) deleted++;
    }
    return deleted;
  }

  async size(): Promise<StoreSize> {
    let bytes = 0;
    for (const { packed } of this.#traces.values()) bytes += packedBytes(packed);
    const sessions = new Set([...this.#sessions.keys(), ...this.#members.keys()]);
    return { sessions: sessions.size, traces: this.#traces.size, bytes };
  }

  async flush(): Promise<void> {}

  async close(): Promise<void> {}
}
