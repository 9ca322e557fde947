/**
 * The service behind the routes: sessions, training clients, samplers and checkpoints over the engines of its base models, independent of
 * HTTP. Accepted requests return a future; requests that cannot be accepted throw a {@link Refusal}.
 */
import { Activity } from "./activity.ts";
import { BaseModels, type ServedBaseModel } from "./base_models.ts";
import type { Checkpoints } from "./checkpoint/checkpoints.ts";
import { type PeerPlaces, Peers } from "./peers.ts";
import { Futures } from "./protocol/futures.ts";
import { Refusal } from "./protocol/outcome.ts";
import { SampledPolicies } from "./sample/policies.ts";
import { Samplers } from "./sample/samplers.ts";
import { Scheduler } from "./scheduler.ts";
import { TinkerSessions } from "./sessions.ts";
import { HandOvers } from "./stability/hand_over.ts";
import { Stability, type StableMethod } from "./stability/stability.ts";
import { TrainingRequests } from "./train/training_requests.ts";
import { TrainingRuns } from "./train/training_runs.ts";

export interface TinkerServiceLimits {
  /** Open sessions. */
  readonly sessions: number;
  /** When all sessions are taken, one without a sign of life for this long is ended, ms. */
  readonly idleMs: number;
  /** Training clients in memory. */
  readonly models: number;
  /** Samplers of one session; the least recently used one is dropped. */
  readonly samplers: number;
  /** Waiting sampling requests. */
  readonly queuedSamples: number;
  /** Waiting sampling requests of one session. */
  readonly queuedBySession: number;
  /** Requests of one training client that wait for a missing one. */
  readonly parked: number;
  /** How long they wait, ms. */
  readonly gapMs: number;
  /** A session without a sign of life for this long is ended, ms. */
  readonly sessionMs: number;
  /** Results kept for clients, bytes. */
  readonly resultBytes: number;
  /** Device memory for policies to sample from, bytes. */
  readonly policyBytes: number;
  /** Memory for sequences that were sampled for `stable_reinforce`, bytes. */
  readonly stabilityBytes: number;
  /** A base model without training clients is unloaded after this time without a request, ms. */
  readonly modelIdleMs: number;
}

export const DEFAULT_LIMITS: TinkerServiceLimits = {
  sessions: 256,
  idleMs: 60_000,
  models: 64,
  samplers: 1024,
  queuedSamples: 4096,
  queuedBySession: 2048,
  parked: 1024,
  gapMs: 120_000,
  sessionMs: 30 * 60_000,
  resultBytes: 512 * 2 ** 20,
  policyBytes: 2 ** 30,
  stabilityBytes: 512 * 2 ** 20,
  modelIdleMs: Number.POSITIVE_INFINITY,
};

export interface TinkerServiceOptions {
  /** The base models, whose engines share one device. */
  readonly models: readonly ServedBaseModel[];
  readonly checkpoints: Checkpoints;
  /** Servers whose checkpoints clients may sample from here. */
  readonly peers?: PeerPlaces | undefined;
  readonly limits?: Partial<TinkerServiceLimits> | undefined;
  /** The method that the loss `stable_reinforce` stands for, whose formula is not published. Absent: the name is refused. */
  readonly stableReinforce?: StableMethod | undefined;
  /** Takes one line for the operator of the server. */
  readonly log?: ((line: string) => void) | undefined;
}

const SWEEP_MS = 30_000;

export class TinkerService {
  readonly models: BaseModels;
  readonly checkpoints: Checkpoints;
  readonly limits: TinkerServiceLimits;
  readonly log: (line: string) => void;
  readonly futures: Futures;
  readonly scheduler = new Scheduler();
  readonly activity = new Activity();
  readonly sessions: TinkerSessions;
  readonly peers: Peers;
  readonly policies: SampledPolicies;
  readonly stability: Stability;
  readonly handOvers: HandOvers;
  readonly samplers: Samplers;
  readonly runs: TrainingRuns;
  readonly training: TrainingRequests;
  private readonly sweeper: ReturnType<typeof setInterval>;
  private sweeping: Promise<void> | undefined;
  private readonly stopping = new AbortController();
  private stopped: Promise<void> | undefined;

  constructor(options: TinkerServiceOptions) {
    this.checkpoints = options.checkpoints;
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.log = options.log ?? (() => {});
    this.models = new BaseModels({
      models: options.models,
      idleMs: this.limits.modelIdleMs,
      isHeld: (model) => this.runs.uses(model) || this.policies.needs(model),
      release: (model) => this.policies.close(model),
      log: this.log,
    });
    this.futures = new Futures({ budgetBytes: this.limits.resultBytes });
    this.sessions = new TinkerSessions({
      most: this.limits.sessions,
      idleMs: this.limits.idleMs,
      end: (id, why) => void this.endLogged(id, why),
    });
    this.policies = new SampledPolicies({
      models: this.models,
      checkpoints: this.checkpoints,
      scheduler: this.scheduler,
      budgetBytes: this.limits.policyBytes,
      onBatch: (batch) => this.activity.sampledBatch(batch),
      signal: this.stopping.signal,
    });
    const peers = {
      ...{ urls: [], apiKey: "", ...options.peers },
      checkpoints: this.checkpoints,
      stop: this.stopping.signal,
    };
    this.peers = new Peers({ ...peers, models: this.models });
    this.handOvers = new HandOvers(peers);
    this.stability = new Stability({ method: options.stableReinforce, budgetBytes: this.limits.stabilityBytes });
    this.samplers = new Samplers(this);
    this.runs = new TrainingRuns(this);
    this.training = new TrainingRequests(this);
    this.scheduler.prepare = () => {
      const { lost } = this.models;
      return lost.length > 0 ? this.reopen(lost) : undefined;
    };
    this.sweeper = setInterval(() => void this.sweepOnce(), Math.min(SWEEP_MS, this.limits.sessionMs));
  }

  /** After the loss of these models' device: opens it again, and says what was lost. Never rejects. */
  private async reopen(lost: readonly ServedBaseModel[]): Promise<void> {
    this.log("the GPU device was lost; it is opened again");
    try {
      this.runs.lose(lost);
      this.policies.lose(lost);
      await this.models.reopen(lost);
      this.log("the GPU device is open again; the base model and saved weights can be used");
    } catch (error) {
      this.log(`could not open the GPU device again: ${(error as Error).message}`);
    }
  }

  get isStopping(): boolean {
    return this.stopping.signal.aborted;
  }

  /** @throws Refusal 503 once {@link stop} has been called. */
  refuseWhileStopping(): void {
    if (this.isStopping) throw new Refusal(503, "Cannot accept work: the server is stopping.");
  }

  /** Ends a session and saves its unsaved training as a checkpoint for some days. */
  async endSession(id: string, why: string): Promise<void> {
    const session = this.sessions.remove(id);
    if (!session) return;
    this.policies.clear(id);
    for (const run of session.runs) await this.runs.end(run, why);
    for (const sampler of session.samplers) this.samplers.drop(sampler);
    this.policies.dropSession(id);
    this.futures.dropSession(id);
    this.stability.recorded.dropSession(id);
    this.scheduler.forget(id);
  }

  /** Sweeps unless a sweep is running, which may take long because it saves training. */
  private async sweepOnce(): Promise<void> {
    this.sweeping ??= this.sweep().finally(() => {
      this.sweeping = undefined;
    });
    await this.sweeping;
  }

  /**
   * Ends silent sessions, deletes expired checkpoints and unloads idle base models. Never rejects: what fails is logged, and does not keep the
   * rest from its turn.
   */
  private async sweep(): Promise<void> {
    const now = Date.now();
    this.stability.recorded.dropExpired();
    for (const { id, lastSeen } of [...this.sessions.values()])
      if (now - lastSeen > this.limits.sessionMs) {
        this.log(`session ${id} ended: no sign of life for ${Math.round((now - lastSeen) / 60_000)} min`);
        await this.endLogged(id, "its session ended without a sign of life");
      }
    await this.checkpoints
      .sweep()
      .catch((error: Error) => this.log(`could not delete expired checkpoints: ${error.message}`));
    if (this.models.hasIdle(now)) await this.scheduler.first(async () => this.models.unloadIdle(now));
  }

  private async endLogged(id: string, why: string): Promise<void> {
    await this.endSession(id, why).catch((error: Error) => this.log(`could not end session ${id}: ${error.message}`));
  }

  /**
   * Stops the work: waiting requests fail, running samples are aborted, unsaved training is saved. Results can still be
   * retrieved. Never rejects.
   */
  stop(): Promise<void> {
    this.stopped ??= this.stopOnce();
    return this.stopped;
  }

  private async stopOnce(): Promise<void> {
    clearInterval(this.sweeper);
    const reason = new Refusal(503, "Cannot run the request: the server is stopping.");
    this.stopping.abort(reason);
    for (const run of this.runs.values()) run.refuseQueued(reason);
    this.policies.clear();
    await Promise.all([...this.runs.values()].map((run) => this.runs.rescue(run)));
    await this.scheduler.idle();
  }

  /** Frees everything. */
  close(): void {
    clearInterval(this.sweeper);
    this.futures.wakeAll();
    for (const run of this.runs.values()) run.release("Cannot use the model: the server has stopped.");
    this.policies.release();
    this.models.close();
    this.checkpoints.close();
  }
}
