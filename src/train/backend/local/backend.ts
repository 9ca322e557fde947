/** The backend that trains on this machine: a language model and the policy losses on one device. */
import type { Device } from "../../../engine/compute/device.ts";
import { productPeak } from "../../../engine/compute/measure.ts";
import { openDevice } from "../../../engine/compute/open.ts";
import type {
  Backend,
  LossSpec,
  Metrics,
  ModelDescription,
  ModelWork,
  OptimParams,
  PackedTokens,
  SampledSequence,
  SampleRequest,
  Speculated,
  TopTokens,
  TrainBatch,
} from "../../../engine/contract/backend.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { FolderReader } from "../../../engine/model/files/reader.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import type { LanguageModel, LanguageModelOptions, PolicyCopy } from "../../../engine/model/language_model.ts";
import { shapeOf } from "../../../engine/model/model_shape.ts";
import { loadModel, type ModelMark, type OpenedModel, openModel } from "../../../engine/model/open_model.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { isStable, notRecording } from "../stable/stable_rows.ts";
import { loadCritic, loadLocalCheckpoint, saveCritic, saveLocalCheckpoint } from "./checkpoint.ts";
import { countSampling, countScoring, countTraining } from "./counted_work.ts";
import { type CriticOptions, criticOf, LocalCritic, type OpenedCritic } from "./critic.ts";
import { type KeptState, keepState, restoreState } from "./kept_state.ts";
import { fittingOptions } from "./plan/fit.ts";
import { DEFAULT_SHAPE, type RunShape } from "./plan/run_shape.ts";
import { accumulateLoss } from "./policy_loss.ts";
import { accumulateStable, StableRecording } from "./stable_loss.ts";
import { accumulateTopk, topTokens } from "./topk_loss.ts";
import { WorkMeter } from "./work_meter.ts";

/** Parts of a {@link LocalBackend}, for programs that build the model themselves. */
export interface LocalBackendOptions {
  readonly model: LanguageModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Name of the folder or run, for messages. Default `model`. */
  readonly name?: string;
  /** The base model, recorded in an adapter's files. */
  readonly base?: ModelMark;
  /** Text of the base's generation_config.json, for checkpoints of all weights. */
  readonly generationConfig?: string | undefined;
  /** Makes the model as it was before training, on the device that was reopened. Absent: a lost device ends the run. */
  readonly remake?: (() => Promise<LanguageModel>) | undefined;
  /** A critic of this model, and how it is made again after {@link LocalBackend.recover}. Absent: none. */
  readonly critic?: OpenedCritic | undefined;
  /** Records what is sampled, for the loss `stable_reinforce`. Sampling then draws a step at a time. Default false. */
  readonly recordStabilityInfo?: boolean | undefined;
  /** Folder of the weights, for a backend that only samples and scores: it refuses to train or to load others. */
  readonly fixedTo?: string;
}

/** How {@link LocalBackend.open} opens a model: an adapter or all weights, the seed, the device, the work to plan for. */
export interface OpenLocalOptions extends LanguageModelOptions {
  /** Default: {@link openDevice}'s choice. */
  readonly device?: Device;
  /** Opens a critic too, which the estimator `gae` needs; `{}` starts it from the policy's model. */
  readonly critic?: CriticOptions | undefined;
  /** Whether stability information is recorded, as in {@link LocalBackendOptions}. */
  readonly recordStabilityInfo?: boolean | undefined;
  /**
   * The most that will be done at a time, from which `maxTokensPerPass`, `gradientCheckpointing` and the cache are chosen
   * where they are not given. Default: 64 sequences of 1,024 tokens.
   */
  readonly work?: Partial<RunShape> | undefined;
}

function fitting(
  device: Device,
  {
    opened,
    options: { work, device: _, critic: _critic, recordStabilityInfo: _record, ...options },
  }: { opened: OpenedModel; options: OpenLocalOptions },
): Promise<LanguageModelOptions> {
  const request = { model: shapeOf(opened.files), options, shape: { ...DEFAULT_SHAPE, ...work } };
  return fittingOptions(device, request, { isExact: work !== undefined });
}

/**
 * Trains and samples on this machine: a language model and the policy losses on one device. {@link LocalBackend.open}
 * opens a folder.
 */
export class LocalBackend implements Backend {
  readonly name = "local";
  readonly tokenizer: Tokenizer | undefined;
  private current: LanguageModel;
  private currentCritic: LocalCritic | undefined;
  private kept: KeptState | undefined;
  private listener: ((message: string) => void) | undefined;
  private readonly options: LocalBackendOptions;
  private readonly device: Device;
  private readonly meter = new WorkMeter();
  /** Counts of the sequences that were sampled since work was last taken. */
  private readonly speculated: Speculated[] = [];
  private readonly recording: StableRecording | undefined;
  private peak: Promise<number | undefined> | undefined;
  private published: { readonly policy: PolicyCopy; readonly version: number } | undefined;

  constructor(options: LocalBackendOptions) {
    this.options = options;
    this.current = options.model;
    this.device = options.model.device;
    this.tokenizer = options.tokenizer;
    this.recording = options.recordStabilityInfo ? new StableRecording() : undefined;
    this.currentCritic = options.critic && new LocalCritic(options.critic.model);
  }

  /**
   * Opens a folder of a model, or of an adapter and its base, to train it. Without `lora` all weights are trained. A page
   * gives a reader, such as `httpFolder(url)` or `blobFolder(name, files)`.
   * @example
   *     const backend = await LocalBackend.open("models/Qwen3-0.6B", { lora: { rank: 16 } });
   * @throws {ConfigError} for a folder that cannot be read, or a model that does not fit the device's memory budget
   */
  static async open(folder: string | FolderReader, options: OpenLocalOptions = {}): Promise<LocalBackend> {
    const opened = await openModel(folder);
    const device = options.device ?? (await openDevice());
    try {
      const chosen = await fitting(device, { opened, options });
      const remake = () => loadModel(device, opened, chosen);
      const model = await remake();
      const critic = await criticOf(model, options.critic, chosen);
      const { tokenizer, mark: base } = opened;
      const { generationConfig } = opened.files;
      const { recordStabilityInfo } = options;
      const of = { model, remake, critic, tokenizer, name: base.folder, base, generationConfig };
      return new LocalBackend({ ...of, recordStabilityInfo });
    } catch (error) {
      if (!options.device) device.destroy();
      throw error;
    }
  }

  /** Another one after {@link recover}. */
  get languageModel(): LanguageModel {
    return this.current;
  }

  get critic(): LocalCritic | undefined {
    return this.currentCritic;
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

  readonly isConstrainable = true;

  get weightVersion(): number {
    return this.languageModel.step;
  }

  sample(
    requests: readonly SampleRequest[],
    { signal, weights }: { readonly signal?: AbortSignal; readonly weights?: "current" | "published" } = {},
  ): Promise<SampledSequence[]> {
    const published = weights === "published" ? this.published : undefined;
    const weightVersion = published?.version ?? this.weightVersion;
    const { languageModel: model, recording } = this;
    const asked = recording ? requests.map((request) => recording.asked(request)) : requests;
    const sampling = this.meter.track(
      "rollout",
      () => model.sample(asked, { weightVersion, policy: published?.policy, signal }),
      (sampled) => {
        for (const { speculated } of sampled) if (speculated) this.speculated.push(speculated);
        return countSampling(model, requests, sampled);
      },
    );
    if (!recording) return sampling;
    return sampling.then((sampled) => sampled.map((drawn, i) => recording.keep(requests[i]!, drawn)));
  }

  /** Updates one reused copy; running samples switch at their next chunk. */
  async publishWeights(): Promise<void> {
    const policy = this.published?.policy ?? this.languageModel.copyPolicy();
    policy.update();
    // Submitted now: a chunk of sampling that runs out of memory forgets the work that was recorded with it.
    policy.weights().prepare();
    await this.device.submit();
    this.published = { policy, version: this.weightVersion };
  }

  logprobs(
    rows: PackedTokens,
    options: {
      readonly policy: "current" | "reference";
      readonly temperature: number;
      readonly mask?: Uint32Array | undefined;
      readonly greedy?: boolean | undefined;
    },
  ): Promise<{ logprobs: Float32Array; entropy: Float32Array; greedy?: Float32Array }> {
    const model = this.languageModel;
    const count = () => countScoring(model, rows, options.mask);
    return this.meter.track("actor_infer", () => model.logprobs(rows, options), count);
  }

  topLogprobs(
    rows: PackedTokens,
    options: {
      readonly policy: "current" | "reference";
      readonly temperature: number;
      readonly mask: Uint32Array;
      readonly k: number;
    },
  ): Promise<TopTokens> {
    const model = this.languageModel;
    const count = () => countScoring(model, rows, options.mask);
    return this.meter.track("actor_infer", () => topTokens(model, rows, options), count);
  }

  async forwardBackward(batch: TrainBatch, spec: LossSpec): Promise<Metrics> {
    this.refuseFixed("train");
    const model = this.languageModel;
    const accumulate = this.lossOf(batch, spec);
    const count = () => countTraining(model, batch, batch.mask);
    return this.meter.track("actor", () => accumulate(model, batch, spec), count);
  }

  private lossOf(batch: TrainBatch, spec: LossSpec): typeof accumulateLoss {
    if (batch.teacherTop) return accumulateTopk;
    if (!isStable(spec)) return accumulateLoss;
    const { recording } = this;
    if (!recording) throw notRecording();
    const { records } = recording;
    return (model, batch, spec) => accumulateStable(model, batch, { spec, records });
  }

  async optimStep(params: OptimParams): Promise<Metrics> {
    const step = () => this.languageModel.optimStep(params);
    const norm = await this.meter.track("actor", step, () => ({ flop: 0, tokens: 0 }));
    if (Number.isNaN(norm))
      throw new ConfigError(
        "Cannot take the optimiser step: the gradient's norm is not finite. The weights are unchanged; lower training.learning_rate, or look for extreme rewards or log-probs in the last batch.",
      );
    return { "actor/grad_norm": norm, "actor/lr": params.learning_rate };
  }

  readonly takeWork = async (): Promise<ModelWork> => {
    this.peak ??= productPeak(this.device).catch((error) => {
      this.peak = undefined;
      throw error;
    });
    const peakFlops = await this.peak;
    const speculated = this.speculated.splice(0);
    return { peakFlops, phases: this.meter.take(), ...(speculated.length > 0 && { speculated }) };
  };

  onWarning(listener: (message: string) => void): void {
    this.listener = listener;
    this.languageModel.onWarning(listener);
    this.critic?.model.onWarning(listener);
  }

  freezeReference(): void {
    this.languageModel.freezeReference();
  }

  async keep(): Promise<void> {
    if (this.device.reopen && this.options.remake && this.options.fixedTo === undefined)
      this.kept = await keepState(this.languageModel, this.critic?.model);
  }

  async recover(): Promise<boolean> {
    const { remake } = this.options;
    if (!this.device.reopen || !remake)
      throw new UnsupportedError("Cannot reopen the model: this backend was given it and cannot make it again.", {
        part: "local",
        capability: "recover",
      });
    await this.device.reopen();
    this.published = undefined;
    this.current = await remake();
    const { critic } = this.options;
    if (critic) this.currentCritic = new LocalCritic(await critic.make(this.current));
    if (this.listener) this.onWarning(this.listener);
    if (this.kept) await restoreState(this.languageModel, this.kept, this.critic?.model);
    return this.kept !== undefined || this.options.fixedTo !== undefined;
  }

  async save(dir: string): Promise<void> {
    this.refuseFixed("save");
    const { tokenizer, base, generationConfig } = this.options;
    await saveLocalCheckpoint(dir, { model: this.languageModel, tokenizer, base, generationConfig });
    const { critic } = this.options;
    if (critic) await saveCritic(dir, { model: this.critic!.model, tokenizer, base: critic.base ?? base });
  }

  async load(dir: string): Promise<void> {
    if (dir === this.options.fixedTo) return;
    this.refuseFixed("load another checkpoint into");
    await loadLocalCheckpoint(dir, this.languageModel, { base: this.options.base });
    if (this.critic) await loadCritic(dir, this.critic.model);
  }

  private refuseFixed(act: string): void {
    if (this.options.fixedTo === undefined) return;
    throw new UnsupportedError(`Cannot ${act} ${this.model.name}: it was opened to sample and score only.`, {
      part: "local",
      capability: act,
    });
  }

  close(): void {
    this.published?.policy.release();
    this.critic?.model.release();
    this.languageModel.release();
    this.device.destroy();
  }
}
