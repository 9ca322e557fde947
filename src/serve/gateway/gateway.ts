/** The gateway behind its routes: sessions, models, workers and the recorder, independent of HTTP. */
import {
  type ChatEngine,
  createFetch,
  type FetchFunction,
  ResponseMemory,
  ResponseStore,
} from "../../chat/endpoint.ts";
import { ApiError } from "../../chat/request.ts";
import { TextWork } from "../../chat/text_work.ts";
import type { SessionOutcome, TraceRecord, TraceStore } from "../../engine/contract/trace.ts";
import { ByteBudget } from "../../leaves/http/budget.ts";
import type { JsonBody } from "../../leaves/http/json_body.ts";
import { LOCAL_CALLER } from "./auth.ts";
import { guardedEngine } from "./guarded_engine.ts";
import { GATEWAY_LIMITS, type GatewayLimits } from "./limits.ts";
import type { LiveSession } from "./live_session.ts";
import type { GatewayOptions } from "./options.ts";
import { CallRecorder } from "./record.ts";
import { RetryCache } from "./retry_cache.ts";
import { RunningCalls } from "./running.ts";
import { UnreadStreams } from "./sent.ts";
import { pathOf } from "./session_id.ts";
import { GatewaySessions } from "./sessions.ts";
import { cumulativeEngine } from "./workers/cumulative.ts";
import type { FieldSettings } from "./workers/fields.ts";
import { WorkerHistory } from "./workers/history.ts";
import { WorkerPool } from "./workers/pool.ts";
import { askWorker, type WorkerAnswer } from "./workers/send.ts";

/** A session as the trainer sees it for one attempt. */
export interface OpenSession {
  readonly session_id: string;
  /** Path of the session's OpenAI base URL: `/sessions/{id}/v1`. */
  readonly path: string;
  /** Works for this session alone, and until it ends. */
  readonly key: string;
  /** The body of the agent's `POST /sessions/{id}/reward`; never rejects. */
  readonly reported: Promise<unknown>;
  /** Writes the outcome, refuses further calls and aborts running ones. Of several calls the first counts. */
  end(outcome: Omit<SessionOutcome, "ended_at">): Promise<void>;
}

export interface SessionRequest {
  /** Answers the session's calls. */
  readonly engine: ChatEngine;
  /** Default: a random one. */
  readonly session_id?: string | undefined;
  readonly metadata?: Readonly<Record<string, unknown>> | undefined;
  /** Overwrite those of each request. */
  readonly sampling_params?: Readonly<Record<string, unknown>> | undefined;
}

/** Key in the place of a model's name, for the engine of a session. */
const OWN = "";
/** How long calls that were ended may take to write their traces, ms: a sampler notices with its next token. */
const ENDING_MS = 10_000;

export class GatewayService {
  readonly store: TraceStore;
  readonly limits: GatewayLimits;
  readonly bodies: ByteBudget;
  readonly unread: UnreadStreams;
  readonly retryCache: RetryCache;
  readonly recorder: CallRecorder;
  readonly sessions: GatewaySessions;
  readonly workers: WorkerPool;
  readonly running = new RunningCalls();
  /** Fields that requests for workers get, and their answers lose. */
  readonly fields: FieldSettings;
  readonly startedAt = Date.now();
  /** Version of the workers' weights, set by the trainer; our own engines report theirs with each reply. */
  weightVersion: number | null = null;
  readonly log: (line: string) => void;
  private isStopping = false;
  private readonly options: GatewayOptions;
  /** APIs for calls without a session, by caller and model. */
  private readonly apis = new Map<string, Promise<FetchFunction>>();
  /** Text work of all sessions in cumulative token mode. */
  private texts: TextWork | undefined;
  private readonly memory: ResponseMemory;
  /** Responses of calls without a session, by caller. */
  private readonly responses = new Map<string, ResponseStore>();

  constructor(options: GatewayOptions) {
    const { store, syncTraces, log = () => {} } = options;
    this.options = options;
    this.log = log;
    this.store = store;
    this.limits = { ...GATEWAY_LIMITS, ...options.limits };
    this.bodies = new ByteBudget(this.limits.allBodyBytes);
    this.unread = new UnreadStreams(this.limits.unreadBytes);
    this.memory = new ResponseMemory(this.limits.responseBytes);
    this.retryCache = new RetryCache(this.limits.undeliveredBytes);
    this.recorder = new CallRecorder({ store, syncTraces, log, mostBytes: this.limits.unwrittenBytes });
    const { sessions: most, sessionBytes: mostBytes } = this.limits;
    this.sessions = new GatewaySessions({
      store,
      most,
      mostBytes,
      settled: (ids) => this.settledOf(ids),
      putEnd: (session) => this.recorder.putSession(session),
    });
    this.workers = new WorkerPool({ log, ...options.workers });
    this.fields = options.workers ?? {};
  }

  get models(): readonly string[] {
    return this.options.engines?.models ?? [];
  }

  /** The model that a request means: the gateway's, else the request's. */
  modelOf(requested: unknown): string | undefined {
    return this.options.model ?? (typeof requested === "string" ? requested : undefined);
  }

  /**
   * The APIs of the model that a call means; a session's own engine answers whatever model it names. Calls without a
   * session share those of their caller.
   * @throws {ApiError} 404 for a model that is not served
   */
  async apiOf(session: LiveSession | undefined, requested: unknown, caller = ""): Promise<FetchFunction> {
    const model = session?.engine ? OWN : (this.modelOf(requested) ?? this.models[0]);
    if (model === undefined || (model !== OWN && !this.models.includes(model))) throw this.noModel(model);
    const apis = session?.apis ?? this.apis;
    const key = session ? model : JSON.stringify([caller, model]);
    const api = apis.get(key) ?? this.openApi(session, model, caller);
    apis.set(key, api);
    // A failure is not kept.
    return api.catch((error: unknown) => {
      apis.delete(key);
      throw error;
    });
  }

  /** Responses that calls of a session, or of a caller without one, can continue, whichever model gave them. */
  responsesOf(session: LiveSession | undefined, caller: string): ResponseStore {
    if (session) {
      session.responses ??= new ResponseStore(this.memory);
      return session.responses;
    }
    const store = this.responses.get(caller) ?? new ResponseStore(this.memory);
    this.responses.set(caller, store);
    return store;
  }

  private async openApi(session: LiveSession | undefined, model: string, owner: string): Promise<FetchFunction> {
    const responses = this.responsesOf(session, owner);
    if (!session)
      return createFetch(this.guarded(await this.options.engines!.open({ model, owner, history: [] })), { responses });
    const engine = session.engine ?? (await this.openEngine(session, { model, owner }));
    return this.recordedApi(session, engine);
  }

  private recordedApi(session: LiveSession, engine: ChatEngine): FetchFunction {
    const responses = this.responsesOf(session, "");
    const recorded = this.recorder.wrap(engine, {
      session_id: session.id,
      get metadata() {
        return session.record.metadata;
      },
      onReply: (trace) => this.sessions.remember(session, trace),
    });
    return createFetch(this.guarded(recorded, session.id), { responses });
  }

  private guarded(engine: ChatEngine, session?: string): ChatEngine {
    return guardedEngine(engine, { calls: this.running, session, log: this.log });
  }

  /** Resolves when calls of sessions that were ended have left, with their traces stored or given up. */
  private async settledOf(ids: ReadonlySet<string>): Promise<void> {
    await this.running.settled(ENDING_MS, ids);
    await this.recorder.settled(ids);
  }

  /** Whether sessions continue on exact tokens at workers. */
  get isCumulative(): boolean {
    return this.options.workers?.tokenizer !== undefined;
  }

  /** The APIs of a session whose model workers have, in cumulative token mode. */
  async cumulativeApi(session: LiveSession, model: string | undefined): Promise<FetchFunction> {
    const key = `worker ${model ?? ""}`;
    const api = session.apis.get(key) ?? this.openCumulative(session, model);
    session.apis.set(key, api);
    // A failure is not kept.
    return api.catch((error: unknown) => {
      session.apis.delete(key);
      throw error;
    });
  }

  private async openCumulative(session: LiveSession, model: string | undefined): Promise<FetchFunction> {
    const traces = await this.restored(session);
    const history = traces.filter((trace) => trace.model === (model ?? ""));
    for (const trace of history) this.sessions.remember(session, trace);
    const { tokenizer, thread } = this.options.workers!;
    this.texts ??= new TextWork({ tokenizer: tokenizer!, thread });
    const engine = cumulativeEngine({
      model,
      tokenizer: tokenizer!,
      texts: this.texts,
      history,
      weightVersion: () => this.weightVersion,
      ask: (body, signal = session.ending.signal) => this.askCompletions(session, { body, model, signal }),
    });
    return this.recordedApi(session, engine);
  }

  private askCompletions(
    session: LiveSession,
    asked: { body: JsonBody; model: string | undefined; signal: AbortSignal },
  ): Promise<WorkerAnswer> {
    const headers = new Headers({ "content-type": "application/json" });
    const to = { method: "POST", path: "/v1/completions", headers, session: session.id, pool: this.workers };
    return askWorker({ ...to, ...asked });
  }

  private async openEngine(
    session: LiveSession,
    { model, owner: caller }: { model: string; owner: string },
  ): Promise<ChatEngine> {
    const { id: session_id } = session;
    // Callers without keys are not told apart: each of their sessions takes its own turns.
    const owner = caller === LOCAL_CALLER ? undefined : caller;
    const history = await this.restored(session);
    const ofModel = history.filter((trace) => trace.model === model);
    for (const trace of ofModel) this.sessions.remember(session, trace);
    return this.options.engines!.open({ model, session_id, owner, history: ofModel });
  }

  /** A session may have left memory before its last call was stored. */
  private async restored({ id }: LiveSession): Promise<readonly TraceRecord[]> {
    await this.recorder.settled();
    return this.store.traces({ session_id: id });
  }

  /** Returns the answers of the session's workers, from the store where they are not remembered. */
  async historyOf(session: LiveSession): Promise<WorkerHistory> {
    session.history ??= this.restored(session).then((traces) => {
      for (const trace of traces) this.sessions.remember(session, trace);
      return new WorkerHistory(traces);
    });
    // A failure is not kept.
    return session.history.catch((error: unknown) => {
      delete session.history;
      throw error;
    });
  }

  private noModel(model: string | undefined): ApiError {
    if (this.models.length === 0)
      return new ApiError(
        "Cannot answer: no model is served and no worker is known. Add one with POST /admin/workers.",
        {
          status: 503,
          type: "server_error",
          code: "no_worker",
        },
      );
    return new ApiError(
      `Cannot answer for the model ${JSON.stringify(model ?? "")}: it is not served. Known: ${this.models.join(", ")}.`,
      { status: 404, code: "model_not_found", param: "model" },
    );
  }

  /** Opens a session that an engine of its own answers, with a key of its own. @throws {ApiError} for an id in use */
  async openSession(request: SessionRequest): Promise<OpenSession> {
    const { session_id = crypto.randomUUID(), ...others } = request;
    const key = `grpu-${crypto.randomUUID()}`;
    let report: (body: unknown) => void = () => {};
    const reported = new Promise<unknown>((resolve) => {
      report = resolve;
    });
    const session = await this.sessions.create({ ...others, session_id, key, onReport: report });
    const path = `${pathOf(session_id)}/v1`;
    return { session_id, path, key, reported, end: (outcome) => this.sessions.end(session, outcome) };
  }

  /** Loads what there is to load. @throws what it reports: the caller is an administrator */
  async reload(): Promise<void> {
    await this.options.reload?.();
  }

  /** @throws {ApiError} 503 while the gateway stops */
  checkOpen(): void {
    if (this.isStopping) throw stopping("Cannot answer: the gateway is stopping.");
  }

  /**
   * Refuses new calls, lets those that run finish for at most `graceMs` (default 0), ends the others, and writes what is
   * left, the traces of ended calls included. The store stays open: its opener closes it.
   */
  async close({ graceMs = 0 }: { readonly graceMs?: number } = {}): Promise<void> {
    this.isStopping = true;
    await this.running.settled(graceMs);
    const reason = stopping("Cannot finish the reply: the gateway is stopping.");
    for (const session of this.sessions.values()) session.ending.abort(reason);
    this.running.abort(reason);
    if (!(await this.running.settled(ENDING_MS)))
      this.log(
        `warning: ${this.running.unfinished} calls did not end within ${ENDING_MS / 1000} s; what they sampled is lost`,
      );
    this.workers.close();
    await this.recorder.close();
  }
}

function stopping(message: string): ApiError {
  return new ApiError(message, { status: 503, type: "server_error", code: "stopping" });
}
