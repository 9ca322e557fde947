/** A language model on a device: weights, an adapter or none, and the passes that score, train and sample it. */

import type { Data, Device } from "../compute/device.ts";
import { matmul } from "../compute/matmul/matmul.ts";
import type { OptimParams, PackedTokens, SampledSequence, SampleRequest } from "../contract/backend.ts";
import { ConfigError } from "../errors.ts";
import { mulberry32, normals } from "../random.ts";
import { type ModelConfig, parameterCount } from "./files/config.ts";
import type { ModelFolder } from "./files/folder.ts";
import { startLoading } from "./files/loading.ts";
import { FoldedWeights } from "./generate/folded.ts";
import { Sampler } from "./generate/sampler.ts";
import type { ParameterSet } from "./parameters.ts";
import { LoraAdapter, type LoraConfig, type LoraOptions, loraConfig } from "./train/lora_adapter.ts";
import { AdamW } from "./train/optimizer.ts";
import { type Asked, Passes, type TopLogprobs, type TrainingPass } from "./train/passes.ts";
import { type GradientSink, Transformer } from "./transformer.ts";
import { EMBEDDING, Weights } from "./weights.ts";

export { type PassLoss, type PassOutputs, slicePacked } from "./train/passes.ts";

export interface LanguageModelOptions {
  /** Train an adapter and leave the weights; without it all weights are trained. */
  readonly lora?: LoraOptions | undefined;
  /** Of the adapter's or a fresh model's first values. Default 0. */
  readonly seed?: number;
  /** Tokens per pass; longer batches are worked through in several. Default 8192. */
  readonly microBatchTokens?: number;
  /** Copies of the weights that hold an adapter each, where several share the base ({@link LanguageModel.branch}). Default 1. */
  readonly adapterSlots?: number;
  /** Gives a model with a tied output matrix one of its own, so that adapters can change it (`lm_head`). For loading. */
  readonly untied?: boolean;
}

/** What a model and its branches have in common. */
interface Shared {
  readonly base: Weights;
  readonly passes: Passes;
  readonly sampler: Sampler;
  readonly folded: FoldedWeights;
}

/** A policy held still: an adapter's values, or whole weights, as they were when it was taken. */
export interface FrozenPolicy {
  /** Device memory that it holds of its own. */
  readonly bytes: number;
  /** Weights to run it with, until other policies of the model are asked for theirs. */
  weights(): Weights;
  release(): void;
}

export class LanguageModel {
  readonly config: ModelConfig;
  readonly device: Device;
  /** As loaded; trained in place without an adapter. */
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
      sampler: new Sampler(transformer),
      folded: new FoldedWeights(base, { slots: options.adapterSlots ?? 1 }),
    };
    return new LanguageModel(shared, options);
  }

  /** Loads a model folder's weights. */
  static async load(
    device: Device,
    folder: ModelFolder,
    options: LanguageModelOptions = {},
  ): Promise<LanguageModel> {
    const isUntied = folder.config.tied && options.untied === true;
    const weights = new Weights(device, isUntied ? { ...folder.config, tied: false } : folder.config);
    // With nothing recorded before them, writes go straight to the device: no second copy of the weights is made.
    await device.submit();
    const sourceOf = ({ tensor }: { readonly tensor: string }) =>
      isUntied && tensor === "lm_head.weight" ? EMBEDDING : tensor;
    const sizeOf = (source: string) => folder.tensors.get(source)?.byteLength ?? 0;
    const read = startLoading(
      folder.name,
      weights.parts.map((part) => sizeOf(sourceOf(part))),
    );
    for (const part of weights.parts) {
      const source = sourceOf(part);
      weights.writeTensor(part, await folder.read(source));
      read(sizeOf(source));
    }
    return LanguageModel.over(weights, options);
  }

  /**
   * A model with fresh weights: matrices normal with deviation 1/sqrt(in), those that write into the residual stream
   * smaller by sqrt(2 layers), embeddings 0.02, norms one, biases zero.
   */
  static create(device: Device, config: ModelConfig, options: LanguageModelOptions = {}): LanguageModel {
    const weights = new Weights(device, config);
    const next = mulberry32(options.seed ?? 0);
    for (const part of weights.parts) {
      const length = part.rows * part.columns;
      if (part.tensor.endsWith("norm.weight")) weights.writeTensor(part, new Float32Array(length).fill(1));
      else if (part.tensor.endsWith("bias")) weights.writeTensor(part, new Float32Array(length));
      else
        weights.writeTensor(
          part,
          normals(length, { next, deviation: initialDeviation(part.tensor, config) }),
        );
    }
    return LanguageModel.over(weights, options);
  }

  /**
   * A further adapter over this model's weights, with an optimiser of its own: they train side by side, a copy of the
   * weights at a time (`adapterSlots`). To be released before this model, whose weights must not be trained meanwhile.
   */
  branch(options: { lora: LoraConfig; seed?: number }): LanguageModel {
    return new LanguageModel(this.shared, { ...options, isBranch: true });
  }

  /** Longest sequence: the model's own context, or what a binding of the device covers where that is less. */
  get contextLength(): number {
    return this.shared.passes.transformer.contextLength;
  }

  /** The weights a forward pass uses now. */
  get weights(): Weights {
    return this.adapter ? this.shared.folded.of(this.adapter) : this.base;
  }

  /** What the optimiser moves. */
  get trainable(): ParameterSet {
    return this.adapter?.values ?? this.base.values;
  }

  /** Made when first asked for: a model that is not trained has no moments. */
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

  /** Keeps the weights as they are now as the reference policy. An adapter needs no copy: its base is the reference. */
  freezeReference(): void {
    if (this.adapter) return;
    this.frozen ??= new Weights(this.device, this.config, "reference weights");
    this.frozen.values.copyFrom(this.base.values);
    this.frozen.refresh();
  }

  /** The frozen weights, where all weights are trained and some were kept. */
  get frozenReference(): Weights | undefined {
    return this.frozen;
  }

  private get reference(): Weights {
    if (this.adapter) return this.base;
    if (this.frozen) return this.frozen;
    throw new ConfigError(
      "Cannot score with the reference policy: all weights are trained and none were kept. Freeze them before training, or train an adapter (model.lora_rank).",
      { path: "model.lora_rank" },
    );
  }

  /** The policy as it is now, whatever is trained later. Copies on the device; records only. */
  freeze(): FrozenPolicy {
    const { adapter } = this;
    if (adapter) return this.freezeAdapter(adapter.snapshot());
    const copy = new Weights(this.device, this.config, "frozen weights");
    copy.values.copyFrom(this.base.values);
    return { bytes: copy.byteLength, weights: () => copy, release: () => copy.release() };
  }

  /** The weights as they are now, an adapter folded in, in a copy of their own or `into` an earlier one. Records only. */
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

  /** Says that the trainable values changed: what follows from them, folded or transposed, is made anew when next used. */
  refresh(): void {
    if (this.adapter) this.adapter.changed();
    else this.base.refresh();
  }

  /**
   * log p(tokens[t] | before) and the entropy of that distribution, [T], 0 at first tokens.
   * @param options.policy `reference` is the model without its adapter, or what {@link freezeReference} kept.
   * @throws ConfigError for a reference that nobody kept, a token outside the vocabulary, a sequence beyond the context.
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

  /** Log-probabilities and entropies of the tokens asked about, one per target. @throws ConfigError as {@link logprobs} */
  score(
    rows: PackedTokens & Asked,
    options: { temperature: number },
  ): Promise<{ logprobs: Float32Array; entropies: Float32Array }> {
    return this.shared.passes.score(this.weights, rows, options);
  }

  /** The `k` likeliest tokens after each position. */
  top(rows: PackedTokens, options: { k: number; policy: "current" | FrozenPolicy }): Promise<TopLogprobs> {
    return this.shared.passes.top(this.weightsOf(options.policy), rows, options);
  }

  /**
   * Adds the gradient of a loss over the masked tokens, or over any targets, to what the optimiser has gathered.
   * @param loss records the loss of one pass; passes hold whole sequences.
   * @returns for each pass what the loss asked to read.
   */
  accumulate(rows: PackedTokens & Asked, options: Omit<TrainingPass, "sink">): Promise<Data[][]> {
    return this.shared.passes.train(this.weights, rows, { ...options, sink: this.sink() });
  }

  private sink(): GradientSink {
    const { gradients } = this.optimizer;
    return this.adapter ? this.adapter.sink(gradients) : fullSink(this.device, gradients);
  }

  /** One AdamW step. @returns the gradients' norm, NaN where it was not finite (and nothing changed). */
  optimStep(params: OptimParams): Promise<number> {
    return this.optimizer.apply(params, () => this.refresh());
  }

  sample(
    requests: readonly SampleRequest[],
    options: { weightVersion: number; policy?: FrozenPolicy | undefined; signal?: AbortSignal | undefined },
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

function fullSink(device: Device, gradients: ParameterSet): GradientSink {
  return {
    matrix(name, { dy, x, m, stride }) {
      const { rows, columns } = gradients.entry(name);
      matmul(device, {
        m: rows,
        n: columns,
        k: m,
        a: { buffer: dy, stride },
        b: { buffer: x },
        c: { buffer: gradients.get(name) },
        transposeA: true,
        accumulate: true,
      });
    },
    slot: (name) => gradients.get(name),
  };
}

function initialDeviation(tensor: string, config: ModelConfig): number {
  if (tensor.includes("embed_tokens")) return 0.02;
  const inputs = tensor.includes("down_proj")
    ? config.intermediateSize
    : tensor.includes("o_proj")
      ? config.heads * config.headDim
      : config.hiddenSize;
  const residual = /(o_proj|down_proj)/.test(tensor) ? Math.sqrt(2 * config.layers) : 1;
  return 1 / Math.sqrt(inputs) / residual;
}
