/** The training clients in memory: made, found, ended, and their unsaved training kept. */
import type { TrainerConfig } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { BaseModels, ServedBaseModel } from "../base_models.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { checkMetadata, type RunRecord } from "../checkpoint/record.ts";
import { type CheckpointPath, formatPath, parsePath } from "../checkpoint_path.ts";
import type { Future, Futures } from "../protocol/futures.ts";
import { jsonOutcome, Refusal, requestFailure } from "../protocol/outcome.ts";
import type { Scheduler } from "../scheduler.ts";
import { askedBefore, remember, type TinkerClientSession, type TinkerSessions } from "../sessions.ts";
import { saveServedRun } from "./save_run.ts";
import { TrainingRun } from "./training_run.ts";

/** A request for a training client, by its number in the session. */
export interface NewModel {
  readonly session: string;
  readonly number: number;
  readonly userMetadata?: Readonly<Record<string, unknown>> | undefined;
  /** Identifies the request's content. */
  readonly print: string;
}

interface NewRun extends NewModel {
  readonly baseModel: string;
  readonly config: TrainerConfig;
}

/** A run whose base model has been looked up. */
type FoundRun = NewRun & { readonly model: ServedBaseModel | undefined };

export interface TrainingRunsOptions {
  readonly models: BaseModels;
  readonly checkpoints: Checkpoints;
  readonly futures: Futures;
  readonly sessions: TinkerSessions;
  readonly scheduler: Scheduler;
  readonly limits: { readonly models: number; readonly parked: number; readonly gapMs: number };
  readonly log: (line: string) => void;
}

/** How long a checkpoint of unsaved training is kept, seconds. */
const RESCUE_TTL_SECONDS = 7 * 24 * 3600;

export class TrainingRuns {
  private readonly options: TrainingRunsOptions;
  private readonly byId = new Map<string, TrainingRun>();

  constructor(options: TrainingRunsOptions) {
    this.options = options;
  }

  values(): IterableIterator<TrainingRun> {
    return this.byId.values();
  }

  get(id: string): TrainingRun | undefined {
    return this.byId.get(id);
  }

  /** Whether a training client needs the base model. */
  uses(model: ServedBaseModel): boolean {
    return [...this.byId.values()].some((run) => run.model === model && run.trainer !== undefined);
  }

  /** The run, whose session this keeps alive. @throws Refusal 404 */
  find(id: string): TrainingRun {
    const { sessions } = this.options;
    const run = this.byId.get(id);
    if (run) {
      sessions.find(run.record.session);
      run.record = { ...run.record, lastRequest: new Date().toISOString() };
      return run;
    }
    const hint = this.hintOf(id);
    throw new Refusal(
      404,
      `Cannot find the model ${id.slice(0, 100)}: it is not in memory. It was unloaded or could not be made, its session has ended, or the server was restarted. ${hint}`,
    );
  }

  private hintOf(id: string): string {
    const saved = this.options.checkpoints.list(id)[0];
    if (!saved) return "It left no checkpoint.";
    return `Resume from ${formatPath(saved)} (create_training_client_from_state_with_optimizer).`;
  }

  /** After the loss of these models' device. A run stays known until its session ends, so that its requests say what became of it. */
  lose(lost: readonly ServedBaseModel[]): void {
    for (const run of this.byId.values()) {
      // A model that is still to be made loses nothing.
      if (!run.trainer || !lost.includes(run.model)) continue;
      const steps = run.unsavedSteps;
      const unsaved = steps === 0 ? "nothing that was not saved" : `${steps} optimiser steps that were not saved`;
      this.options.log(`${run.name} was lost with the GPU device, with ${unsaved}`);
      run.release(
        `Cannot use the model ${run.name}: the server's GPU device was lost, and the model with it, with ${unsaved}. ${this.hintOf(run.name)}`,
      );
      run.unsavedSteps = 0;
    }
  }

  create(of: NewRun): Future {
    const model = this.options.models.find(of.baseModel);
    return this.open({ ...of, model }, async () => ({ type: "create_model" }));
  }

  /** Makes a training client from a checkpoint. */
  createFrom(of: NewModel & { path: string; optimizer: boolean }): Future {
    const { checkpoints, models } = this.options;
    const path = parsePath(of.path);
    const { record } = checkpoints.findReadable(path);
    const saved = checkpoints.findRun(record.run);
    const { name: baseModel, model } = models.ofRun(saved);
    return this.open({ ...of, config: saved.config, baseModel, model }, async (run) => {
      refuseOptimizerOf(path, of);
      await checkpoints.read(path, (dir) => run.loaded().load(dir, of));
      return { path: of.path, type: "load_weights" };
    });
  }

  private open(of: FoundRun, prepare: (run: TrainingRun) => Promise<Readonly<Record<string, unknown>>>): Future {
    const { checkpoints, sessions } = this.options;
    checkMetadata(of.userMetadata);
    const session = sessions.find(of.session);
    const key = `model ${of.number}`;
    const earlier = askedBefore(session, { key, print: of.print });
    if (earlier?.future) return earlier.future;
    const refused = this.refusalOf(of, session);
    if (refused) return this.failed(session, refused);
    const run = this.add(session, { ...of, model: of.model! });
    const future = run.open();
    remember(session, key, { future, print: of.print });
    run.enqueue({
      kind: "create",
      future,
      run: async () => {
        const result = await prepare(run);
        await checkpoints.putRun(run.record);
        return jsonOutcome({ model_id: run.name, ...result });
      },
    });
    return future;
  }

  private refusalOf(of: FoundRun, session: TinkerClientSession): Error | undefined {
    const { limits, models, checkpoints } = this.options;
    const id = idOf(session, of);
    if (!of.model)
      return new ConfigError(`Cannot use the base model ${JSON.stringify(of.baseModel)}: ${models.otherOnes()}`, {
        path: "base_model",
      });
    if (this.byId.has(id) || checkpoints.hasRun(id))
      return new ConfigError(`Cannot make the model ${id}: the session has already used its number.`);
    const count = [...this.byId.values()].filter(({ isGone }) => !isGone).length;
    if (count >= limits.models)
      return new ConfigError(
        `Cannot make another training client: ${count} are in memory, which is the limit. Unload one, or close its session.`,
      );
    return undefined;
  }

  /** Keeps only the result of a request that failed at once. */
  private failed(session: TinkerClientSession, error: Error): Future {
    const { futures } = this.options;
    const future = futures.open({ session: session.id, state: () => ({ queue_state: "active" }) });
    futures.settle(future, requestFailure(error));
    return future;
  }

  private add(session: TinkerClientSession, of: NewRun & { readonly model: ServedBaseModel }): TrainingRun {
    const { models, futures, scheduler, limits } = this.options;
    const now = new Date().toISOString();
    const record: RunRecord = {
      id: idOf(session, of),
      session: session.id,
      baseModel: of.baseModel,
      fingerprint: of.model.engine.fingerprint,
      project: session.project,
      config: of.config,
      userMetadata: of.userMetadata,
      created: now,
      lastRequest: now,
    };
    const run = new TrainingRun(record, {
      model: of.model,
      create: () => models.use(of.model, () => of.model.engine.createTrainer(of.config)),
      notCreated: () => {
        session.asked.delete(`model ${of.number}`);
        this.forget(run);
      },
      futures,
      scheduler,
      gapMs: limits.gapMs,
      mostParked: limits.parked,
    });
    this.byId.set(run.name, run);
    session.runs.add(run.name);
    return run;
  }

  private forget(run: TrainingRun): void {
    this.byId.delete(run.name);
    this.options.sessions.get(run.record.session)?.runs.delete(run.name);
  }

  /** Moves a session's runs into a project, those on disk too. */
  async assign(session: string, project: string): Promise<void> {
    const { checkpoints } = this.options;
    for (const run of this.byId.values()) if (run.record.session === session) run.record = { ...run.record, project };
    for (const saved of checkpoints.allRuns())
      if (saved.session === session)
        await checkpoints.putRun({ ...(this.byId.get(saved.id)?.record ?? saved), project });
  }

  /** Frees a model after the requests before it have run. */
  unload(id: string): Future {
    const run = this.find(id);
    const future = run.open();
    run.enqueue({
      kind: "unload",
      future,
      run: async () => {
        this.forget(run);
        run.release(`Cannot use the model ${id}: it was unloaded.`);
        return jsonOutcome({ model_id: id, type: "unload_model" });
      },
    });
    return future;
  }

  /** Ends a training client and keeps its unsaved training for some days. Never rejects. */
  async end(id: string, why: string): Promise<void> {
    const run = this.byId.get(id);
    if (!run) return;
    const reason = `Cannot use the model ${id}: ${why}.`;
    run.refuseQueued(new Refusal(404, reason));
    await this.rescue(run);
    this.forget(run);
    run.release(reason);
  }

  /** Saves unsaved training, ahead of all waiting work. Never rejects. */
  async rescue(run: TrainingRun): Promise<void> {
    const { checkpoints, scheduler, log } = this.options;
    try {
      await scheduler.first(async () => {
        if (run.unsavedSteps === 0 || !run.trainer) return;
        const name = `unsaved-step-${run.trainer.step}`;
        const to = { kind: "weights", name, ttlSeconds: RESCUE_TTL_SECONDS, overwrite: true } as const;
        log(`kept unsaved training: ${await saveServedRun(run, { checkpoints, to })}`);
      });
    } catch (error) {
      log(`could not keep unsaved training of ${run.name}: ${(error as Error).message}`);
    }
  }
}

function idOf(session: TinkerClientSession, { number }: NewModel): string {
  return `${session.id}:train:${number}`;
}

/** @throws ConfigError for the optimiser of a checkpoint that has none. */
export function refuseOptimizerOf(path: CheckpointPath, { optimizer }: { optimizer: boolean }): void {
  if (optimizer && path.kind !== "weights")
    throw new ConfigError(
      `Cannot load the optimiser of ${formatPath(path)}: ${path.kind.replace("_", " ")} have none. Load a path of the form tinker://RUN/weights/NAME.`,
    );
}
