/** A transformer with a scalar head: a value at each token. A critic is one, and so is a reward model. */

import { mulberry32 } from "../../leaves/random.ts";
import type { Device } from "../compute/device.ts";
import type { OptimParams, PackedTokens } from "../contract/backend.ts";
import { AdaptedWeights } from "./adapted_weights.ts";
import type { ModelConfig } from "./config.ts";
import type { ModelFolder } from "./files/folder.ts";
import { fusedParts } from "./fused_parts.ts";
import { type GradientSink, weightGradient } from "./gradient_sink.ts";
import { initialScore } from "./initial_score.ts";
import { drawWeights, loadWeights } from "./initial_weights.ts";
import type { LanguageModel } from "./language_model.ts";
import { type LoraConfig, UNEMBED_TARGET } from "./lora.ts";
import type { ModelShape } from "./model_shape.ts";
import type { ParameterSet } from "./parameters.ts";
import { packedFormats, type StorageOptions } from "./storage_format.ts";
import { StoredWeights } from "./stored_weights.ts";
import { LoraAdapter } from "./train/lora_adapter.ts";
import { loraGradient } from "./train/lora_gradient.ts";
import { AdamW } from "./train/optimizer.ts";
import type { PassOptions } from "./train/pass_size.ts";
import { Passes, type TrainedPass, type ValuePassLoss, type ValueTrainingPass } from "./train/passes.ts";
import type { TargetChoice } from "./train/targets.ts";
import { Transformer } from "./transformer.ts";
import { SCORE, type Weights } from "./weights.ts";

/** How a {@link ValueModel} trains: an adapter with the head, or without `lora` all weights. */
export interface ValueModelOptions extends PassOptions, StorageOptions {
  readonly lora?: LoraConfig | undefined;
  /** Seed of a new head, and of the adapter. Absent: both are zero, for a caller that overwrites them. */
  readonly seed?: number | undefined;
  /** Label of its weights on the device, where they are not the policy's. Default `critic weights`. */
  readonly label?: string | undefined;
}

const LABEL = "critic weights";

interface Parts {
  readonly passes: Passes;
  readonly base: StoredWeights;
  /** The weights without the adapter. */
  readonly start: Weights;
  readonly adapter?: LoraAdapter | undefined;
  /** Resources that {@link ValueModel.release} frees besides the adapter. */
  readonly owned: readonly { release(): void }[];
  readonly copies?: (() => void) | undefined;
}

/** Values at the tokens of packed sequences, and their training. */
export class ValueModel {
  readonly device: Device;
  /** The weights below the adapter; all of them train where there is none. */
  readonly base: StoredWeights;
  readonly adapter: LoraAdapter | undefined;
  private readonly parts: Parts;
  private steps: AdamW | undefined;
  /** Copies the weights that this model starts from; absent once it has them. */
  private copies: (() => void) | undefined;

  private constructor(parts: Parts) {
    this.parts = parts;
    this.device = parts.base.device;
    this.base = parts.base;
    this.adapter = parts.adapter;
    this.copies = parts.copies;
  }

  /** An adapter with a head, over the frozen weights of a model that trains an adapter too. Holds no second base. */
  static beside(model: LanguageModel, { lora, seed }: { lora: LoraConfig; seed?: number | undefined }): ValueModel {
    const { base, passes, untrained } = model;
    const adapter = new LoraAdapter(base, withHead(lora), seed);
    return new ValueModel({ passes, base, start: untrained.weights(), adapter, owned: [] });
  }

  /** All weights, trained, in a float32 copy of a model's. The copy is made on first use, after a warm-up of that model. */
  static copyOf(model: LanguageModel, { seed }: { seed?: number | undefined } = {}): ValueModel {
    const config = { ...model.config, scoreHead: true };
    const base = new StoredWeights(model.device, config, { label: LABEL });
    const copies = () => copyWeights(model, { into: base, seed });
    return new ValueModel({ passes: model.passes, base, start: base, owned: [base], copies });
  }

  /** The weights of a model folder, whose own head is kept where it has one. */
  static async load(device: Device, folder: ModelFolder, options: ValueModelOptions = {}): Promise<ValueModel> {
    const { lora, seed = 0, label = LABEL, ...how } = options;
    const base = await loadWeights(device, folder, { ...how, label, scoreSeed: seed, ...(lora && { lora }) });
    const model = ValueModel.over(base, { ...options, seed });
    if (lora && folder.config.scoreHead) model.adapter!.values.write(SCORE, await folder.read(SCORE));
    return model;
  }

  /** Random weights, all of which train. */
  static create(device: Device, config: ModelConfig, options: Omit<ValueModelOptions, "lora"> = {}): ValueModel {
    const { seed = 0 } = options;
    const base = drawWeights(device, { ...config, scoreHead: true }, { seed });
    base.values.write(SCORE, initialScore(config, mulberry32(seed)));
    return ValueModel.over(base, options);
  }

  /** Weights with a shape and no values, for a device that counts. */
  static unread(device: Device, { config, typeOf }: ModelShape, options: ValueModelOptions = {}): ValueModel {
    const scored = { ...config, scoreHead: true };
    const formats = packedFormats(fusedParts(scored), { ...options, typeOf });
    return ValueModel.over(new StoredWeights(device, scored, { formats, label: options.label ?? LABEL }), options);
  }

  private static over(base: StoredWeights, { lora, seed, ...options }: ValueModelOptions): ValueModel {
    const transformer = new Transformer(base.device, base.config);
    const adapter = lora && new LoraAdapter(base, withHead(lora), seed);
    const passes = new Passes(transformer, options);
    return new ValueModel({ passes, base, start: base, adapter, owned: [base, transformer] });
  }

  /** Calls `listener` when memory ran out and passes are smaller from then on. */
  onWarning(listener: (message: string) => void): void {
    this.parts.passes.warn = listener;
  }

  /** The values that the optimiser changes, the head's among them. */
  get trainable(): ParameterSet {
    return this.adapter?.values ?? this.base.values;
  }

  /** False for a copy that was not used yet. */
  get isStarted(): boolean {
    return this.copies === undefined;
  }

  /** Makes the copy of the weights where it is not made yet. Records only. */
  start(): void {
    this.copies?.();
    this.copies = undefined;
  }

  /** Created on first use. */
  get optimizer(): AdamW {
    this.steps ??= new AdamW(this.device, this.trainable);
    return this.steps;
  }

  /** Optimiser steps taken. */
  get step(): number {
    return this.steps?.step ?? 0;
  }

  private get weights(): Weights {
    this.start();
    return this.adapter ? new AdaptedWeights(this.parts.start, this.adapter) : this.parts.start;
  }

  private get score() {
    return (this.adapter?.values ?? this.base.values).get(SCORE);
  }

  /**
   * The value at each target's position, [R]: with a mask, at the token before each masked one.
   * @throws ConfigError for a token outside the vocabulary, or a sequence beyond the context.
   */
  values(rows: PackedTokens & TargetChoice): Promise<Float32Array> {
    return this.parts.passes.values(this.weights, rows, { score: this.score });
  }

  /** Adds the gradient of a loss over the values to the accumulated gradient. @returns each pass's loss and its data */
  accumulate<L extends ValuePassLoss>(
    rows: PackedTokens & TargetChoice,
    { loss }: Pick<ValueTrainingPass<L>, "loss">,
  ): Promise<TrainedPass<L>[]> {
    const { weights, score } = this;
    return this.parts.passes.trainValues(weights, rows, { score, sink: this.sink(), loss });
  }

  private sink(): GradientSink {
    const { gradients } = this.optimizer;
    return this.adapter ? loraGradient(this.adapter, gradients) : weightGradient(this.device, gradients);
  }

  /** One AdamW step. @returns the norm of the gradient; NaN where it was not finite, and then nothing has changed. */
  optimStep(params: OptimParams): Promise<number> {
    return this.optimizer.apply(params, () => this.refresh());
  }

  /** Invalidates transposed copies after a change of the trainable values. The values count as the model's own. */
  refresh(): void {
    this.copies = undefined;
    if (this.adapter) this.adapter.changed();
    else this.base.refresh();
  }

  release(): void {
    this.steps?.release();
    this.adapter?.release();
    for (const part of this.parts.owned) part.release();
  }
}

/** The shape of an adapter that has a scalar head in place of changes of the output matrix. */
function withHead(lora: LoraConfig): LoraConfig {
  return { ...lora, targets: lora.targets.filter((target) => target !== UNEMBED_TARGET), scoreHead: true };
}

/** A model's start as float32 weights, and a new head. Records only. */
function copyWeights(model: LanguageModel, { into, seed }: { into: StoredWeights; seed: number | undefined }): void {
  for (const name of into.values.layout.entries.keys())
    if (name !== SCORE) model.base.copyMatrix(name, into.values.get(name));
  for (const adapter of model.baseAdapters) if (!adapter.isOnTiedTable) adapter.addTo(into);
  if (seed !== undefined) into.values.write(SCORE, initialScore(into.config, mulberry32(seed)));
  into.refresh();
}
