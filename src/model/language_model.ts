/** A language model on a device: weights, an adapter or none, and the passes that score, train and sample it. */
import type { OptimParams, PackedTokens, SampledSequence, SampleRequest } from "../backend.ts";
import type { Buffer, Data, Device, ReadRequest } from "../compute/device.ts";
import { matmul } from "../compute/matmul.ts";
import { ConfigError } from "../errors.ts";
import { BackwardPass } from "./backward.ts";
import { type ModelConfig, parameterCount } from "./config.ts";
import type { ModelFolder } from "./folder.ts";
import { HeadPass, type Targets } from "./head.ts";
import { LoraAdapter, type LoraConfig } from "./lora.ts";
import { AdamW } from "./optimizer.ts";
import type { ParameterSet } from "./parameters.ts";
import { normals, uniforms } from "./random.ts";
import { Sampler } from "./sampler.ts";
import { Scratch } from "./scratch.ts";
import { type GradientSink, packInput, Transformer } from "./transformer.ts";
import { Weights } from "./weights.ts";

export interface LanguageModelOptions {
  /** Train an adapter and leave the weights; without it all weights are trained. */
  readonly lora?: LoraConfig;
  /** Of the adapter's or a fresh model's first values. Default 0. */
  readonly seed?: number;
  /** Tokens per pass; longer batches are worked through in several. Default 8192. */
  readonly microBatchTokens?: number;
}

/** The per-token results of a training pass that a loss is taken of, one per target. */
export interface PassOutputs {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
  /** Which of the batch's sequences this pass holds. */
  readonly sequences: { readonly from: number; readonly to: number };
  /** Rows of the targets: sequence i of this pass owns targets[offsets[i] .. offsets[i+1]). */
  readonly offsets: Uint32Array;
}

/** A loss, recorded: gradients to send back and what to read at the end. */
export interface PassLoss {
  readonly dlogprobs: Buffer;
  readonly dentropy?: Buffer;
  readonly reads: readonly ReadRequest[];
  release(): void;
}

const DEFAULT_MICRO_BATCH_TOKENS = 8192;

export class LanguageModel {
  readonly config: ModelConfig;
  readonly device: Device;
  private readonly transformer: Transformer;
  /** As loaded; trained in place without an adapter. */
  readonly base: Weights;
  readonly adapter: LoraAdapter | undefined;
  readonly optimizer: AdamW;
  private readonly folded: Weights | undefined;
  private frozen: Weights | undefined;
  private readonly sampler: Sampler;
  private readonly microBatchTokens: number;

  private constructor(base: Weights, options: LanguageModelOptions) {
    this.base = base;
    this.device = base.device;
    this.config = base.config;
    this.transformer = new Transformer(base.device, base.config);
    this.sampler = new Sampler(this.transformer);
    this.microBatchTokens = options.microBatchTokens ?? DEFAULT_MICRO_BATCH_TOKENS;
    base.refresh();
    if (options.lora) {
      this.adapter = new LoraAdapter(base, options.lora, options.seed ?? 0);
      this.folded = new Weights(base.device, base.config, "folded weights");
    }
    this.optimizer = new AdamW(base.device, this.trainable);
    this.refresh();
  }

  /** Loads a model folder's weights. */
  static async load(
    device: Device,
    folder: ModelFolder,
    options: LanguageModelOptions = {},
  ): Promise<LanguageModel> {
    const weights = new Weights(device, folder.config);
    for (const part of weights.parts) weights.writeTensor(part, await folder.read(part.tensor));
    return new LanguageModel(weights, options);
  }

  /**
   * A model with fresh weights: matrices normal with deviation 1/sqrt(in), those that write into the residual stream
   * smaller by sqrt(2 layers), embeddings 0.02, norms one, biases zero.
   */
  static create(device: Device, config: ModelConfig, options: LanguageModelOptions = {}): LanguageModel {
    const weights = new Weights(device, config);
    const next = uniforms(options.seed ?? 0);
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
    return new LanguageModel(weights, options);
  }

  /** The weights a forward pass uses now. */
  get weights(): Weights {
    return this.folded ?? this.base;
  }

  /** What the optimiser moves. */
  get trainable(): ParameterSet {
    return this.adapter?.values ?? this.base.values;
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

  /** Brings folded and transposed copies up to date after the trainable values changed. Records only. */
  refresh(): void {
    if (this.adapter && this.folded) this.adapter.fold(this.folded);
    else this.base.refresh();
  }

  /**
   * log p(tokens[t] | before) and the entropy of that distribution, [T], 0 at first tokens.
   * @param options.policy `reference` is the model without its adapter, or what {@link freezeReference} kept.
   * @throws ConfigError for a reference that nobody kept, a token outside the vocabulary, a sequence beyond the context.
   */
  async logprobs(
    rows: PackedTokens,
    options: { policy: "current" | "reference"; temperature: number },
  ): Promise<{ logprobs: Float32Array; entropy: Float32Array }> {
    this.check(rows);
    const weights = options.policy === "reference" ? this.reference : this.weights;
    const results = {
      logprobs: new Float32Array(rows.tokens.length),
      entropy: new Float32Array(rows.tokens.length),
    };
    for (const { from, to } of this.microBatches(rows.offsets)) {
      const scratch = new Scratch(this.device);
      const part = slicePacked(rows, { from, to });
      const targets = allTargets(part);
      const input = packInput(scratch, part);
      const state = this.transformer.forward(weights, { input, scratch, save: false });
      const head = new HeadPass(this.transformer, weights, {
        state,
        targets,
        temperature: options.temperature,
        scratch,
      });
      const [logprobs, entropies] = await this.device.read([
        { buffer: head.logprobs, type: "f32" },
        { buffer: head.entropies, type: "f32" },
      ]);
      scratch.release();
      for (const [r, position] of targets.positions.entries()) {
        results.logprobs[rows.offsets[from] + position + 1] = logprobs[r];
        results.entropy[rows.offsets[from] + position + 1] = entropies[r];
      }
    }
    return results;
  }

  /**
   * Adds the gradient of a loss over the masked tokens to what the optimiser has gathered.
   * @param rows mask [T], 1 at tokens whose log-probability the loss takes.
   * @param loss records the loss of one pass; passes hold whole sequences.
   * @returns for each pass what the loss asked to read.
   */
  async accumulate(
    rows: PackedTokens & { readonly mask: Uint32Array },
    options: { temperature: number; loss: (outputs: PassOutputs) => PassLoss | Promise<PassLoss> },
  ): Promise<Data[][]> {
    this.check(rows);
    const results: Data[][] = [];
    for (const range of this.microBatches(rows.offsets)) {
      const part = slicePacked(rows, range);
      const mask = rows.mask.subarray(rows.offsets[range.from], rows.offsets[range.to]);
      const { targets, offsets } = maskedTargets(part, mask);
      if (targets.positions.length === 0) continue;
      results.push(await this.pass(part, { ...options, targets, offsets, sequences: range }));
    }
    return results;
  }

  private async pass(
    rows: PackedTokens,
    at: {
      targets: Targets;
      offsets: Uint32Array;
      sequences: { from: number; to: number };
      temperature: number;
      loss: (outputs: PassOutputs) => PassLoss | Promise<PassLoss>;
    },
  ): Promise<Data[]> {
    const { targets, temperature, offsets, sequences } = at;
    const { transformer, weights } = this;
    const scratch = new Scratch(this.device);
    try {
      const input = packInput(scratch, rows);
      const state = transformer.forward(weights, { input, scratch, save: true });
      const head = new HeadPass(transformer, weights, { state, targets, temperature, scratch });
      const loss = await at.loss({ logprobs: head.logprobs, entropies: head.entropies, sequences, offsets });
      const sink = this.sink();
      const grads = { logprobs: loss.dlogprobs, entropies: loss.dentropy };
      const hiddenGrad = head.backward(grads, { sink, tokens: input.count });
      new BackwardPass(transformer).run(weights, { state, hiddenGrad, sink });
      const data = await this.device.read(loss.reads);
      loss.release();
      return data;
    } finally {
      scratch.release();
    }
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
    options: { weightVersion: number; signal?: AbortSignal },
  ): Promise<SampledSequence[]> {
    return this.sampler.sample(this.weights, requests, options);
  }

  /** Whole sequences in runs of at most `microBatchTokens`, or one sequence where it is longer. */
  private microBatches(offsets: Uint32Array): { from: number; to: number }[] {
    const ranges: { from: number; to: number }[] = [];
    let from = 0;
    for (let i = 1; i < offsets.length; i++) {
      const isLast = i === offsets.length - 1;
      if (!isLast && offsets[i + 1] - offsets[from] <= this.microBatchTokens) continue;
      if (offsets[i] > offsets[from]) ranges.push({ from, to: i });
      from = i;
    }
    return ranges;
  }

  private check({ tokens, offsets }: PackedTokens): void {
    const { vocabSize, contextLength } = this.config;
    for (let i = 0; i + 1 < offsets.length; i++) {
      if (offsets[i + 1] - offsets[i] <= contextLength) continue;
      throw new ConfigError(
        `Cannot run sequence ${i} as the model's context is ${contextLength} tokens: ${offsets[i + 1] - offsets[i]}`,
      );
    }
    const outside = tokens.findIndex((token) => token >= vocabSize);
    if (outside >= 0)
      throw new ConfigError(
        `Cannot run token ${outside} as ids must lie in [0, ${vocabSize}): ${tokens[outside]}`,
      );
  }

  release(): void {
    this.optimizer.release();
    this.adapter?.values.release();
    this.folded?.release();
    this.frozen?.release();
    this.base.release();
    this.transformer.release();
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

/** Sequences [from, to) with offsets from 0. */
export function slicePacked(rows: PackedTokens, { from, to }: { from: number; to: number }): PackedTokens {
  const start = rows.offsets[from];
  return {
    tokens: rows.tokens.subarray(start, rows.offsets[to]),
    offsets: rows.offsets.subarray(from, to + 1).map((offset) => offset - start),
  };
}

function allTargets(rows: PackedTokens): Targets {
  return maskedTargets(rows, new Uint32Array(rows.tokens.length).fill(1)).targets;
}

/** The masked tokens, each as the position before it; a sequence's first token has none and never counts. */
function maskedTargets(
  { tokens, offsets }: PackedTokens,
  mask: Uint32Array,
): { targets: Targets; offsets: Uint32Array } {
  const positions: number[] = [];
  const counts = new Uint32Array(offsets.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    for (let t = offsets[i] + 1; t < offsets[i + 1]; t++) if (mask[t] === 1) positions.push(t - 1);
    counts[i + 1] = positions.length;
  }
  const targets = {
    positions: Uint32Array.from(positions),
    tokens: Uint32Array.from(positions, (p) => tokens[p + 1]),
  };
  return { targets, offsets: counts };
}
