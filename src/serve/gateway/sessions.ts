/** Sessions in memory: the engines that answer them, and what their calls have in common. */
import type { ChatEngine } from "../../chat/endpoint.ts";
import { ApiError } from "../../chat/request.ts";
import type { SessionOutcome, SessionRecord, TraceRecord, TraceStore } from "../../engine/contract/trace.ts";
import { digestOf, fromHex, toHex } from "../../leaves/http/key.ts";
import type { GuardedSession } from "./auth.ts";
import { type CountedCall, LiveSession } from "./live_session.ts";
import { ended, endedBefore, taken } from "./session_errors.ts";

/** Models that sessions share. */
export interface ModelHost {
  /** Names for requests; the first is the default. */
  readonly models: readonly string[];
  /**
   * An engine for one session, or for one request without a session. `history` holds the session's earlier calls, oldest
   * first, where the gateway does not remember them: an engine that continues conversations restores them.
   */
  open(of: {
    readonly model: string;
    readonly session_id?: string;
    /** Sender of the requests: callers take turns. Absent: the session does. */
    readonly owner?: string | undefined;
    readonly history: readonly TraceRecord[];
  }): ChatEngine | Promise<ChatEngine>;
}

export interface NewSession {
  readonly session_id: string;
  readonly metadata?: Readonly<Record<string, unknown>> | undefined;
  readonly sampling_params?: Readonly<Record<string, unknown>> | undefined;
  readonly engine?: ChatEngine | undefined;
  readonly key?: string | undefined;
  readonly onReport?: ((body: unknown) => void) | undefined;
  /** Starts a session again that has ended, or that has a key of its own: for runs and administrators. Default: with an engine. */
  readonly mayReplace?: boolean | undefined;
}

/** How a session ended, without the time. */
export type SessionEnding = Omit<SessionOutcome, "ended_at">;

type PutSession = (session: SessionRecord) => Promise<void>;

export class GatewaySessions {
  private readonly store: TraceStore;
  private readonly most: number;
  private readonly mostBytes: number;
  private held = 0;
  /** The one longest unused comes first. */
  private readonly live = new Map<string, LiveSession>();
  /** The last work of each session that writes to the store. */
  private readonly turns = new Map<string, Promise<void>>();

  /** Resolves when calls that were ended have left, with their traces stored. */
  private readonly settled: (ids: ReadonlySet<string>) => Promise<void>;

  private readonly put: PutSession;
  /** Tries again where the store fails. */
  private readonly putEnd: PutSession;

  constructor(parts: {
    readonly store: TraceStore;
    readonly most: number;
    readonly mostBytes: number;
    readonly settled: (ids: ReadonlySet<string>) => Promise<void>;
    readonly putEnd: PutSession;
  }) {
    this.store = parts.store;
    this.put = (session) => parts.store.putSession(session);
    this.putEnd = parts.putEnd;
    this.settled = parts.settled;
    this.most = parts.most;
    this.mostBytes = parts.mostBytes;
  }

  get count(): number {
    return this.live.size;
  }

  /** Approximate bytes that the calls of all sessions hold in memory. */
  get bytes(): number {
    return this.held;
  }

  values(): Iterable<LiveSession> {
    return this.live.values();
  }

  /** A session in memory, without a look at the store. */
  get(id: string): LiveSession | undefined {
    return this.live.get(id);
  }

  /** Returns the demands of a session, in memory or not, on its callers. */
  async guardOf(id: string): Promise<GuardedSession> {
    return this.live.get(id) ?? { id, key: keyOf(await this.store.getSession(id)) };
  }

  /**
   * Creates a session, or replaces its metadata and parameters.
   * @throws {ApiError} 409 for the id of a session that a run uses; unless `mayReplace`, also for one that has ended or has
   * a key of its own
   */
  create(request: NewSession): Promise<LiveSession> {
    return this.inTurn([request.session_id], () => this.createNow(request));
  }

  private async createNow(request: NewSession): Promise<LiveSession> {
    const {
      session_id: id,
      metadata = {},
      sampling_params,
      engine,
      onReport,
      mayReplace = engine !== undefined,
    } = request;
    const stored = await this.store.getSession(id);
    const before = this.live.get(id);
    const storedKey = before?.key ?? keyOf(stored);
    if (before?.engine || (storedKey && !mayReplace)) throw taken(id);
    if (stored?.outcome && !mayReplace) throw endedBefore(id, "create");
    const key = request.key === undefined ? storedKey : await digestOf(request.key);
    const record: SessionRecord = {
      session_id: id,
      metadata,
      created_at: stored?.created_at ?? Date.now() / 1000,
      ...(sampling_params && { sampling_params }),
      ...(key && { key_digest: toHex(key) }),
    };
    await this.store.putSession(record);
    if (before && !engine && key === storedKey) {
      this.change(before, () => {
        before.record = record;
      });
      return before;
    }
    before?.ending.abort(ended());
    return this.add(new LiveSession(record, { key, engine, onReport }));
  }

  /**
   * The session of that id: in memory, from the store, or a new one, because the first call may announce it.
   * @throws {ApiError} 410 for one that has ended
   */
  async ensure(id: string): Promise<LiveSession> {
    const live = this.live.get(id);
    if (live) {
      this.live.delete(id);
      this.live.set(id, live);
      return live;
    }
    return this.inTurn([id], () => this.open(id));
  }

  private async open(id: string): Promise<LiveSession> {
    const live = this.live.get(id);
    if (live) return live;
    const stored = await this.store.getSession(id);
    if (stored?.outcome) throw ended();
    if (!stored) return this.createNow({ session_id: id });
    const { trace_count, first_at, last_at, ...record } = stored;
    return this.add(new LiveSession(record, { key: keyOf(record) }));
  }

  /** One after the other for each session, so that what was read of the store still holds when it is written. */
  private inTurn<T>(ids: readonly string[], work: () => Promise<T>): Promise<T> {
    const workTurn = Promise.all(ids.map((id) => this.turns.get(id))).then(work);
    const turn = workTurn
      .then(
        () => {},
        () => {},
      )
      .then(() => {
        for (const id of ids) if (this.turns.get(id) === turn) this.turns.delete(id);
      });
    for (const id of ids) this.turns.set(id, turn);
    return workTurn;
  }

  private add(session: LiveSession): LiveSession {
    this.remove(session.id);
    this.live.set(session.id, session);
    this.held += session.bytes;
    this.makeRoom(session);
    return session;
  }

  /** Counts what a session remembers of a call; others that are idle may make room. An engine of a run's own is the run's. */
  remember(session: LiveSession, call: CountedCall): void {
    if (!session.engine) this.change(session, () => session.count(call));
  }

  private change(session: LiveSession, make: () => void): void {
    const before = session.bytes;
    make();
    // One that was ended or deleted meanwhile is counted no more.
    if (this.live.get(session.id) !== session) return;
    this.held += session.bytes - before;
    this.makeRoom(session);
  }

  /** A session with an engine of its own stays until its run ends it. */
  private makeRoom(besides: LiveSession): void {
    for (const session of this.live.values()) {
      if (this.live.size <= this.most && this.held <= this.mostBytes) return;
      if (session.running === 0 && !session.engine && session !== besides) this.remove(session.id);
    }
  }

  private remove(id: string): void {
    const session = this.live.get(id);
    this.held -= session?.bytes ?? 0;
    session?.responses?.clear();
    this.live.delete(id);
  }

  /**
   * Writes how a run's session ended, and refuses further calls. Running calls are aborted. Of several outcomes the first
   * counts that is stored.
   */
  end(session: LiveSession, outcome: SessionEnding): Promise<void> {
    const { written } = session;
    if (written) return written;
    if (!session.isEndedByRun) {
      // It was deleted or replaced, or the gateway stops.
      if (session.ending.signal.aborted) return Promise.resolve();
      session.ending.abort(ended());
      this.remove(session.id);
      session.isEndedByRun = true;
    }
    const writing = this.inTurn([session.id], () => this.putOutcome(session.record, outcome, this.putEnd));
    session.written = writing;
    return writing.catch((error: unknown) => {
      // The next call tries again.
      session.written = undefined;
      throw error;
    });
  }

  /** Gives the agent's report to the run that waits for it. @throws {ApiError} 409 for a second one */
  hand(session: LiveSession, body: unknown): void {
    if (session.isReported) throw endedBefore(session.id, "reward");
    session.isReported = true;
    session.onReport?.(body);
  }

  /**
   * Writes how a session ended, from its agent or an evaluator.
   * @param report.mayReplace takes the place of an earlier outcome
   * @throws {ApiError} 404 for an unknown session; 409 for one that has ended, unless `mayReplace`
   */
  report(id: string, report: { readonly outcome: SessionEnding; readonly mayReplace: boolean }): Promise<void> {
    return this.inTurn([id], async () => {
      const stored = await this.store.getSession(id);
      const record = this.live.get(id)?.record ?? stored;
      if (!record) throw new ApiError(`Cannot reward the session ${id}: it does not exist.`, { status: 404 });
      if (stored?.outcome && !report.mayReplace) throw endedBefore(id, "reward");
      this.live.get(id)?.ending.abort(ended());
      this.remove(id);
      await this.putOutcome(record, report.outcome);
    });
  }

  private async putOutcome(record: SessionRecord, outcome: SessionEnding, put = this.put): Promise<void> {
    const { session_id, metadata, created_at, sampling_params, key_digest } = record;
    const created = {
      session_id,
      metadata,
      created_at,
      ...(sampling_params && { sampling_params }),
      ...(key_digest !== undefined && { key_digest }),
    };
    await put({ ...created, outcome: { ...outcome, ended_at: Date.now() / 1000 } });
  }

  /**
   * Deletes sessions with their traces. Running calls are aborted; what they write comes before, because a trace that
   * comes after would bring its session back without its key.
   * @returns the number of traces
   */
  delete(ids: readonly string[]): Promise<number> {
    return this.inTurn(ids, async () => {
      for (const id of ids) {
        this.live.get(id)?.ending.abort(ended());
        this.remove(id);
      }
      await this.settled(new Set(ids));
      return this.store.deleteSessions(ids);
    });
  }
}

function keyOf(record: SessionRecord | undefined): Uint8Array | undefined {
  return record?.key_digest === undefined ? undefined : fromHex(record.key_digest);
}

/** A session as answers and pages show it. */
export function withoutKey<T extends SessionRecord>({ key_digest: _, ...session }: T): Omit<T, "key_digest"> {
  return session;
}
