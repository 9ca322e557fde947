/**
 * The base models of a server: found by name or by their weights, loaded when first asked for, and unloaded when idle.
 * All of them share one device and its memory.
 */
import type { Engine } from "../../engine/contract/engine.ts";
import { ConfigError, OutOfMemoryError } from "../../leaves/errors.ts";
import type { RunRecord } from "./checkpoint/record.ts";
import { Refusal } from "./protocol/outcome.ts";

/** A base model and the names by which clients request it; answers use the first. */
export interface ServedBaseModel {
  readonly engine: Engine;
  readonly names: readonly string[];
}

export interface BaseModelsOptions {
  readonly models: readonly ServedBaseModel[];
  /** A model that nobody uses is unloaded after this time, ms. */
  readonly idleMs: number;
  /** Whether a training client, or a policy that cannot be opened again, needs the model to stay loaded. */
  readonly isHeld: (model: ServedBaseModel) => boolean;
  /** Releases what can be opened again of a model that is to be unloaded. */
  readonly release: (model: ServedBaseModel) => void;
  readonly log: (line: string) => void;
}

/** After a model was unloaded for another, that one is used at least this long, ms: loading takes longer than a turn. */
const STAY_MS = 10_000;

export class BaseModels {
  readonly all: readonly ServedBaseModel[];
  private readonly options: BaseModelsOptions;
  /** When each loaded model was used last, in the order of use. */
  private readonly used = new Map<ServedBaseModel, number>();
  /** When a model was last unloaded for another. */
  private swappedAt = Number.NEGATIVE_INFINITY;

  constructor(options: BaseModelsOptions) {
    this.options = options;
    this.all = options.models;
  }

  /** Every name of every model. */
  get names(): readonly string[] {
    return this.all.flatMap(({ names }) => names);
  }

  /** Memory of the device that all base models share. */
  get memory(): Engine["memory"] {
    return this.all[0]!.engine.memory;
  }

  /** The longest sequence of any of them. */
  get contextLength(): number {
    return Math.max(...this.all.map(({ engine }) => engine.contextLength));
  }

  find(name: string): ServedBaseModel | undefined {
    return this.all.find(({ names }) => names.includes(name));
  }

  /**
   * The model that a training client was made on, and its name for clients: the one that its client used. A server that
   * lacks this name but has the same weights answers with its own folder, so that checkpoints outlive an alias and a
   * moved folder. Where there is one model, a record without a fingerprint counts as the same weights: loading compares
   * them.
   * @returns the recorded name without a model, if the server lacks it
   */
  ofRun({ baseModel, fingerprint }: Pick<RunRecord, "baseModel" | "fingerprint">): {
    readonly model: ServedBaseModel | undefined;
    readonly name: string;
  } {
    const named = this.find(baseModel);
    const same = this.all.find(({ engine }) => engine.fingerprint === fingerprint);
    if (named && (named === same || !same)) return { model: named, name: baseModel };
    const only = fingerprint === undefined && this.all.length === 1 ? this.all[0] : undefined;
    const model = same ?? only;
    if (!model) return { model, name: baseModel };
    const { engine, names } = model;
    return { model, name: names.includes(engine.folder) ? engine.folder : names[0]! };
  }

  /** The model that a saved checkpoint belongs to. @throws Refusal 400 if the server lacks it. */
  ofCheckpoint(path: string, run: () => RunRecord): ServedBaseModel {
    // Its run's record may be damaged; with one model, loading compares the weights.
    if (this.all.length === 1) return this.all[0]!;
    const { model, name } = this.ofRun(run());
    if (model) return model;
    throw new Refusal(400, `Cannot sample from ${path}: its base model is ${name}. ${this.otherOnes()}`);
  }

  /** `This server has A or B.`, for errors. */
  otherOnes(): string {
    const others = this.all.length === 1 ? "this server has another one" : "this server has others";
    return `${others}. Use ${this.names.join(" or ")}.`;
  }

  isLoaded({ engine }: ServedBaseModel): boolean {
    return engine.isLoaded ?? true;
  }

  /**
   * Loads a model and opens something on it, a trainer or a policy. Where memory is short for either, unloads models that
   * nobody holds, the least recently used first. Only within a turn of the scheduler.
   * @throws ConfigError if it does not fit beside the models that are held
   */
  async use<T>(model: ServedBaseModel, open: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        await this.load(model);
        this.used.delete(model);
        this.used.set(model, Date.now());
        return await open();
      } catch (error) {
        if (!(error instanceof OutOfMemoryError) || !this.unloadOne(model)) throw this.explained(error, model);
      }
    }
  }

  private async load(model: ServedBaseModel): Promise<void> {
    if (this.isLoaded(model)) return;
    await model.engine.load?.();
    this.options.log(`loaded ${model.names[0]}`);
  }

  private explained(error: unknown, wanted: ServedBaseModel): unknown {
    const others = this.all.filter((model) => model !== wanted && this.isLoaded(model)).map(({ names }) => names[0]);
    if (!(error instanceof OutOfMemoryError) || others.length === 0) return error;
    return new ConfigError(
      `Cannot ${this.isLoaded(wanted) ? "use" : "load"} ${wanted.names[0]} beside ${others.join(", ")}, which training clients or snapshots use: ${error.message} Unload those clients, or try again when they have ended.`,
      { path: "base_model" },
    );
  }

  /** Whether loading the model had better wait, because models that do not fit together were just exchanged. */
  isDeferred(model: ServedBaseModel): boolean {
    return !this.isLoaded(model) && Date.now() - this.swappedAt < STAY_MS;
  }

  /** Unloads the least recently used model that nobody holds. @returns whether there was one. */
  private unloadOne(besides: ServedBaseModel): boolean {
    for (const model of this.used.keys())
      if (model !== besides && this.unload(model, "for another model")) {
        this.swappedAt = Date.now();
        return true;
      }
    return false;
  }

  private unload(model: ServedBaseModel, why: string): boolean {
    const { engine } = model;
    if (!this.isLoaded(model) || !engine.unload || this.options.isHeld(model)) return false;
    this.options.release(model);
    engine.unload();
    this.used.delete(model);
    this.options.log(`unloaded ${model.names[0]} ${why}`);
    return true;
  }

  /** Whether a model is due to be unloaded; {@link unloadIdle} does it. Models that are held count as used now. */
  hasIdle(now: number): boolean {
    for (const model of this.used.keys()) if (this.options.isHeld(model)) this.used.set(model, now);
    return [...this.used].some(([model, at]) => this.isIdle(model, now - at));
  }

  private isIdle(model: ServedBaseModel, ms: number): boolean {
    return ms > this.options.idleMs && this.isLoaded(model) && model.engine.unload !== undefined;
  }

  /** Unloads the models that nobody has used for the time of the setting. Only within a turn of the scheduler. */
  unloadIdle(now: number): void {
    for (const [model, at] of [...this.used])
      if (this.isIdle(model, now - at))
        this.unload(model, `after ${Math.round((now - at) / 60_000)} min without a request`);
  }

  /** The models whose device is lost. */
  get lost(): readonly ServedBaseModel[] {
    return this.all.filter(({ engine }) => engine.isLost);
  }

  /**
   * Opens the device of the models of {@link lost} again, and loads those that were loaded. One that cannot be loaded stays
   * unloaded, and its next use tries again. The list is given because the first model opens the device for all.
   * @throws the first failure to open the device, after all models have been tried
   */
  async reopen(lost: readonly ServedBaseModel[]): Promise<void> {
    const failures: unknown[] = [];
    for (const { engine, names } of lost)
      await engine.reopen?.().catch((error: Error) => {
        if (engine.isLost) failures.push(error);
        else this.options.log(`could not load ${names[0]} again: ${error.message}`);
      });
    if (failures.length > 0) throw failures[0];
  }

  /** Every model is released before any engine closes the device that they share. */
  close(): void {
    for (const { engine } of this.all) engine.unload?.();
    for (const { engine } of this.all) engine.close();
  }
}
