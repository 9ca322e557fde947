/** A language model on a device: its weights, an optional adapter, and the passes that score, train and sample it. */
import type { Data, Device } from "../compute/device.ts";
import type { OptimParams, PackedTokens, SampledSequence, SampleRequest } from "../contract/backend.ts";
import { ConfigError } from "../errors.ts";
import { type ModelConfig, parameterCount } from "./files/config.ts";
import type { ModelFolder } from "./files/folder.ts";
import { BatchSampler } from "./generate/batch_sampler.ts";
import { FoldedWeights } from "./generate/folded.ts";
import { drawWeights, loadWeights } from "./initial_weights.ts";
import { type LoraConfig, type LoraOptions, loraConfig } from "./lora.ts";
import type { ParameterSet } from "./parameters.ts";
import { type GradientSink, weightGradient } from "./train/gradient_sink.ts";
import { LoraAdapter } from "./train/lora_adapter.ts";
import { loraGradient } from "./train/lora_gradient.ts";
import { AdamW } from "./train/optimizer.ts";
import { Passes, type PassOptions, type TrainingPass } from "./train/passes.ts";
import type { TargetChoice } from "./train/targets.ts";
import type { TopLogprobs } from "./train/top_logprobs.ts";
import { Transformer } from "./transformer.ts";
import { Weights } from "./weights.ts";

export type { PassLoss, PassOutputs } from "./train/passes.ts";

/** What of a model is trained, and how much is computed at a time. */
export interface LanguageModelOptions extends PassOptions {
  /** Trains an adapter only. Absent: all weights train. */
  readonly lora?: LoraOptions | undefined;
  /** Of the initial values of the adapter or of a fresh model. Default 0. */
  readonly seed?: number | undefined;
  /** Copies of the weights with an adapter merged in, for models with several ({@link LanguageModel.branch}). Default 1. */
  readonly adapterSlots?: number | undefined;
  /** When loading, gives a model with a tied output matrix a separate one, so that adapters can change it (`lm_head`). */
  readonly untied?: boolean | undefined;
}

/** Shared by a model and its branches. */
interface Shared {
  readonly base: Weights;
  readonly passes: Passes;
  readonly sampler: BatchSampler;
  readonly folded: FoldedWeights;
}

/** A snapshot of a policy: the values of an adapter, or all weights. */
export interface FrozenPolicy {
  /** Device memory of the snapshot, bytes. */
  readonly bytes: number;
  /** Weights to run it with. Valid until another policy of the same model is run. */
  weights(): Weights;
  release(): void;
}

/** A decoder with its weights on a device: scores, trains and samples packed sequences. */
export class LanguageModel {
  readonly config: ModelConfig;
  readonly device: Device;
  /** The weights as loaded. Without an adapter they are trained in place. */
  readonly base: Weights;
  readonly adapter: LoraAdapter | undefined;
  private readonly shared: Shared;
  private readonly isBranch: boolean;
  private steps: AdamW | undefined;
  private frozen: Weights | undefined;

  private constructor(shared: Shared, options: LanguageModelOptions & { isBranch?: boolean }) {
    this.shared = shared;
    this.isBranch = options.isBranch ?? false;
    this.base = shared.base;
    this.device = shared.base.device;
    this.config = shared.base.config;
    if (options.lora) this.adapter = new LoraAdapter(this.base, loraConfig(options.lora), options.seed ?? 0);
  }

  private static over(base: Weights, options: LanguageModelOptions): LanguageModel {
    const transformer = new Transformer(base.device, base.config);
    const shared = {
      base,
      passes: new Passes(transformer, options),
      sampler: new BatchSampler(transformer),
      folded: new FoldedWeights(base, { slots: options.adapterSlots ?? 1 }),
    };
    return new LanguageModel(shared, options);
  }

  /** A model with the weights of a model folder. */
  static async load(device: Device, folder: ModelFolder, options: LanguageModelOptions = {}): Promise<LanguageModel> {
    return LanguageModel.over(await loadWeights(device, folder, options), options);
  }

  /** A model with fresh weights, see {@link drawWeights}. */
  static create(device: Device, config: ModelConfig, options: LanguageModelOptions = {}): LanguageModel {
    return LanguageModel.over(drawWeights(device, config, options.seed ?? 0), options);
  }

  /**
   * Another adapter over this model's weights, with a separate optimiser. The merged weights of `adapterSlots` adapters
   * are kept at a time. Release branches before this model, and do not train this model while it has branches.
   */
  branch(options: { lora: LoraConfig; seed?: number | undefined }): LanguageModel {
    return new LanguageModel(this.shared, { ...options, isBranch: true });
  }

  /** Longest sequence, tokens: the model's context, or less where one binding of the device covers less. */
  get contextLength(): number {
    return this.shared.passes.transformer.contextLength;
  }

  /** The current policy: the base weights with the adapter merged in. */
  get weights(): Weights {
    return this.adapter ? this.shared.folded.of(this.adapter) : this.base;
  }

  /** The values that the optimiser changes. */
  get trainable(): ParameterSet {
    return this.adapter?.values ?? this.base.values;
  }

  /** Created on first use, because a model that is not trained needs no moments. */
  get optimizer(): AdamW {
    this.steps ??= new AdamW(this.device, this.trainable);
    return this.steps;
  }

  /** Optimiser steps taken. */
  get step(): number {
    return this.steps?.step ?? 0;
  }

  get parameters(): number {
    return parameterCount(this.config);
  }

  get trainableParameters(): number {
    if (!this.adapter) return this.parameters;
    let sum = 0;
    for (const { rows, columns } of this.adapter.values.layout.entries.values()) sum += rows * columns;
    return sum;
  }

  /** Copies the current weights as the reference policy. With an adapter the base is the reference, without a copy. */
  freezeReference(): void {
    if (this.adapter) return;
    this.frozen ??= new Weights(this.device, this.config, "reference weights");
    this.frozen.values.copyFrom(this.base.values);
    this.frozen.refresh();
  }

  /** The copy of {@link freezeReference}, where all weights train. */
  get frozenReference(): Weights | undefined {
    return this.frozen;
  }

  private get reference(): Weights {
    if (this.adapter) return this.base;
    if (this.frozen) return this.frozen;
    throw new ConfigError(
      "Cannot score with the reference policy: all weights train and no copy was frozen. Freeze the reference before training, or train an adapter (model.lora_rank).",
      { path: "model.lora_rank" },
    );
  }

  /** A snapshot of the current policy. Copies on the device; records only. */
  freeze(): FrozenPolicy {
    const { adapter } = this;
    if (adapter) return this.freezeAdapter(adapter.snapshot());
    const copy = new Weights(this.device, this.config, "frozen weights");
    copy.values.copyFrom(this.base.values);
    return { bytes: copy.byteLength, weights: () => copy, release: () => copy.release() };
  }

  /** Copies the current weights, the adapter merged in, into a new copy or `into` an earlier one. Records only. */
  copyWeights(into?: Weights): Weights {
    const copy = into ?? new Weights(this.device, this.config, "copied weights");
    copy.values.copyFrom(this.weights.values);
    copy.refresh();
    return copy;
  }

  private freezeAdapter(copy: LoraAdapter): FrozenPolicy {
    const { folded } = this.shared;
    return {
      bytes: copy.values.byteLength,
      weights: () => folded.of(copy),
      release() {
        folded.forget(copy);
        copy.values.release();
      },
    };
  }

  /** Invalidates folded and transposed copies after a change of the trainable values; they are rebuilt on next use. */
  refresh(): void {
    if (this.adapter) this.adapter.changed();
    else this.base.refresh();
  }

  /**
   * log p(tokens[t] | before) and the entropy of that distribution, [T], 0 at first tokens.
   * @param options.policy `reference` is the model without its adapter, or the copy of {@link freezeReference}.
   * @throws ConfigError for a missing reference, a token outside the vocabulary, or a sequence beyond the context.
   */
  async logprobs(
    rows: PackedTokens,
    options: { policy: "current" | "reference" | FrozenPolicy; temperature: number },
  ): Promise<{ logprobs: Float32Array; entropy: Float32Array }> {
    const { tokens, offsets } = rows;
    const mask = new Uint32Array(tokens.length).fill(1);
    const weights = this.weightsOf(options.policy);
    const scores = await this.shared.passes.score(weights, { ...rows, mask }, options);
    const logprobs = new Float32Array(tokens.length);
    const entropy = new Float32Array(tokens.length);
    let r = 0;
    for (let i = 0; i + 1 < offsets.length; i++)
      for (let t = offsets[i]! + 1; t < offsets[i + 1]!; t++, r++) {
        logprobs[t] = scores.logprobs[r]!;
        entropy[t] = scores.entropies[r]!;
      }
    return { logprobs, entropy };
  }

  private weightsOf(policy: "current" | "reference" | FrozenPolicy): Weights {
    if (typeof policy === "object") return policy.weights();
    return policy === "reference" ? this.reference : this.weights;
  }

  /** Log-probability and entropy at each target, [R]. @throws ConfigError as {@link logprobs} */
  score(
    rows: PackedTokens & TargetChoice,
    options: { temperature: number },
  ): Promise<{ logprobs: Float32Array; entropies: Float32Array }> {
    return this.shared.passes.score(this.weights, rows, options);
  }

  /** The `k` most likely tokens after each position. */
  top(rows: PackedTokens, options: { k: number; policy: "current" | FrozenPolicy }): Promise<TopLogprobs> {
    return this.shared.passes.top(this.weightsOf(options.policy), rows, options);
  }

  /**
   * Adds the gradient of a loss over the masked tokens, or over any targets, to the accumulated gradient.
   * @param options.loss records the loss of one pass, which holds whole sequences.
   * @returns for each pass the data that the loss requested.
   */
  accumulate(rows: PackedTokens & TargetChoice, options: Omit<TrainingPass, "sink">): Promise<Data[][]> {
    return this.shared.passes.train(this.weights, rows, { ...options, sink: this.sink() });
  }

  private sink(): GradientSink {
    const { gradients } = this.optimizer;
    return this.adapter ? loraGradient(this.adapter, gradients) : weightGradient(this.device, gradients);
  }

  /** One AdamW step. @returns the norm of the gradient; NaN where it was not finite, and then nothing has changed. */
  optimStep(params: OptimParams): Promise<number> {
    return this.optimizer.apply(params, () => this.refresh());
  }

  /** Draws every request, in the order of the requests. */
  sample(
    requests: readonly SampleRequest[],
    options: {
      weightVersion: number;
      policy?: FrozenPolicy | undefined;
      signal?: AbortSignal | undefined;
    },
  ): Promise<SampledSequence[]> {
    return this.shared.sampler.sample(this.weightsOf(options.policy ?? "current"), requests, options);
  }

  release(): void {
    this.steps?.release();
    if (this.adapter) {
      this.shared.folded.forget(this.adapter);
      this.adapter.values.release();
    }
    this.frozen?.release();
    if (this.isBranch) return;
    this.shared.folded.release();
    this.base.release();
    this.shared.passes.transformer.release();
  }
}
