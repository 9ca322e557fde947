/**
 * The service behind the routes: sessions, training clients, samplers and checkpoints over one engine. Knows nothing of
 * HTTP. Methods that take work answer at once with a future; what they refuse at once is a {@link Refusal}.
 */
import type { OptimParams } from "../backend.ts";
import type { Engine, LossRequest, LossRows, TrainerConfig } from "../engine.ts";
import { ConfigError } from "../errors.ts";
import { Activity } from "./activity.ts";
import {
  type CheckpointKind,
  type CheckpointPath,
  checkName,
  formatPath,
  parsePath,
  type RunRecord,
} from "./checkpoint_record.ts";
import type { Checkpoints } from "./checkpoints.ts";
import { type Future, Futures, type QueueState } from "./futures.ts";
import { encodeTrainingOutput } from "./messages.ts";
import { Policies } from "./policies.ts";
import { type Outcome, Refusal } from "./problem.ts";
import type { SampleOrder } from "./sample_order.ts";
import { type Sampler, Samplers, type Samples } from "./samplers.ts";
import { type Operation, TrainingRun } from "./training_run.ts";
import { Turns } from "./turns.ts";

export interface ServiceLimits {
  /** Sessions at once. */
  readonly sessions: number;
  /** Training clients in memory at once. */
  readonly models: number;
  /** Sampling requests that may wait. */
  readonly queuedSamples: number;
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
  models: 64,
  queuedSamples: 4096,
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
  readonly limits?: Partial<ServiceLimits>;
  /** One line for whoever runs the server. */
  readonly log?: (line: string) => void;
}

export interface Session {
  readonly id: string;
  readonly created: string;
  readonly userMetadata: Readonly<Record<string, unknown>>;
  readonly runs: Set<string>;
  readonly samplers: Set<string>;
  /** What was asked under a number before: `model 0`, `sampler 3`. */
  readonly asked: Map<string, { future?: Future; print: string }>;
  lastSeen: number;
}

/** What is saved of unsaved training when a session ends without a word: seconds. */
const RESCUE_TTL_SECONDS = 7 * 24 * 3600;
const SWEEP_MS = 30_000;

export class TinkerService {
  readonly engine: Engine;
  readonly checkpoints: Checkpoints;
  readonly futures: Futures;
  readonly policies: Policies;
  readonly turns = new Turns();
  readonly activity = new Activity();
  readonly sessions = new Map<string, Session>();
  readonly runs = new Map<string, TrainingRun>();
  readonly samplers: Samplers;
  readonly limits: ServiceLimits;
  readonly modelNames: readonly string[];
  private readonly log: (line: string) => void;
  private readonly sweeper: ReturnType<typeof setInterval>;
  private isStopping = false;

  constructor(options: ServiceOptions) {
    this.engine = options.engine;
    this.checkpoints = options.checkpoints;
    this.modelNames = options.modelNames;
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.log = options.log ?? (() => {});
    this.futures = new Futures({ budgetBytes: this.limits.resultBytes });
    this.policies = new Policies({
      engine: this.engine,
      checkpoints: this.checkpoints,
      turns: this.turns,
      budgetBytes: this.limits.policyBytes,
      onBatch: (batch) => this.activity.sampledBatch(batch),
    });
    this.samplers = new Samplers(this);
    this.sweeper = setInterval(() => void this.sweep(), SWEEP_MS);
  }

  // --- sessions

  createSession(userMetadata: Readonly<Record<string, unknown>>): Session {
    this.refuseWhileStopping();
    if (this.sessions.size >= this.limits.sessions)
      throw new Refusal(
        429,
        `Cannot open a session as ${this.sessions.size} are open, the most there may be.`,
      );
    const session: Session = {
      id: crypto.randomUUID(),
      created: new Date().toISOString(),
      userMetadata,
      runs: new Set(),
      samplers: new Set(),
      asked: new Map(),
      lastSeen: Date.now(),
    };
    this.sessions.set(session.id, session);
    return session;
  }

  /** The session, which has shown a sign of life. @throws Refusal 404 */
  session(id: string): Session {
    const session = this.sessions.get(id);
    if (!session)
      throw new Refusal(
        404,
        `Cannot find the session ${id.slice(0, 100)}: it has ended, or the server was started anew since. Open a new one (a new ServiceClient); checkpoints are still there.`,
      );
    session.lastSeen = Date.now();
    return session;
  }

  /** Ends a session; unsaved training is kept as a checkpoint for some days. */
  async endSession(id: string, why: string): Promise<void> {
    const session = this.sessions.get(id);
    if (!session) return;
    this.sessions.delete(id);
    for (const run of session.runs) await this.endRun(run, why);
    for (const sampler of session.samplers) this.samplers.drop(sampler);
    this.policies.dropSession(id);
    this.futures.dropSession(id);
  }

  private async endRun(id: string, why: string): Promise<void> {
    const run = this.runs.get(id);
    if (!run) return;
    await this.rescue(run);
    this.runs.delete(id);
    run.release(`Cannot use the model ${id}: ${why}.`);
  }

  /** Saves what an interrupted client could want to resume from. */
  private async rescue(run: TrainingRun): Promise<void> {
    if (run.unsavedSteps === 0 || !run.trainer) return;
    const name = `unsaved-step-${run.trainer.step}`;
    const future = this.open(run);
    run.enqueue(
      this.saveOperation(run, {
        future,
        kind: "weights",
        name,
        ttlSeconds: RESCUE_TTL_SECONDS,
        overwrite: true,
      }),
    );
    const outcome = await this.futures.wait(future.id, { holdMs: 10 * 60_000 });
    if (outcome?.kind === "json") this.log(`kept unsaved training: ${outcome.body.path}`);
    else
      this.log(
        `could not keep unsaved training of ${run.name}: ${outcome?.kind === "failure" ? outcome.error : "no answer"}`,
      );
  }

  // --- training

  /** @param at.print stands for the request's content, against repeats of another one. */
  createModel(of: {
    session: string;
    number: number;
    baseModel: string;
    config: TrainerConfig;
    userMetadata?: Readonly<Record<string, unknown>>;
    print: string;
  }): Future {
    return this.openRun(of, async () => ({ type: "create_model" }));
  }

  /** A training client made from a checkpoint in one request. */
  createModelFrom(of: {
    session: string;
    number: number;
    path: string;
    optimizer: boolean;
    userMetadata?: Readonly<Record<string, unknown>>;
    print: string;
  }): Future {
    const { dir, record } = this.checkpoints.find(parsePath(of.path));
    const { config, baseModel } = this.checkpoints.findRun(record.run);
    return this.openRun({ ...of, config, baseModel }, async (run) => {
      await run.trainer?.load(dir, of);
      return { path: of.path, type: "load_weights" };
    });
  }

  private openRun(
    of: {
      session: string;
      number: number;
      baseModel: string;
      config: TrainerConfig;
      userMetadata?: Readonly<Record<string, unknown>>;
      print: string;
    },
    then: (run: TrainingRun) => Promise<Readonly<Record<string, unknown>>>,
  ): Future {
    this.refuseWhileStopping();
    const session = this.session(of.session);
    const known = askedBefore(session, { key: `model ${of.number}`, print: of.print });
    if (known?.future) return known.future;
    const run = this.newRun(session, of);
    const future = this.open(run);
    session.asked.set(`model ${of.number}`, { future, print: of.print });
    run.enqueue({
      kind: "create",
      future,
      run: async () => {
        const extra = await then(run);
        await this.checkpoints.putRun(run.record);
        return json({ model_id: run.name, ...extra });
      },
    });
    return future;
  }

  private newRun(
    session: Session,
    of: {
      number: number;
      baseModel: string;
      config: TrainerConfig;
      userMetadata?: Readonly<Record<string, unknown>>;
    },
  ): TrainingRun {
    const now = new Date().toISOString();
    const record: RunRecord = {
      id: `${session.id}:train:${of.number}`,
      session: session.id,
      baseModel: this.modelNames[0],
      config: of.config,
      userMetadata: of.userMetadata,
      created: now,
      lastRequest: now,
    };
    const run = new TrainingRun(record, {
      create: async () => {
        this.checkBaseModel(of.baseModel);
        this.checkRoom(run);
        return this.engine.createTrainer(of.config);
      },
      futures: this.futures,
      turns: this.turns,
      gapMs: this.limits.gapMs,
      mostParked: this.limits.parked,
    });
    this.runs.set(run.name, run);
    session.runs.add(run.name);
    return run;
  }

  private checkBaseModel(name: string): void {
    if (this.modelNames.includes(name)) return;
    throw new ConfigError(
      `Cannot use the base model ${JSON.stringify(name)} as this server has another one: ${this.modelNames.join(", ")}.`,
      { path: "base_model" },
    );
  }

  private checkRoom(wanted: TrainingRun): void {
    const loaded = [...this.runs.values()].filter((run) => run.trainer && run !== wanted).length;
    if (loaded < this.limits.models) return;
    throw new ConfigError(
      `Cannot make another training client as ${loaded} are in memory, the most there may be. Unload one, or close its session.`,
    );
  }

  /** @throws Refusal 404 */
  run(id: string): TrainingRun {
    const run = this.runs.get(id);
    if (run) {
      this.session(run.record.session);
      run.record = { ...run.record, lastRequest: new Date().toISOString() };
      return run;
    }
    const saved = this.checkpoints.list(id)[0];
    const hint = saved
      ? `Resume from ${formatPath(saved)} (create_training_client_from_state_with_optimizer).`
      : "It left no checkpoint.";
    throw new Refusal(
      404,
      `Cannot find the model ${id.slice(0, 100)} in memory: its session has ended, or the server was started anew since. ${hint}`,
    );
  }

  private open(run: TrainingRun): Future {
    const state = (): QueueState =>
      run.sequence.parkedCount > 0
        ? { queue_state: "active", queue_state_reason: `waiting for seq_id ${run.sequence.missing}` }
        : { queue_state: "active" };
    return this.futures.open({ session: run.record.session, modelId: run.name, state });
  }

  private submit(
    of: { modelId: string; number: bigint; print: string },
    make: (run: TrainingRun, future: Future) => Operation,
  ): Future {
    this.refuseWhileStopping();
    const run = this.run(of.modelId);
    return run.sequence.submit(of.number, { print: of.print, make: () => make(run, this.open(run)) });
  }

  /**
   * Counts a request's number as used although the request was refused: the client goes on behind it, and what comes
   * next must not wait for it.
   */
  skip(
    of: { modelId: string; number: bigint; print: string },
    at: { kind: "forward_backward" | "save"; reason: Refusal },
  ): void {
    const run = this.runs.get(of.modelId);
    if (of.number <= 0n || !run || run.sequence.isUsed(of.number)) return;
    this.submit(of, (_, future) => ({ kind: at.kind, future, run: () => Promise.reject(at.reason) }));
  }

  forwardBackward(
    of: { modelId: string; number: bigint; print: string },
    request: { rows: () => LossRows; loss: LossRequest; forwardOnly: boolean },
  ): Future {
    const { forwardOnly } = request;
    return this.submit(of, (_, future) => ({
      kind: forwardOnly ? "forward" : "forward_backward",
      future,
      run: async (trainer) => {
        const rows = request.rows();
        const { logprobs, metrics } = await trainer.forwardBackward(rows, request);
        if (!forwardOnly) this.activity.trained(rows.tokens.length);
        return { kind: "proto", bytes: encodeTrainingOutput({ logprobs, offsets: rows.offsets, metrics }) };
      },
    }));
  }

  optimStep(of: { modelId: string; number: bigint; print: string }, params: OptimParams): Future {
    return this.submit(of, (_, future) => ({
      kind: "optim_step",
      future,
      run: async (trainer) => {
        const metrics = await trainer.optimStep(params);
        this.activity.steps++;
        return json({ metrics, type: "optim_step" });
      },
    }));
  }

  saveWeights(
    of: { modelId: string; number: bigint; print: string },
    to: {
      kind: CheckpointKind;
      name: string;
      ttlSeconds?: number;
      overwrite: boolean;
      userMetadata?: Readonly<Record<string, unknown>>;
    },
  ): Future {
    return this.submit(of, (run, future) => this.saveOperation(run, { ...to, future }));
  }

  private saveOperation(
    run: TrainingRun,
    to: {
      future: Future;
      kind: CheckpointKind;
      name: string;
      ttlSeconds?: number;
      overwrite: boolean;
      userMetadata?: Readonly<Record<string, unknown>>;
    },
  ): Operation {
    const path: CheckpointPath = { run: run.name, kind: to.kind, name: to.name };
    const optimizer = to.kind === "weights";
    return {
      kind: "save",
      future: to.future,
      run: async (trainer) => {
        checkName(to.name);
        await this.checkpoints.putRun(run.record);
        await this.checkpoints.save(path, {
          ...to,
          step: trainer.step,
          write: (dir) => trainer.save(dir, { optimizer }),
        });
        if (optimizer) run.unsavedSteps = 0;
        return json({
          path: formatPath(path),
          type: optimizer ? "save_weights" : "save_weights_for_sampler",
        });
      },
    };
  }

  /** A sampler on the trainer's policy as it is when the request's turn comes. */
  snapshot(of: { modelId: string; number: bigint; print: string; samplerNumber: number }): Future {
    return this.submit(of, (run, future) => ({
      kind: "save",
      future,
      run: async (trainer) => {
        const session = this.session(run.record.session);
        const id = `${session.id}:sample:${of.samplerNumber}`;
        const lane = this.policies.snapshot(id, { policy: trainer.freeze(), session: session.id });
        this.samplers.add({ id, lane, session: session.id });
        session.samplers.add(id);
        return json({ sampling_session_id: id, type: "save_weights_for_sampler" });
      },
    }));
  }

  loadWeights(
    of: { modelId: string; number: bigint; print: string },
    from: { path: string; optimizer: boolean },
  ): Future {
    return this.submit(of, (run, future) => ({
      kind: "load",
      future,
      run: async (trainer) => {
        const path = parsePath(from.path);
        const { dir } = this.checkpoints.find(path);
        if (from.optimizer && path.kind === "sampler_weights")
          throw new ConfigError(
            `Cannot load the optimiser of ${from.path} as weights for a sampler have none: load a path of tinker://RUN/weights/NAME.`,
          );
        await trainer.load(dir, from);
        run.unsavedSteps = 0;
        return json({ path: from.path, model_id: run.name, type: "load_weights" });
      },
    }));
  }

  unload(modelId: string): Future {
    const run = this.run(modelId);
    const future = this.open(run);
    run.enqueue({
      kind: "unload",
      future,
      run: async () => {
        run.release(`Cannot use the model ${modelId}: it was unloaded.`);
        return json({ model_id: modelId, type: "unload_model" });
      },
    });
    return future;
  }

  // --- sampling

  /** A sampler on the base model or a saved path. @throws Refusal where there is no such model or path. */
  createSampler(of: {
    session: string;
    number: number;
    baseModel?: string;
    modelPath?: string;
    print: string;
  }): Sampler {
    this.refuseWhileStopping();
    const session = this.session(of.session);
    const id = `${session.id}:sample:${of.number}`;
    askedBefore(session, { key: `sampler ${of.number}`, print: of.print });
    session.asked.set(`sampler ${of.number}`, { print: of.print });
    const sampler = this.samplers.get(id) ?? this.samplers.open({ ...of, id, session: session.id });
    session.samplers.add(id);
    return sampler;
  }

  /** @throws Refusal 404 */
  sampler(id: string): Sampler {
    const sampler = this.samplers.find(id);
    this.session(sampler.session);
    return sampler;
  }

  /**
   * Orders samples. The same number gives the same future again.
   * @throws Refusal 429 where too many requests wait.
   */
  sample(sampler: Sampler, of: { number?: bigint; print: string; order: SampleOrder }): Samples {
    this.refuseWhileStopping();
    return this.samplers.sample(sampler, of);
  }

  /** Takes a sampling request back that has not begun. */
  cancel(futureId: string): void {
    this.samplers.cancel(futureId);
  }

  // --- the end

  private refuseWhileStopping(): void {
    if (this.isStopping) throw new Refusal(503, "Cannot take work as the server is stopping.");
  }

  private async sweep(): Promise<void> {
    const now = Date.now();
    for (const { id, lastSeen } of [...this.sessions.values()])
      if (now - lastSeen > this.limits.sessionMs) {
        this.log(`session ${id} ended: no sign of life for ${Math.round((now - lastSeen) / 60_000)} min`);
        await this.endSession(id, "its session ended without a sign of life");
      }
    await this.checkpoints.sweep();
  }

  /** Takes no more work, finishes what was taken, keeps unsaved training. Results can be read meanwhile. */
  async stop(): Promise<void> {
    if (this.isStopping) return;
    this.isStopping = true;
    clearInterval(this.sweeper);
    await this.turns.idle();
    for (const run of this.runs.values()) await this.rescue(run);
    await this.turns.idle();
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

function json(body: Readonly<Record<string, unknown>>): Outcome {
  return { kind: "json", body };
}

function askedBefore(session: Session, { key, print }: { key: string; print: string }) {
  const known = session.asked.get(key);
  if (known && known.print !== print)
    throw new Refusal(
      400,
      `Cannot take the request as ${key} of the session was asked for otherwise before.`,
    );
  return known;
}
