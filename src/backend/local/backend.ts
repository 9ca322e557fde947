/** The backend that trains on this machine: a language model and the policy losses on one device. */
import {
  checkAdvantages,
  countRows,
  factorsOf,
  isHostOnly,
  type LossResult,
  policyLoss,
  recordPolicyLoss,
  rowsOfTokens,
} from "../../algorithm/mod.ts";
import type { Data, Device } from "../../compute/device.ts";
import { openDevice } from "../../compute/open.ts";
import type {
  Backend,
  LossSpec,
  Metrics,
  ModelDescription,
  OptimParams,
  PackedTokens,
  SampledSequence,
  SampleRequest,
  TrainBatch,
} from "../../contract/backend.ts";
import type { Tokenizer } from "../../contract/text.ts";
import { ConfigError, UnsupportedError } from "../../errors.ts";
import type { TextTokenizer } from "../../model/files/tokenizer.ts";
import type {
  LanguageModel,
  LanguageModelOptions,
  PassLoss,
  PassOutputs,
} from "../../model/language_model.ts";
import { loadModel, type ModelMark, openModel } from "../../model/open_model.ts";
import { Scratch } from "../../model/scratch.ts";
import type { Weights } from "../../model/weights.ts";
import { loadLocalCheckpoint, saveLocalCheckpoint } from "./checkpoint.ts";

/** What a {@link LocalBackend} is made of, for programs that build the model themselves. */
export interface LocalBackendOptions {
  readonly model: LanguageModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** For people: a folder's or a run's name. Default `model`. */
  readonly name?: string;
  /** The base model, recorded in an adapter's files. */
  readonly base?: ModelMark;
  /** The folder whose weights the model has, for a backend that only samples and scores. */
  readonly fixedTo?: string;
}

/** How {@link LocalBackend.open} opens a model: an adapter or all weights, the seed, the device. */
export interface OpenLocalOptions extends LanguageModelOptions {
  /** Default: {@link openDevice}'s choice. */
  readonly device?: Device;
}

/**
 * Trains and samples on this machine: a language model and the policy losses on one device. {@link LocalBackend.open}
 * opens a folder.
 */
export class LocalBackend implements Backend {
  readonly name = "local";
  readonly tokenizer: Tokenizer | undefined;
  readonly languageModel: LanguageModel;
  private readonly options: LocalBackendOptions;
  private readonly device: Device;
  private published: { readonly weights: Weights; readonly version: number } | undefined;

  constructor(options: LocalBackendOptions) {
    this.options = options;
    this.languageModel = options.model;
    this.device = options.model.device;
    this.tokenizer = options.tokenizer;
  }

  /**
   * Opens a folder of a model, or of an adapter and its base, to train it. Without `lora` all weights are trained.
   * @example
   *     const backend = await LocalBackend.open("models/Qwen3-0.6B", { lora: { rank: 16 } });
   * @throws {ConfigError} for a folder that cannot be read
   */
  static async open(folder: string, options: OpenLocalOptions = {}): Promise<LocalBackend> {
    const opened = await openModel(folder);
    const device = options.device ?? (await openDevice());
    const model = await loadModel(device, opened, options);
    return new LocalBackend({ model, tokenizer: opened.tokenizer, name: folder, base: opened.mark });
  }

  get model(): ModelDescription {
    const { config, contextLength, parameters, trainableParameters } = this.languageModel;
    const eosTokenIds = [...new Set([...config.eosTokenIds, ...(this.tokenizer?.eosTokenIds ?? [])])];
    return {
      name: this.options.name ?? "model",
      vocabSize: config.vocabSize,
      contextLength,
      eosTokenIds,
      parameters,
      trainableParameters,
    };
  }

  get weightVersion(): number {
    return this.languageModel.step;
  }

  sample(
    requests: readonly SampleRequest[],
    { signal, weights }: { readonly signal?: AbortSignal; readonly weights?: "current" | "published" } = {},
  ): Promise<SampledSequence[]> {
    const published = weights === "published" ? this.published : undefined;
    const weightVersion = published?.version ?? this.weightVersion;
    const policy = published && { bytes: 0, weights: () => published.weights, release() {} };
    return this.languageModel.sample(requests, { weightVersion, policy, signal });
  }

  /** In a copy of all weights, which stays where it is: sampling under way reads the new ones from its next chunk on. */
  async publishWeights(): Promise<void> {
    const weights = this.languageModel.copyWeights(this.published?.weights);
    this.published = { weights, version: this.weightVersion };
  }

  logprobs(
    rows: PackedTokens,
    options: { readonly policy: "current" | "reference"; readonly temperature: number },
  ): Promise<{ logprobs: Float32Array; entropy: Float32Array }> {
    return this.languageModel.logprobs(rows, options);
  }

  async forwardBackward(batch: TrainBatch, spec: LossSpec): Promise<Metrics> {
    this.refuseFixed("train");
    checkLengths(batch);
    const whole = countRows(batch.offsets, batch.mask);
    const trained = whole.trained.reduce((sum, count) => sum + count, 0);
    if (trained === 0)
      throw new ConfigError("Cannot train on a batch as none of its tokens is masked in: mask is all 0.");
    // Passes hold parts of the batch: the denominators must be the whole one's.
    const shared: LossSpec = {
      ...spec,
      batch_num_tokens: spec.batch_num_tokens ?? trained,
      global_batch_size: spec.global_batch_size ?? whole.trained.filter((count) => count > 0).length,
    };
    const losses: { decode(data: readonly Data[]): LossResult; tokens: number }[] = [];
    const data = await this.languageModel.accumulate(batch, {
      temperature: spec.temperature,
      loss: async (outputs) => {
        const { recorded, tokens } = isHostOnly(shared)
          ? await this.takeLossOnHost(batch, { spec: shared, outputs })
          : this.recordLoss(batch, { spec: shared, outputs });
        losses.push({ decode: recorded.decode, tokens });
        return recorded;
      },
    });
    return joinMetrics(losses.map(({ decode, tokens }, i) => ({ ...decode(data[i]!), tokens })));
  }

  /** The loss of one pass over its trained tokens alone, end to end. */
  private recordLoss(
    batch: TrainBatch,
    { spec, outputs }: { spec: LossSpec; outputs: PassOutputs },
  ): { recorded: PassLoss & { decode(data: readonly Data[]): LossResult }; tokens: number } {
    const scratch = new Scratch(this.device);
    const trained = trainedTokens(batch, outputs.sequences);
    const upload = (values: Float32Array | undefined, label: string) =>
      values && scratch.upload(values, label);
    const { offsets } = outputs;
    const { level, values } = trained.advantages;
    const mask = new Uint32Array(trained.count).fill(1);
    const recorded = recordPolicyLoss(this.device, spec, {
      counts: countRows(offsets, mask),
      buffers: {
        logprobs: outputs.logprobs,
        entropy: outputs.entropies,
        mask: scratch.upload(mask, "mask"),
        offsets: scratch.upload(offsets, "row offsets"),
        trajectoryOfToken: scratch.upload(rowsOfTokens(offsets), "rows of tokens"),
        advantages: { level, values: scratch.upload(values, "advantages") },
        oldLogprobs: upload(trained.oldLogprobs, "old logprobs"),
        refLogprobs: upload(trained.refLogprobs, "reference logprobs"),
        isWeights: upload(trained.rolloutIsWeights, "importance weights"),
      },
    });
    const release = () => {
      recorded.release();
      scratch.release();
    };
    return { recorded: { ...recorded, release }, tokens: trained.count };
  }

  /** A user's loss that is a function of the host: log-probs come out, its gradient goes in. */
  private async takeLossOnHost(
    batch: TrainBatch,
    { spec, outputs }: { spec: LossSpec; outputs: PassOutputs },
  ): Promise<{ recorded: PassLoss & { decode(): LossResult }; tokens: number }> {
    const { offsets } = outputs;
    const trained = trainedTokens(batch, outputs.sequences);
    const [logprobs, entropy] = (await this.device.read([
      { buffer: outputs.logprobs, type: "f32" },
      { buffer: outputs.entropies, type: "f32" },
    ])) as [Float32Array, Float32Array];
    const result = policyLoss(
      {
        ...trained,
        offsets,
        mask: new Uint32Array(trained.count).fill(1),
        logprobs,
        entropy,
      },
      spec,
    );
    const scratch = new Scratch(this.device);
    const upload = (values: Float64Array, label: string) => scratch.upload(Float32Array.from(values), label);
    const recorded = {
      dlogprobs: upload(result.dlogprobs, "dlogprobs"),
      dentropy: result.dentropy && upload(result.dentropy, "dentropy"),
      reads: [],
      decode: () => ({ loss: result.loss, metrics: result.metrics }),
      release: () => scratch.release(),
    };
    return { recorded, tokens: trained.count };
  }

  async optimStep(params: OptimParams): Promise<Metrics> {
    const norm = await this.languageModel.optimStep(params);
    if (Number.isNaN(norm))
      throw new ConfigError(
        "Cannot take the optimiser step as the gradient's norm must be finite. The weights are unchanged; lower training.learning_rate, or look for extreme rewards or log-probs in the last batch.",
      );
    return { "actor/grad_norm": norm, "actor/lr": params.learning_rate };
  }

  freezeReference(): void {
    this.languageModel.freezeReference();
  }

  async save(dir: string): Promise<void> {
    this.refuseFixed("save");
    const { tokenizer, base } = this.options;
    await saveLocalCheckpoint(dir, { model: this.languageModel, tokenizer, base });
  }

  async load(dir: string): Promise<void> {
    if (dir === this.options.fixedTo) return;
    this.refuseFixed("load another checkpoint into");
    await loadLocalCheckpoint(dir, this.languageModel, { base: this.options.base });
  }

  private refuseFixed(act: string): void {
    if (this.options.fixedTo === undefined) return;
    throw new UnsupportedError(
      `Cannot ${act} ${this.options.name}: it was opened to sample and score only.`,
      {
        part: "local",
        capability: act,
      },
    );
  }

  close(): void {
    this.published?.weights.release();
    this.languageModel.release();
    this.device.destroy();
  }
}

/** What the loss takes of the trained tokens of sequences [from, to), end to end. */
function trainedTokens(batch: TrainBatch, range: { from: number; to: number }) {
  const at = trainedIndices(batch, range);
  const pick = (values: Float32Array) => Float32Array.from(at, (t) => values[t]!);
  const { level, values } = factorsOf(batch);
  const part = level === "token" ? pick(values) : values.slice(range.from, range.to);
  return {
    count: at.length,
    advantages: { level, values: part },
    oldLogprobs: batch.oldLogprobs && pick(batch.oldLogprobs),
    refLogprobs: batch.refLogprobs && pick(batch.refLogprobs),
    rolloutIsWeights: batch.rolloutIsWeights && pick(batch.rolloutIsWeights),
  };
}

/** Indices into the batch's tokens of those that a pass trains on. */
function trainedIndices(
  { mask, offsets }: TrainBatch,
  { from, to }: { from: number; to: number },
): Uint32Array {
  const indices: number[] = [];
  for (let i = from; i < to; i++)
    for (let t = offsets[i]! + 1; t < offsets[i + 1]!; t++) if (mask[t] === 1) indices.push(t);
  return Uint32Array.from(indices);
}

function checkLengths(batch: TrainBatch): void {
  const tokens = batch.tokens.length;
  const rows = batch.offsets.length - 1;
  for (const name of [
    "mask",
    "oldLogprobs",
    "rolloutLogprobs",
    "refLogprobs",
    "rolloutIsWeights",
    "weights",
  ] as const) {
    const length = batch[name]?.length ?? tokens;
    if (length !== tokens)
      throw new ConfigError(
        `Cannot train as ${name} must have one element per token (${tokens}): ${length}`,
        { path: name },
      );
  }
  checkAdvantages(batch.advantages, { rows, tokens });
}

/** Shares of the batch's loss; they add up, where other metrics are means over a pass's tokens. */
const SUMMED = new Set(["actor/pg_loss", "actor/kl_loss", "actor/entropy"]);

function joinMetrics(passes: readonly (LossResult & { tokens: number })[]): Metrics {
  const tokens = passes.reduce((sum, pass) => sum + pass.tokens, 0);
  const joined: Metrics = { "actor/loss": 0 };
  for (const pass of passes) {
    joined["actor/loss"]! += pass.loss;
    for (const [name, value] of Object.entries(pass.metrics)) {
      const share = SUMMED.has(name) || name.endsWith("kl_coef") ? 1 : pass.tokens / tokens;
      joined[name] = name.endsWith("kl_coef") ? value : (joined[name] ?? 0) + share * value;
    }
  }
  return joined;
}
