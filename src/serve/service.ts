/**
 * The service behind the routes: sessions, training clients, samplers and checkpoints over one engine. Knows nothing of
 * HTTP. Methods that take work answer at once with a future; what they refuse at once is a {@link Refusal}.
 */
import type { OptimParams, SampleRequest } from "../backend.ts";
import { seedOf } from "../data/random.ts";
import type { Engine, LossRequest, LossRows, TrainerConfig } from "../engine.ts";
import { ConfigError } from "../errors.ts";
import { Activity } from "./activity.ts";
import {
  type CheckpointKind,
  type CheckpointPath,
  type Checkpoints,
  checkName,
  formatPath,
  parsePath,
  type RunRecord,
} from "./checkpoints.ts";
import { type Future, Futures, type QueueState } from "./futures.ts";
import { encodeSamples, encodeTrainingOutput } from "./messages.ts";
import { Policies } from "./policies.ts";
import { failureOf, type Outcome, Refusal } from "./problem.ts";
import type { SampleJob, SamplingLane } from "./sampling.ts";
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

/** A client that samples: where from, and what it asked under which number, as long as the results are kept. */
export interface Sampler {
  readonly id: string;
  readonly session: string;
  readonly modelPath?: string;
  readonly lane: SamplingLane;
  readonly asked: Map<string, { future: Future; sequenceIds: readonly string[]; print: string }>;
}

export interface SampleOrder {
  readonly prompt: readonly number[];
  readonly count: number;
  readonly maxTokens?: number;
  readonly seed?: number;
  readonly stopTexts: readonly string[];
  /** Absent: the model's end tokens. */
  readonly stopTokens?: readonly number[];
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly promptLogprobs: boolean;
  readonly topkPromptLogprobs: number;
  /** Only the last so many prompt tokens are told of. */
  readonly promptLogprobsLastN?: number;
}

/** Samples of one request at most. */
const MOST_SAMPLES = 1024;
const MOST_TOPK = 1024;
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
  readonly samplers = new Map<string, Sampler>();
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
    for (const sampler of session.samplers) this.samplers.delete(sampler);
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
        this.addSampler(session, { id, lane });
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
    const known = this.samplers.get(id);
    if (known) return known;
    const lane = this.laneOf(of);
    return this.addSampler(session, { id, lane, modelPath: of.modelPath });
  }

  private laneOf({ baseModel, modelPath }: { baseModel?: string; modelPath?: string }): SamplingLane {
    if (modelPath !== undefined) return this.policies.saved(modelPath);
    if (baseModel === undefined)
      throw new Refusal(422, "Cannot sample without knowing from what: give model_path or base_model.");
    if (!this.modelNames.includes(baseModel))
      throw new Refusal(
        400,
        `Cannot sample from ${JSON.stringify(baseModel)} as this server has another base model: ${this.modelNames.join(", ")}.`,
      );
    return this.policies.base();
  }

  private addSampler(session: Session, of: Pick<Sampler, "id" | "lane" | "modelPath">): Sampler {
    const sampler = { session: session.id, asked: new Map(), ...of };
    this.samplers.set(of.id, sampler);
    session.samplers.add(of.id);
    return sampler;
  }

  /** @throws Refusal 404 */
  sampler(id: string): Sampler {
    const sampler = this.samplers.get(id);
    if (sampler) {
      this.session(sampler.session);
      return sampler;
    }
    throw new Refusal(
      404,
      `Cannot find the sampler ${id.slice(0, 100)}: its session has ended, or the server was started anew since. Make a new sampling client.`,
    );
  }

  /**
   * Orders samples. The same number gives the same future again.
   * @throws Refusal 429 where too many requests wait.
   */
  sample(
    sampler: Sampler,
    of: { number?: bigint; print: string; order: SampleOrder },
  ): { future: Future; sequenceIds: readonly string[] } {
    this.refuseWhileStopping();
    const key = of.number?.toString();
    const known = key === undefined ? undefined : sampler.asked.get(key);
    if (known && known.print !== of.print)
      throw new Refusal(
        400,
        `Cannot sample as seq_id ${key} was used for another request: give each its own number.`,
      );
    if (known) return known;
    if (this.policies.queued >= this.limits.queuedSamples)
      throw new Refusal(
        429,
        `Cannot take the request as ${this.policies.queued} wait already: try again later.`,
      );
    const future = this.futures.open({
      session: sampler.session,
      state: () => this.samplingState(sampler),
      dropped: () => {
        if (key !== undefined) sampler.asked.delete(key);
      },
    });
    const sequenceIds = Array.from({ length: of.order.count }, (_, i) => `${future.id}:${i}`);
    if (key !== undefined) sampler.asked.set(key, { future, sequenceIds, print: of.print });
    this.startSampling(sampler, future, of.order);
    return { future, sequenceIds };
  }

  private samplingState({ lane }: Sampler): QueueState {
    const { current } = this.turns;
    const doing = current === undefined || current === lane ? "" : ` while ${current.name} has the device`;
    return { queue_state: "active", queue_state_reason: `${lane.length} requests wait${doing}` };
  }

  private startSampling({ lane }: Sampler, future: Future, order: SampleOrder): void {
    try {
      const job = this.makeJob(future, order);
      this.cancellable.set(future.id, () => {
        if (lane.cancel(job)) job.failed(new Refusal(400, "The request was cancelled."));
      });
      lane.push(job);
      this.turns.wake(lane);
    } catch (error) {
      this.futures.settle(future, failureOf(error));
    }
  }

  private readonly cancellable = new Map<string, () => void>();

  /** Takes a sampling request back that has not begun. */
  cancel(futureId: string): void {
    this.cancellable.get(futureId)?.();
  }

  private makeJob(future: Future, order: SampleOrder): SampleJob {
    this.checkOrder(order);
    const end = (outcome: Outcome) => {
      this.cancellable.delete(future.id);
      this.futures.settle(future, outcome);
    };
    const wantsScores = order.promptLogprobs || order.topkPromptLogprobs > 0;
    return {
      prompt: order.prompt,
      requests: this.requestsOf(order),
      scores: wantsScores ? { topk: order.topkPromptLogprobs } : undefined,
      done: (result) => end({ kind: "proto", bytes: encodeSamples(order, result) }),
      failed: (error) => end(failureOf(error)),
    };
  }

  private requestsOf(order: SampleOrder): SampleRequest[] {
    const { contextLength, eosTokenIds } = this.engine;
    const room = contextLength - order.prompt.length;
    const params = {
      max_tokens: Math.min(order.maxTokens ?? room, room),
      temperature: order.temperature,
      top_p: order.topP,
      top_k: order.topK,
      stop_token_ids: order.stopTokens ?? eosTokenIds,
    };
    const seed = order.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const ends = this.endsAt(order.stopTexts);
    return Array.from({ length: order.count }, (_, i) => ({
      prompt_ids: order.prompt,
      params,
      // The first is what the model draws with this seed anywhere else.
      seed: i === 0 ? seed >>> 0 : seedOf(seed, i),
      ends,
    }));
  }

  /** True of tokens whose text has come to one of the stop texts with its last token. */
  private endsAt(stops: readonly string[]): SampleRequest["ends"] {
    const decode = this.engine.decode?.bind(this.engine);
    if (stops.length === 0) return undefined;
    if (!decode)
      throw new ConfigError("Cannot stop at a text as the model has no tokenizer: give stop as token ids.");
    // Every token but a special one is a byte or more of text.
    const tail = Math.max(...stops.map((stop) => new TextEncoder().encode(stop).length)) + 4;
    return (tokens) => {
      const text = decode(tokens.slice(-tail));
      return stops.some((stop) => text.includes(stop));
    };
  }

  private checkOrder(order: SampleOrder): void {
    const { contextLength, vocabSize } = this.engine;
    const {
      prompt,
      count,
      maxTokens,
      temperature,
      topP,
      topkPromptLogprobs: topk,
      promptLogprobsLastN: lastN,
    } = order;
    const outside = prompt.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
    const rules: readonly (readonly [boolean, string])[] = [
      [prompt.length > 0, "the prompt must hold a token at least"],
      [outside === undefined, `token ids must lie in [0, ${vocabSize}): ${outside}`],
      [
        prompt.length < contextLength,
        `the prompt must leave room in the context of ${contextLength} tokens: ${prompt.length}`,
      ],
      [isCount(count) && count <= MOST_SAMPLES, `num_samples must lie in [1, ${MOST_SAMPLES}]: ${count}`],
      [
        maxTokens === undefined || isCount(maxTokens),
        `max_tokens must be a whole number above 0: ${maxTokens}`,
      ],
      [temperature >= 0 && Number.isFinite(temperature), `temperature must be at least 0: ${temperature}`],
      [topP > 0 && topP <= 1, `top_p must lie in (0, 1]: ${topP}`],
      [Number.isInteger(order.topK) && order.topK >= -1, `top_k must be -1 or a count: ${order.topK}`],
      [
        topk >= 0 && topk <= Math.min(MOST_TOPK, vocabSize),
        `topk_prompt_logprobs must lie in [0, ${Math.min(MOST_TOPK, vocabSize)}]: ${topk}`,
      ],
      [
        lastN === undefined || (order.promptLogprobs && isCount(lastN) && lastN < prompt.length),
        `prompt_logprobs_last_n must lie in [1, ${prompt.length - 1}] and needs prompt_logprobs: ${lastN}`,
      ],
    ];
    for (const [holds, rule] of rules) if (!holds) throw new ConfigError(`Cannot sample as ${rule}`);
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
  }
}

function json(body: Readonly<Record<string, unknown>>): Outcome {
  return { kind: "json", body };
}

function isCount(value: number): boolean {
  return Number.isInteger(value) && value >= 1;
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
