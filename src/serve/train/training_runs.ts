/** Training clients: what they ask of the engine's trainers, in order, and what is kept when they are gone. */
import type { OptimParams } from "../../contract/backend.ts";
import type { Engine, LossRequest, LossRows, TrainerConfig } from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import {
  type CheckpointKind,
  type CheckpointPath,
  checkMetadata,
  checkName,
  formatPath,
  parsePath,
  type RunRecord,
} from "../checkpoint/record.ts";
import type { Activity } from "../page/activity.ts";
import { encodeTrainingOutput } from "../protocol/forward_backward.ts";
import type { Future, Futures, QueueState } from "../protocol/futures.ts";
import { failureOf, type Outcome, Refusal } from "../protocol/outcome.ts";
import type { Policies } from "../sample/policies.ts";
import type { Samplers } from "../sample/samplers.ts";
import type { Scheduler } from "../scheduler.ts";
import { askedBefore, remember, type Session, type Sessions } from "../sessions.ts";
import { type Operation, TrainingRun } from "./training_run.ts";

/** A request's model, its number there, and a print of its content, against repeats of another one. */
export interface Numbered {
  readonly modelId: string;
  readonly number: bigint;
  readonly print: string;
}

/** A request for a training client, by its number in the session. */
export interface NewModel {
  readonly session: string;
  readonly number: number;
  readonly userMetadata?: Readonly<Record<string, unknown>> | undefined;
  readonly print: string;
}

/** Where a checkpoint goes. */
export interface SaveTarget {
  readonly kind: CheckpointKind;
  readonly name: string;
  readonly ttlSeconds?: number | undefined;
  readonly overwrite: boolean;
  readonly userMetadata?: Readonly<Record<string, unknown>> | undefined;
}

export interface TrainingOptions {
  readonly engine: Engine;
  readonly checkpoints: Checkpoints;
  readonly futures: Futures;
  readonly policies: Policies;
  readonly samplers: Samplers;
  readonly sessions: Sessions;
  readonly scheduler: Scheduler;
  readonly activity: Activity;
  readonly modelNames: readonly string[];
  readonly limits: { readonly models: number; readonly parked: number; readonly gapMs: number };
  readonly log: (line: string) => void;
}

/** What is saved of unsaved training when its client is gone: seconds. */
const RESCUE_TTL_SECONDS = 7 * 24 * 3600;

export class Training {
  readonly runs = new Map<string, TrainingRun>();
  private readonly options: TrainingOptions;

  constructor(options: TrainingOptions) {
    this.options = options;
  }

  createModel(of: NewModel & { baseModel: string; config: TrainerConfig }): Future {
    return this.openRun(of, async () => ({ type: "create_model" }));
  }

  /** A training client made from a checkpoint in one request. */
  createModelFrom(of: NewModel & { path: string; optimizer: boolean }): Future {
    const { checkpoints } = this.options;
    const path = parsePath(of.path);
    const { dir, record } = checkpoints.find(path);
    const { config, baseModel } = checkpoints.findRun(record.run);
    return this.openRun({ ...of, config, baseModel }, async (run) => {
      refuseOptimizerOf(path, of);
      await run.trainer?.load(dir, of);
      return { path: of.path, type: "load_weights" };
    });
  }

  private openRun(
    of: NewModel & { baseModel: string; config: TrainerConfig },
    then: (run: TrainingRun) => Promise<Readonly<Record<string, unknown>>>,
  ): Future {
    const { checkpoints, sessions } = this.options;
    checkMetadata(of.userMetadata);
    const session = sessions.find(of.session);
    const key = `model ${of.number}`;
    const known = askedBefore(session, { key, print: of.print });
    if (known?.future) return known.future;
    const refused = this.refusalOf(of, session);
    if (refused) return this.failed(session, refused);
    const run = this.newRun(session, of);
    const future = this.open(run);
    remember(session, key, { future, print: of.print });
    run.enqueue({
      kind: "create",
      future,
      run: async () => {
        const extra = await then(run);
        await checkpoints.putRun(run.record);
        return json({ model_id: run.name, ...extra });
      },
    });
    return future;
  }

  /** Why there can be no such training client. */
  private refusalOf(of: NewModel & { baseModel: string }, session: Session): Error | undefined {
    const { limits, modelNames, checkpoints } = this.options;
    const id = idOf(session, of);
    if (!modelNames.includes(of.baseModel))
      return new ConfigError(
        `Cannot use the base model ${JSON.stringify(of.baseModel)}: this server has another one, ${modelNames.join(", ")}.`,
        { path: "base_model" },
      );
    if (this.runs.has(id) || checkpoints.hasRun(id))
      return new ConfigError(`Cannot make the model ${id}: the session used its number before.`);
    if (this.runs.size >= limits.models)
      return new ConfigError(
        `Cannot make another training client: ${this.runs.size} are in memory, the most there may be. Unload one, or close its session.`,
      );
    return undefined;
  }

  /** A request that failed before it waited. Nothing but its result is kept. */
  private failed(session: Session, error: Error): Future {
    const { futures } = this.options;
    const future = futures.open({ session: session.id, state: () => ({ queue_state: "active" }) });
    futures.settle(future, failureOf(error));
    return future;
  }

  private newRun(session: Session, of: NewModel & { config: TrainerConfig }): TrainingRun {
    const { modelNames, engine, futures, scheduler, limits } = this.options;
    const now = new Date().toISOString();
    const record: RunRecord = {
      id: idOf(session, of),
      session: session.id,
      baseModel: modelNames[0]!,
      config: of.config,
      userMetadata: of.userMetadata,
      created: now,
      lastRequest: now,
    };
    const run = new TrainingRun(record, {
      create: () => engine.createTrainer(of.config),
      notCreated: () => {
        session.asked.delete(`model ${of.number}`);
        this.forget(run);
      },
      futures,
      scheduler,
      gapMs: limits.gapMs,
      mostParked: limits.parked,
    });
    this.runs.set(run.name, run);
    session.runs.add(run.name);
    return run;
  }

  private forget(run: TrainingRun): void {
    this.runs.delete(run.name);
    this.options.sessions.get(run.record.session)?.runs.delete(run.name);
  }

  /** @throws Refusal 404 */
  run(id: string): TrainingRun {
    const { checkpoints, sessions } = this.options;
    const run = this.runs.get(id);
    if (run) {
      sessions.find(run.record.session);
      run.record = { ...run.record, lastRequest: new Date().toISOString() };
      return run;
    }
    const saved = checkpoints.list(id)[0];
    const hint = saved
      ? `Resume from ${formatPath(saved)} (create_training_client_from_state_with_optimizer).`
      : "It left no checkpoint.";
    throw new Refusal(
      404,
      `Cannot find the model ${id.slice(0, 100)} in memory: it was unloaded or could not be made, its session has ended, or the server was restarted since. ${hint}`,
    );
  }

  private open(run: TrainingRun): Future {
    const state = (): QueueState =>
      run.sequence.parkedCount > 0
        ? { queue_state: "active", queue_state_reason: `waiting for seq_id ${run.sequence.missing}` }
        : { queue_state: "active" };
    return this.options.futures.open({ session: run.record.session, modelId: run.name, state });
  }

  private submit(of: Numbered, make: (run: TrainingRun, future: Future) => Operation): Future {
    const run = this.run(of.modelId);
    return run.sequence.submit(of.number, { print: of.print, make: () => make(run, this.open(run)) });
  }

  /**
   * Counts a request's number as used although the request was refused: the client goes on behind it, and what comes
   * next must not wait for it.
   */
  skip(of: Numbered, at: { kind: "forward_backward" | "save"; reason: Refusal }): void {
    const run = this.runs.get(of.modelId);
    if (of.number <= 0n || !run || run.sequence.isUsed(of.number)) return;
    this.submit(of, (_, future) => ({ kind: at.kind, future, run: () => Promise.reject(at.reason) }));
  }

  forwardBackward(
    of: Numbered,
    request: { rows: () => LossRows; loss: LossRequest; forwardOnly: boolean },
  ): Future {
    const { forwardOnly } = request;
    return this.submit(of, (_, future) => ({
      kind: forwardOnly ? "forward" : "forward_backward",
      future,
      run: async (trainer) => {
        const rows = request.rows();
        const { logprobs, metrics } = await trainer.forwardBackward(rows, request);
        if (!forwardOnly) this.options.activity.trained(rows.tokens.length);
        return { kind: "proto", bytes: encodeTrainingOutput({ logprobs, offsets: rows.offsets, metrics }) };
      },
    }));
  }

  optimStep(of: Numbered, params: OptimParams): Future {
    return this.submit(of, (_, future) => ({
      kind: "optim_step",
      future,
      run: async (trainer) => {
        const metrics = await trainer.optimStep(params);
        this.options.activity.steps++;
        return json({ metrics, type: "optim_step" });
      },
    }));
  }

  saveWeights(of: Numbered, to: SaveTarget): Future {
    checkMetadata(to.userMetadata);
    return this.submit(of, (run, future) => ({
      kind: "save",
      future,
      run: async () => {
        const path = await this.save(run, to);
        const type = to.kind === "weights" ? "save_weights" : "save_weights_for_sampler";
        return json({ path, type });
      },
    }));
  }

  /** @returns the checkpoint's path. */
  private async save(run: TrainingRun, to: SaveTarget): Promise<string> {
    const { checkpoints } = this.options;
    const trainer = run.loaded();
    const path: CheckpointPath = { run: run.name, kind: to.kind, name: checkName(to.name) };
    const optimizer = to.kind === "weights";
    await checkpoints.putRun(run.record);
    await checkpoints.save(path, {
      ...to,
      step: trainer.step,
      write: (dir) => trainer.save(dir, { optimizer }),
    });
    if (optimizer) run.unsavedSteps = 0;
    return formatPath(path);
  }

  /** A sampler on the trainer's policy as it is when the request's turn comes. */
  snapshot(of: Numbered & { samplerNumber: number }): Future {
    const { sessions, policies, samplers } = this.options;
    return this.submit(of, (run, future) => ({
      kind: "save",
      future,
      run: async (trainer) => {
        const session = sessions.find(run.record.session);
        const id = `${session.id}:sample:${of.samplerNumber}`;
        const lane = policies.snapshot(id, { policy: trainer.freeze(), session: session.id });
        samplers.add({ id, lane }, session);
        return json({ sampling_session_id: id, type: "save_weights_for_sampler" });
      },
    }));
  }

  loadWeights(of: Numbered, from: { path: string; optimizer: boolean }): Future {
    return this.submit(of, (run, future) => ({
      kind: "load",
      future,
      run: async (trainer) => {
        const path = parsePath(from.path);
        const { dir } = this.options.checkpoints.find(path);
        refuseOptimizerOf(path, from);
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
        this.forget(run);
        run.release(`Cannot use the model ${modelId}: it was unloaded.`);
        return json({ model_id: modelId, type: "unload_model" });
      },
    });
    return future;
  }

  /** Ends a training client: what it has not saved is kept for some days. Deals with its own failures. */
  async end(id: string, why: string): Promise<void> {
    const run = this.runs.get(id);
    if (!run) return;
    run.refuseQueued(new Refusal(404, `Cannot use the model ${id}: ${why}.`));
    await this.rescue(run);
    this.forget(run);
    run.release(`Cannot use the model ${id}: ${why}.`);
  }

  /** Saves what a client could want to resume from, before all work that waits. Never rejects. */
  async rescue(run: TrainingRun): Promise<void> {
    const { scheduler, log } = this.options;
    try {
      await scheduler.first(async () => {
        if (run.unsavedSteps === 0 || !run.trainer) return;
        const name = `unsaved-step-${run.trainer.step}`;
        const to = { kind: "weights", name, ttlSeconds: RESCUE_TTL_SECONDS, overwrite: true } as const;
        log(`kept unsaved training: ${await this.save(run, to)}`);
      });
    } catch (error) {
      log(`could not keep unsaved training of ${run.name}: ${(error as Error).message}`);
    }
  }
}

function idOf(session: Session, { number }: NewModel): string {
  return `${session.id}:train:${number}`;
}

function refuseOptimizerOf(path: CheckpointPath, { optimizer }: { optimizer: boolean }): void {
  if (optimizer && path.kind === "sampler_weights")
    throw new ConfigError(
      `Cannot load the optimiser of ${formatPath(path)}: weights for a sampler have none. Load a path of tinker://RUN/weights/NAME.`,
    );
}

function json(body: Readonly<Record<string, unknown>>): Outcome {
  return { kind: "json", body };
}
