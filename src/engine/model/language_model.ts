/** A language model on a device: its weights, an optional adapter, and the passes that score, train and sample it. */

import { ConfigError } from "../../leaves/errors.ts";
import type { Device } from "../compute/device.ts";
import type { OptimParams, PackedTokens, SampledSequence } from "../contract/backend.ts";
import type { PromptDraws } from "../contract/engine.ts";
import type { BaseWeights } from "./adapted_weights.ts";
import type { ModelConfig } from "./config.ts";
import type { ModelFolder } from "./files/folder.ts";
import { fusedParts } from "./fused_parts.ts";
import { BatchSampler, type DrawOptions, type SamplerOptions } from "./generate/batch_sampler.ts";
import type { CacheOptions } from "./generate/key_value_cache.ts";
import type { DrawRequest } from "./generate/sequence.ts";
import { type GradientSink, weightGradient } from "./gradient_sink.ts";
import { drawWeights, loadWeights } from "./initial_weights.ts";
import { parameterCount } from "./layers.ts";
import { type LoraConfig, loraConfig } from "./lora.ts";
import type { ModelShape } from "./model_shape.ts";
import type { ParameterSet } from "./parameters.ts";
import { type FrozenPolicy, MOST_MIXED, type PolicyCopy, PolicyWeights } from "./policies.ts";
import { packedFormats, type StorageOptions } from "./storage_format.ts";
import { StoredWeights } from "./stored_weights.ts";
import { LoraAdapter } from "./train/lora_adapter.ts";
import { loraGradient } from "./train/lora_gradient.ts";
import { AdamW } from "./train/optimizer.ts";
import type { PassOptions } from "./train/pass_size.ts";
import { Passes, type PassLoss, type TrainedPass, type TrainingPass } from "./train/passes.ts";
import type { TargetChoice } from "./train/targets.ts";
import type { TopLogprobs, TopOptions } from "./train/top_logprobs.ts";
import { Transformer } from "./transformer.ts";
import type { Weights } from "./weights.ts";

export type { FrozenPolicy, PolicyCopy } from "./policies.ts";
export type { PassLoss, PassOutputs } from "./train/passes.ts";

/** Trained parts of a model, and how much is computed at a time. */
export interface LanguageModelOptions extends PassOptions, StorageOptions {
  /** Seed of the initial values of the adapter or of a fresh model. Default 0. */
  readonly seed?: number | undefined;
  /** How the keys and values of sampled sequences are held. */
  readonly cache?: CacheOptions | undefined;
  /** Whether a chunk of sampling is submitted before the tokens of the one before it are read. Default: on GPUs. No bit changes. */
  readonly pipelined?: SamplerOptions["pipelined"];
  /** Most prompt tokens that sampling computes together, and between two chunks of sequences that decode: {@link SamplerOptions}. */
  readonly maxBatchedTokens?: SamplerOptions["maxBatchedTokens"];
  /** How sampling guesses tokens that it verifies several at a time. No bit changes. Default: it does not. */
  readonly speculative?: SamplerOptions["speculative"];
  /**
   * Whether an adapter is folded into a copy of the weights (faster, and a copy per adapter), or applied beside them (no
   * copy). The copy is f32 whatever the weights are held in, because bfloat16 would round the sum. `auto`, the default,
   * folds where the weights are float32 and few, on software adapters; a plan that lacks the memory says `false`. An adapter on a tied output matrix cannot be folded.
   * A fold adds in f32 and the product beside adds after its own sums, so the two differ by rounding.
   */
  readonly foldAdapter?: boolean | "auto" | undefined;
  /** Folded copies that are kept, for models with several adapters ({@link LanguageModel.branch}). Default 1. */
  readonly adapterSlots?: number | undefined;
}

/** Shared by a model and its branches. */
interface Shared {
  readonly policies: PolicyWeights;
  readonly passes: Passes;
  readonly sampler: BatchSampler;
  readonly isFrozen: boolean;
}

/** A decoder with its weights on a device: scores, trains and samples packed sequences. */
export class LanguageModel {
  readonly config: ModelConfig;
  readonly device: Device;
  /** The weights as loaded. Without an adapter they are trained in place. */
  readonly base: StoredWeights;
  readonly adapter: LoraAdapter | undefined;
  private readonly shared: Shared;
  private readonly isBranch: boolean;
  private steps: AdamW | undefined;
  private frozen: StoredWeights | undefined;

  private constructor(shared: Shared, options: LanguageModelOptions & { isBranch?: boolean; isUnread?: boolean }) {
    const { weights } = shared.policies.base;
    this.shared = shared;
    this.isBranch = options.isBranch ?? false;
    this.base = weights;
    this.device = weights.device;
    this.config = weights.config;
    const seed = options.isUnread ? undefined : (options.seed ?? 0);
    if (options.lora) this.adapter = new LoraAdapter(weights, loraConfig(options.lora), seed);
  }

  /** A model over weights that it then owns, and releases. */
  static over(base: BaseWeights, options: LanguageModelOptions & { isUnread?: boolean } = {}): LanguageModel {
    const { device, config } = base.weights;
    if (config.scoreHead || base.adapters.some((adapter) => adapter.config.scoreHead)) throw isNoLanguageModel();
    const transformer = new Transformer(device, config);
    const { adapterSlots = 1, foldAdapter = "auto" } = options;
    const shared = {
      policies: new PolicyWeights(base, { adapterSlots, foldAdapter }),
      passes: new Passes(transformer, options),
      sampler: new BatchSampler(transformer, options),
      isFrozen: options.frozen ?? false,
    };
    return new LanguageModel(shared, options);
  }

  /** A model with the weights of a model folder. */
  static async load(device: Device, folder: ModelFolder, options: LanguageModelOptions = {}): Promise<LanguageModel> {
    return LanguageModel.over({ weights: await loadWeights(device, folder, options), adapters: [] }, options);
  }

  /**
   * A model whose weights have a shape and no values, for a device that counts.
   * @param options.label of its weights, where they are not the policy's
   */
  static unread(
    device: Device,
    { config, typeOf, adapters: added = [] }: ModelShape,
    { label, ...options }: LanguageModelOptions & { readonly label?: string } = {},
  ): LanguageModel {
    const formats = packedFormats(fusedParts(config), { ...options, typeOf });
    const weights = new StoredWeights(device, config, { formats, ...(label !== undefined && { label }) });
    const adapters = added.flatMap((lora) => {
      const adapter = new LoraAdapter(weights, lora);
      if (!adapter.isMerged) return [adapter];
      adapter.release();
      return [];
    });
    return LanguageModel.over({ weights, adapters }, { ...options, isUnread: true });
  }

  /** A model with fresh weights, see {@link drawWeights}. */
  static create(device: Device, config: ModelConfig, options: LanguageModelOptions = {}): LanguageModel {
    return LanguageModel.over({ weights: drawWeights(device, config, options), adapters: [] }, options);
  }

  /**
   * Another adapter over this model's weights, with a separate optimiser. Release branches before this model, and do not
   * train this model while it has branches.
   */
  branch(options: { lora: LoraConfig; seed?: number | undefined }): LanguageModel {
    return new LanguageModel(this.shared, { ...options, isBranch: true });
  }

  /** Calls `listener` when memory ran out and passes are smaller from then on. The numbers change in their last digits only. */
  onWarning(listener: (message: string) => void): void {
    this.shared.passes.warn = listener;
    this.shared.sampler.warn = listener;
  }

  /** Longest sequence, tokens: the model's context, or less where one binding of the device covers less. */
  get contextLength(): number {
    return this.shared.passes.transformer.contextLength;
  }

  /** The current policy: the base weights, with the adapter beside them or in a folded copy. */
  get weights(): Weights {
    return this.shared.policies.of(this.adapter);
  }

  /** Adapters that {@link weights} adds to {@link base}, in this order. */
  get adapters(): readonly LoraAdapter[] {
    return [...this.shared.policies.base.adapters, ...(this.adapter ? [this.adapter] : [])];
  }

  /** The policy without the adapter that is trained here. */
  get untrained(): FrozenPolicy {
    return { bytes: 0, mostMixed: MOST_MIXED, weights: () => this.shared.policies.start, release() {} };
  }

  /** Runs other heads over the same layers: see {@link ValueModel}. */
  get passes(): Passes {
    return this.shared.passes;
  }

  /** Adapters that {@link untrained} adds to {@link base}, in this order. */
  get baseAdapters(): readonly LoraAdapter[] {
    return this.shared.policies.base.adapters;
  }

  /** The values that the optimiser changes. */
  get trainable(): ParameterSet {
    return this.adapter?.values ?? this.base.values;
  }

  /**
   * Created on first use, because a model that is not trained needs no moments.
   * @throws ConfigError for a frozen model without an adapter.
   */
  get optimizer(): AdamW {
    if (this.isFrozen)
      throw new ConfigError("Cannot train the model: its weights are frozen. Train an adapter (model.lora_rank).", {
        path: "model.lora_rank",
      });
    this.steps ??= new AdamW(this.device, this.trainable);
    return this.steps;
  }

  private get isFrozen(): boolean {
    return this.shared.isFrozen && !this.adapter;
  }

  /** Optimiser steps taken. */
  get step(): number {
    return this.steps?.step ?? 0;
  }

  get parameters(): number {
    return parameterCount(this.config);
  }

  get trainableParameters(): number {
    return this.adapter?.values.size ?? this.parameters;
  }

  /** Copies the current weights as the reference policy. With an adapter the base is the reference, without a copy. */
  freezeReference(): void {
    if (this.adapter) return;
    this.frozen ??= new StoredWeights(this.device, this.config, { label: "reference weights" });
    this.frozen.copyFrom(this.base);
  }

  /** The copy of {@link freezeReference}, where all weights train. */
  get frozenReference(): StoredWeights | undefined {
    return this.frozen;
  }

  private get reference(): Weights {
    if (this.adapter) return this.shared.policies.start;
    if (this.frozen) return this.frozen;
    throw new ConfigError(
      "Cannot score with the reference policy: all weights train and no copy was frozen. Freeze the reference before training, or train an adapter (model.lora_rank).",
      { path: "model.lora_rank" },
    );
  }

  /** A snapshot of the current policy. Copies on the device; records only. */
  freeze(): FrozenPolicy {
    return this.isFrozen ? this.untrained : this.shared.policies.freeze(this.adapter);
  }

  /** A copy to sample from while the model trains: of the adapter's values where it lies beside the base, else of all weights. */
  copyPolicy(): PolicyCopy {
    return this.isFrozen ? { ...this.untrained, update() {} } : this.shared.policies.copy(this.adapter);
  }

  /** Invalidates folded and transposed copies after a change of the trainable values; they are rebuilt on next use. */
  refresh(): void {
    if (this.adapter) this.adapter.changed();
    else this.base.refresh();
  }

  /**
   * log p(tokens[t] | before) and the entropy of that distribution, [T], 0 at first tokens.
   * @param options.policy `reference` is the model without its adapter, or the copy of {@link freezeReference}.
   * @param options.mask [T]; 0 where a value is not wanted, which saves the output matrix there. Values are 0 there.
   * @param options.greedy also tells where a token is the most likely one: 1, else 0, [T].
   * @throws ConfigError for a missing reference, a token outside the vocabulary, or a sequence beyond the context.
   */
  async logprobs(
    rows: PackedTokens,
    options: {
      policy: "current" | "reference" | FrozenPolicy;
      temperature: number;
      mask?: Uint32Array | undefined;
      greedy?: boolean | undefined;
    },
  ): Promise<{ logprobs: Float32Array; entropy: Float32Array; greedy?: Float32Array }> {
    const { tokens, offsets } = rows;
    const mask = options.mask ?? new Uint32Array(tokens.length).fill(1);
    const weights = this.weightsOf(options.policy);
    const { temperature } = options;
    const scores = await this.shared.passes.score(weights, { ...rows, mask }, { temperature, greedy: options.greedy });
    const logprobs = new Float32Array(tokens.length);
    const entropy = new Float32Array(tokens.length);
    const greedy = scores.greedy && new Float32Array(tokens.length);
    let r = 0;
    for (let i = 0; i + 1 < offsets.length; i++)
      for (let t = offsets[i]! + 1; t < offsets[i + 1]!; t++) {
        if (mask[t] !== 1) continue;
        logprobs[t] = scores.logprobs[r]!;
        if (greedy) greedy[t] = scores.greedy![r]!;
        entropy[t] = scores.entropies[r++]!;
      }
    return { logprobs, entropy, ...(greedy && { greedy }) };
  }

  private weightsOf(policy: "current" | "reference" | FrozenPolicy): Weights {
    if (typeof policy === "object") return policy.weights();
    return policy === "reference" ? this.reference : this.weights;
  }

  /** Log-probability and entropy at each target, [R]. @throws ConfigError as {@link logprobs} */
  score(
    rows: PackedTokens & TargetChoice,
    options: { temperature: number; policy?: FrozenPolicy | undefined },
  ): Promise<{ logprobs: Float32Array; entropies: Float32Array }> {
    return this.shared.passes.score(this.weightsOf(options.policy ?? "current"), rows, options);
  }

  /** The `k` most likely tokens after each position, or with a mask in the place of each token whose mask is 1. */
  top(
    rows: PackedTokens & { readonly mask?: Uint32Array | undefined },
    options: TopOptions & { policy: "current" | "reference" | FrozenPolicy },
  ): Promise<TopLogprobs> {
    return this.shared.passes.top(this.weightsOf(options.policy), rows, options);
  }

  /** Tokens drawn after each position of one sequence, [positions, k], with their log-probs at temperature 1. */
  draws(
    of: PromptDraws & { readonly tokens: Uint32Array; readonly policy: "current" | FrozenPolicy },
  ): Promise<TopLogprobs> {
    return this.shared.passes.draws(this.weightsOf(of.policy), of);
  }

  /**
   * Adds the gradient of a loss over the masked tokens, or over any targets, to the accumulated gradient.
   * @param options.loss records the loss of one pass, which holds whole sequences.
   * @returns each pass's loss with the data that it requested.
   */
  accumulate<L extends PassLoss>(
    rows: PackedTokens & TargetChoice,
    options: Omit<TrainingPass<L>, "sink">,
  ): Promise<TrainedPass<L>[]> {
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

  /** Draws every request, in the order of the requests: with its own policy where it names one that {@link mixes}. */
  sample(
    requests: readonly DrawRequest[],
    options: DrawOptions & { policy?: FrozenPolicy | undefined },
  ): Promise<SampledSequence[]> {
    const { weights } = this;
    return this.shared.sampler.sample(options.policy ?? { weights: () => weights }, requests, options);
  }

  /** Whether policies of that model are of this one's base, so that one batch can have both. */
  mixes(other: LanguageModel): boolean {
    return other.shared === this.shared;
  }

  release(): void {
    this.steps?.release();
    if (this.adapter) this.shared.policies.release(this.adapter);
    this.frozen?.release();
    if (this.isBranch) return;
    this.shared.policies.close();
    this.shared.passes.transformer.release();
  }
}

function isNoLanguageModel(): ConfigError {
  return new ConfigError(
    "Cannot open the model to sample or to train its policy: it ends in a scalar head, because it is a critic or a reward model. Give a language model.",
    { path: "model.name" },
  );
}
