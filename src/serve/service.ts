/**
 * The service behind the routes: sessions, training clients, samplers and checkpoints over one engine. Knows nothing of
 * HTTP. Methods that take work answer at once with a future; what they refuse at once is a {@link Refusal}.
 */
import type { OptimParams } from "../contract/backend.ts";
import type { Engine, LossRequest, LossRows, TrainerConfig } from "../contract/engine.ts";
import type { Checkpoints } from "./checkpoint/checkpoints.ts";
import { Activity } from "./page/activity.ts";
import { type Future, Futures } from "./protocol/futures.ts";
import { Refusal } from "./protocol/outcome.ts";
import { Policies } from "./sample/policies.ts";
import type { PromptRequest } from "./sample/prompt_request.ts";
import { type NewSampler, type Sampler, Samplers, type Samples } from "./sample/samplers.ts";
import { Scheduler } from "./scheduler.ts";
import { type Session, Sessions } from "./sessions.ts";
import type { TrainingRun } from "./train/training_run.ts";
import { type NewModel, type Numbered, type SaveTarget, Training } from "./train/training_runs.ts";

export interface ServiceLimits {
  /** Sessions at once. */
  readonly sessions: number;
  /** Without a sign of life for this long a session gives way when all are taken, ms. */
  readonly idleMs: number;
  /** Training clients in memory at once. */
  readonly models: number;
  /** Samplers of one session; those used longest ago give way. */
  readonly samplers: number;
  /** Sampling requests that may wait. */
  readonly queuedSamples: number;
  /** Sampling requests of one session that may wait. */
  readonly queuedBySession: number;
  /** Requests of a training client that may wait for one that has not arrived. */
  readonly parked: number;
  /** How long they wait, ms. */
  readonly gapMs: number;
  /** A session without a sign of life for this long ends, ms. */
  readonly sessionMs: number;
  /** Results kept for clients to read again, bytes. */
  readonly resultBytes: number;
  /** Device memory for policies to sample from, bytes. */
  readonly policyBytes: number;
}

export const DEFAULT_LIMITS: ServiceLimits = {
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
};

export interface ServiceOptions {
  readonly engine: Engine;
  readonly checkpoints: Checkpoints;
  /** Names under which clients ask for the base model; the first is the one it is told by. */
  readonly modelNames: readonly string[];
  readonly limits?: Partial<ServiceLimits> | undefined;
  /** One line for whoever runs the server. */
  readonly log?: ((line: string) => void) | undefined;
}

const SWEEP_MS = 30_000;

export class TinkerService {
  readonly engine: Engine;
  readonly checkpoints: Checkpoints;
  readonly futures: Futures;
  readonly policies: Policies;
  readonly scheduler = new Scheduler();
  readonly activity = new Activity();
  readonly sessions: Sessions;
  readonly samplers: Samplers;
  readonly training: Training;
  readonly limits: ServiceLimits;
  readonly modelNames: readonly string[];
  readonly log: (line: string) => void;
  private readonly sweeper: ReturnType<typeof setInterval>;
  private readonly stopping = new AbortController();
  private stopped: Promise<void> | undefined;

  constructor(options: ServiceOptions) {
    this.engine = options.engine;
    this.checkpoints = options.checkpoints;
    this.modelNames = options.modelNames;
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.log = options.log ?? (() => {});
    this.futures = new Futures({ budgetBytes: this.limits.resultBytes });
    this.sessions = new Sessions({
      most: this.limits.sessions,
      idleMs: this.limits.idleMs,
      end: (id, why) => void this.endSession(id, why),
    });
    this.policies = new Policies({
      engine: this.engine,
      checkpoints: this.checkpoints,
      scheduler: this.scheduler,
      budgetBytes: this.limits.policyBytes,
      onBatch: (batch) => this.activity.sampledBatch(batch),
      signal: this.stopping.signal,
    });
    this.samplers = new Samplers(this);
    this.training = new Training(this);
    this.sweeper = setInterval(() => void this.sweep(), SWEEP_MS);
  }

  /** Training clients in memory, by id. */
  get runs(): ReadonlyMap<string, TrainingRun> {
    return this.training.runs;
  }

  // --- sessions

  createSession(userMetadata: Readonly<Record<string, unknown>>): Session {
    this.refuseWhileStopping();
    return this.sessions.create(userMetadata);
  }

  /** The session, which has shown a sign of life. @throws Refusal 404 */
  session(id: string): Session {
    return this.sessions.find(id);
  }

  /** Ends a session; unsaved training is kept as a checkpoint for some days. Never rejects. */
  async endSession(id: string, why: string): Promise<void> {
    const session = this.sessions.remove(id);
    if (!session) return;
    this.policies.clear(id);
    for (const run of session.runs) await this.training.end(run, why);
    for (const sampler of session.samplers) this.samplers.drop(sampler);
    this.policies.dropSession(id);
    this.futures.dropSession(id);
    this.scheduler.forget(id);
  }

  // --- training: see Training

  createModel(of: NewModel & { baseModel: string; config: TrainerConfig }): Future {
    this.refuseWhileStopping();
    return this.training.createModel(of);
  }

  createModelFrom(of: NewModel & { path: string; optimizer: boolean }): Future {
    this.refuseWhileStopping();
    return this.training.createModelFrom(of);
  }

  run(id: string): TrainingRun {
    return this.training.run(id);
  }

  skip(of: Numbered, at: { kind: "forward_backward" | "save"; reason: Refusal }): void {
    if (!this.stopping.signal.aborted) this.training.skip(of, at);
  }

  forwardBackward(
    of: Numbered,
    request: { rows: () => LossRows; loss: LossRequest; forwardOnly: boolean },
  ): Future {
    this.refuseWhileStopping();
    return this.training.forwardBackward(of, request);
  }

  optimStep(of: Numbered, params: OptimParams): Future {
    this.refuseWhileStopping();
    return this.training.optimStep(of, params);
  }

  saveWeights(of: Numbered, to: SaveTarget): Future {
    this.refuseWhileStopping();
    return this.training.saveWeights(of, to);
  }

  snapshot(of: Numbered & { samplerNumber: number }): Future {
    this.refuseWhileStopping();
    return this.training.snapshot(of);
  }

  loadWeights(of: Numbered, from: { path: string; optimizer: boolean }): Future {
    this.refuseWhileStopping();
    return this.training.loadWeights(of, from);
  }

  unload(modelId: string): Future {
    this.refuseWhileStopping();
    return this.training.unload(modelId);
  }

  // --- sampling: see Samplers

  createSampler(of: NewSampler): Sampler {
    this.refuseWhileStopping();
    return this.samplers.create(of, this.sessions.find(of.session));
  }

  /** @throws Refusal 404 */
  sampler(id: string): Sampler {
    const sampler = this.samplers.find(id);
    this.samplers.used(sampler, this.sessions.find(sampler.session));
    return sampler;
  }

  sample(
    sampler: Sampler,
    of: { number?: bigint | undefined; print: string; order: PromptRequest },
  ): Samples {
    this.refuseWhileStopping();
    return this.samplers.sample(sampler, of);
  }

  /** Takes a sampling request back that has not begun. */
  cancel(futureId: string): void {
    this.samplers.cancel(futureId);
  }

  // --- the end

  private refuseWhileStopping(): void {
    if (this.stopping.signal.aborted) throw new Refusal(503, "Cannot take work: the server is stopping.");
  }

  /** Ends silent sessions and deletes expired checkpoints. Never rejects: nobody would hear of it. */
  private async sweep(): Promise<void> {
    const now = Date.now();
    for (const { id, lastSeen } of [...this.sessions.values()])
      if (now - lastSeen > this.limits.sessionMs) {
        this.log(`session ${id} ended: no sign of life for ${Math.round((now - lastSeen) / 60_000)} min`);
        await this.endSession(id, "its session ended without a sign of life");
      }
    await this.checkpoints.sweep();
  }

  /**
   * Takes no more work: what waits is refused, samples in hand are given up, and unsaved training is kept. Results can
   * be read meanwhile. Never rejects.
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
    await Promise.all([...this.runs.values()].map((run) => this.training.rescue(run)));
    await this.scheduler.idle();
  }

  /** Frees everything. */
  close(): void {
    clearInterval(this.sweeper);
    this.futures.wakeAll();
    for (const run of this.runs.values()) run.release("Cannot use the model: the server has stopped.");
    this.policies.release();
    this.engine.close();
    this.checkpoints.close();
  }
}
