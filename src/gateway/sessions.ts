/** Sessions in memory: the engines that answer them, and what their calls have in common. */
import type { ChatEngine, FetchFunction } from "../chat/endpoint.ts";
import { ApiError } from "../chat/request.ts";
import type { SessionOutcome, SessionRecord, TraceRecord, TraceStore } from "../contract/trace.ts";
import { digestOf } from "../http/key.ts";
import type { WorkerHistory } from "./workers/history.ts";

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
    /** Who sends the requests: callers take turns. Absent: the session does. */
    readonly owner?: string | undefined;
    readonly history: readonly TraceRecord[];
  }): ChatEngine | Promise<ChatEngine>;
}

/** A session that calls can go to. */
export interface LiveSession {
  readonly id: string;
  record: SessionRecord;
  /** Digest of its own key; without one, agents' keys open it. */
  readonly key?: Uint8Array | undefined;
  /** Answers its calls, whatever model they name. */
  readonly engine?: ChatEngine | undefined;
  /** Its APIs on shared models, by name. They remember the session's calls. */
  readonly apis: Map<string, Promise<FetchFunction>>;
  /** Aborts its running calls when it ends. */
  readonly ending: AbortController;
  /** Takes the agent's report; absent where the store takes it. */
  readonly onReport?: ((body: unknown) => void) | undefined;
  running: number;
  /** About what its calls hold in memory. */
  bytes: number;
  /** What workers said to it. */
  history?: Promise<WorkerHistory>;
}

export interface NewSession {
  readonly session_id: string;
  readonly metadata?: Readonly<Record<string, unknown>> | undefined;
  readonly sampling_params?: Readonly<Record<string, unknown>> | undefined;
  readonly engine?: ChatEngine | undefined;
  readonly key?: string | undefined;
  readonly onReport?: ((body: unknown) => void) | undefined;
}

/**
 * Of each token of a call, prompt included: its id in the prompt and in the index of prefixes, and its text in the rendered
 * prompt, the messages and their keys. A conversation repeats its earlier turns in each call.
 */
const BYTES_PER_TOKEN = 40;
/** Of each call beside: objects, closures, listeners. */
const BYTES_PER_CALL = 8 * 2 ** 10;

/** About what a session remembers of a call. */
export function rememberedBytes({ token_counts }: Pick<TraceRecord, "token_counts">): number {
  return BYTES_PER_CALL + BYTES_PER_TOKEN * (token_counts.prompt + token_counts.completion);
}

export class Sessions {
  private readonly store: TraceStore;
  private readonly most: number;
  private readonly mostBytes: number;
  private held = 0;
  /** The one longest unused comes first. */
  private readonly live = new Map<string, LiveSession>();
  private readonly opening = new Map<string, Promise<LiveSession>>();

  constructor(it: { readonly store: TraceStore; readonly most: number; readonly mostBytes: number }) {
    this.store = it.store;
    this.most = it.most;
    this.mostBytes = it.mostBytes;
  }

  get count(): number {
    return this.live.size;
  }

  /** About what the calls of all sessions hold in memory. */
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

  /**
   * Creates a session, or replaces its metadata and parameters.
   * @throws {ApiError} 409 for the id of a session with a key or an engine of its own
   */
  async create(given: NewSession): Promise<LiveSession> {
    const { session_id, metadata = {}, sampling_params } = given;
    const before = this.live.get(session_id);
    if (before?.key || before?.engine) throw taken(session_id);
    const known = await this.store.getSession(session_id);
    const record: SessionRecord = {
      session_id,
      metadata,
      created_at: known?.created_at ?? Date.now() / 1000,
      ...(sampling_params && { sampling_params }),
    };
    await this.store.putSession(record);
    if (before && !given.engine && given.key === undefined) {
      before.record = record;
      return before;
    }
    const key = given.key === undefined ? undefined : await digestOf(given.key);
    const { engine, onReport } = given;
    return this.add({ ...fresh(record), key, engine, onReport });
  }

  /** The session of that id: in memory, from the store, or a new one, because the first call may announce it. */
  async ensure(id: string): Promise<LiveSession> {
    const known = this.live.get(id);
    if (known) {
      this.live.delete(id);
      this.live.set(id, known);
      return known;
    }
    const opening = this.opening.get(id) ?? this.open(id).finally(() => this.opening.delete(id));
    this.opening.set(id, opening);
    return opening;
  }

  private async open(id: string): Promise<LiveSession> {
    const stored = await this.store.getSession(id);
    if (stored?.outcome) throw ended();
    if (!stored) return this.create({ session_id: id });
    const { trace_count, first_at, last_at, ...record } = stored;
    return this.live.get(id) ?? this.add(fresh(record));
  }

  private add(session: LiveSession): LiveSession {
    this.remove(session.id);
    this.live.set(session.id, session);
    this.makeRoom(session);
    return session;
  }

  /** Counts what a session remembers of a call; others that are idle may make room. An engine of a run's own is the run's. */
  remember(session: LiveSession, trace: Pick<TraceRecord, "token_counts">): void {
    if (session.engine) return;
    const bytes = rememberedBytes(trace);
    session.bytes += bytes;
    // One that was ended or deleted meanwhile is counted no more.
    if (this.live.get(session.id) !== session) return;
    this.held += bytes;
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
    this.held -= this.live.get(id)?.bytes ?? 0;
    this.live.delete(id);
  }

  /** Writes how it ended, and refuses further calls where it has a key of its own. Running calls are aborted. */
  async end(session: LiveSession, outcome: Omit<SessionOutcome, "ended_at">): Promise<void> {
    if (session.ending.signal.aborted) return;
    session.ending.abort(ended());
    this.remove(session.id);
    await this.putOutcome(session.record, outcome);
  }

  /** How a session ended, from its agent or an evaluator; a later report replaces it. */
  async report(id: string, record: SessionRecord, outcome: Omit<SessionOutcome, "ended_at">): Promise<void> {
    this.live.get(id)?.ending.abort(ended());
    this.remove(id);
    await this.putOutcome(record, outcome);
  }

  private async putOutcome(record: SessionRecord, outcome: Omit<SessionOutcome, "ended_at">): Promise<void> {
    const { session_id, metadata, created_at, sampling_params } = record;
    const own = { session_id, metadata, created_at, ...(sampling_params && { sampling_params }) };
    await this.store.putSession({ ...own, outcome: { ...outcome, ended_at: Date.now() / 1000 } });
  }

  /** Deletes sessions with their traces; running calls are aborted. @returns the number of traces */
  async delete(ids: readonly string[]): Promise<number> {
    for (const id of ids) {
      this.live.get(id)?.ending.abort(ended());
      this.remove(id);
    }
    return this.store.deleteSessions(ids);
  }
}

function fresh(record: SessionRecord): LiveSession {
  const { session_id: id } = record;
  return { id, record, apis: new Map(), ending: new AbortController(), running: 0, bytes: 0 };
}

function taken(id: string): ApiError {
  return new ApiError(`Cannot create the session ${id}: a run uses it. Choose another session_id.`, {
    status: 409,
    code: "session_exists",
  });
}

function ended(): ApiError {
  return new ApiError("Cannot call the session: it has ended.", { status: 410, code: "session_ended" });
}
