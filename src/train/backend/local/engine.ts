/** The engine of the servers on this machine: adapters and full copies of one base model on one device. */
import type { Device } from "../../../engine/compute/device.ts";
import type { Engine, EnginePolicy, LossRequest, Trainer, TrainerConfig } from "../../../engine/contract/engine.ts";
import type { ModelFolder } from "../../../engine/model/files/folder.ts";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import type { LanguageModel, LanguageModelOptions } from "../../../engine/model/language_model.ts";
import { parameterCount } from "../../../engine/model/layers.ts";
import { LORA_DEFAULTS, loraTargets } from "../../../engine/model/lora.ts";
import { shapeOf } from "../../../engine/model/model_shape.ts";
import { loadModel, type ModelMark, type OpenedModel, openModel } from "../../../engine/model/open_model.ts";
import { float32Bytes } from "../../../engine/model/stored_weights.ts";
import { passLimits } from "../../../engine/model/transformer.ts";
import { checkCentering, SCORE_CENTERING } from "./centered_loss.ts";
import { loadAdapter } from "./checkpoint.ts";
import { checkLoss, engineLosses } from "./engine_loss.ts";
import { LocalPolicy } from "./engine_policy.ts";
import { LocalTrainer } from "./engine_trainer.ts";
import { fittingOptions } from "./plan/fit.ts";
import { DEFAULT_SHAPE } from "./plan/run_shape.ts";
import { submitted } from "./submitted.ts";

/** Share of the device's memory for folded copies of the weights, one per adapter in use, where adapters are folded. */
const COPIES_SHARE = 0.25;
const MAX_COPIES = 8;

export interface LocalEngineOptions {
  readonly device: Device;
  /** Folder of the base model, or of an adapter that is merged into its own base. */
  readonly folder: string;
  /** Folder of the base, for an adapter that does not name it. */
  readonly base?: string | undefined;
  /** Called with what the operator should know of: that memory ran out, and passes are smaller from now on. */
  readonly warn?: ((message: string) => void) | undefined;
  /** How sampling guesses tokens that it verifies several at a time. Default: it does not. */
  readonly speculative?: LanguageModelOptions["speculative"];
  /** Engines that share the device, this one included. Default 1. */
  readonly sharers?: number | undefined;
  /** False: the weights stay on disk until {@link LocalEngine.load}. Default true. */
  readonly loadsNow?: boolean | undefined;
}

/** The options of the base model, and of each copy of it that a client trains. */
interface LoadOptions {
  readonly base: LanguageModelOptions;
  readonly sizes: LanguageModelOptions;
}

/** Passes for clients whose work is not known: those of a run that trains the default adapter while it samples. */
async function clientSizes(device: Device, { files }: OpenedModel): Promise<LanguageModelOptions> {
  const shape = { ...DEFAULT_SHAPE, overlaps: true };
  const work = { model: shapeOf(files), options: { lora: LORA_DEFAULTS }, shape, fixedSettings: "all" } as const;
  const fitting = await fittingOptions(device, work, { isExact: false });
  const { maxTokensPerPass, gradientCheckpointing, foldAdapter } = fitting;
  return { maxTokensPerPass, gradientCheckpointing, foldAdapter };
}

export class LocalEngine implements Engine {
  readonly folder: string;
  /** The base model, recorded in the files of adapters that are trained here. */
  readonly mark: ModelMark;
  private readonly hardware: Device;
  private readonly opened: OpenedModel;
  private readonly files: ModelFolder;
  private readonly warn: (message: string) => void;
  private readonly sharers: number;
  private readonly speculative: LanguageModelOptions["speculative"];
  /** Tokens. */
  readonly contextLength: number;
  private loaded: LanguageModel | undefined;
  /** Fixed by the first load, so that the weights compute the same bits after they were unloaded. */
  private options: LoadOptions | undefined;

  private constructor(opened: OpenedModel, options: LocalEngineOptions) {
    const { device, warn = () => {}, sharers = 1 } = options;
    this.hardware = device;
    this.opened = opened;
    this.mark = opened.mark;
    this.files = opened.files;
    this.warn = warn;
    this.sharers = sharers;
    this.speculative = options.speculative;
    this.contextLength = passLimits(device, opened.files.config).contextLength;
    // Clients read the configuration and the tokenizer from it. An adapter's folder may lack them.
    this.folder = opened.files.name;
  }

  /** @throws ConfigError for a folder without a model, OutOfMemoryError for one that does not fit. */
  static async open(options: LocalEngineOptions): Promise<LocalEngine> {
    const engine = new LocalEngine(await openModel(options.folder, { base: options.base }), options);
    if (options.loadsNow ?? true) await engine.load();
    return engine;
  }

  get isLoaded(): boolean {
    return this.loaded !== undefined;
  }

  get losses(): readonly string[] {
    return engineLosses();
  }

  async load(): Promise<void> {
    if (this.loaded) return;
    this.options ??= await this.fitting();
    this.loaded = await loadModel(this.hardware, this.opened, this.options.base);
    this.loaded.onWarning(this.warn);
  }

  private async fitting(): Promise<LoadOptions> {
    const { hardware, opened } = this;
    const share = (hardware.memory.budget * COPIES_SHARE) / this.sharers;
    const fitting = Math.floor(share / float32Bytes(hardware, opened.files.config));
    const sizes = { ...(await clientSizes(hardware, opened)), speculative: this.speculative };
    const foldAdapter = fitting > 0 && sizes.foldAdapter;
    return { sizes, base: { ...sizes, foldAdapter, frozen: true, adapterSlots: Math.min(fitting, MAX_COPIES) } };
  }

  unload(): void {
    this.loaded?.release();
    this.loaded = undefined;
  }

  private get base(): LanguageModel {
    if (this.loaded) return this.loaded;
    throw new Error(`Cannot use ${this.folder}: its weights are not loaded. Call load() first.`);
  }

  get fingerprint(): string {
    return this.mark.fingerprint;
  }

  get architecture(): string {
    return this.files.config.architecture;
  }

  get vocabSize(): number {
    return this.files.config.vocabSize;
  }

  get parameters(): number {
    return parameterCount(this.files.config);
  }

  get eosTokenIds(): readonly number[] {
    const { config } = this.files;
    const { tokenizer } = this.opened;
    return [...new Set([...config.eosTokenIds, ...(tokenizer?.eosTokenIds ?? [])])];
  }

  get device(): string {
    return `${this.hardware.info.kind}: ${this.hardware.info.description}`;
  }

  get memory() {
    return this.hardware.memory;
  }

  get decode(): ((ids: readonly number[]) => string) | undefined {
    const { tokenizer } = this.opened;
    return tokenizer && ((ids) => tokenizer.decode(ids));
  }

  checkLoss(loss: LossRequest, inputs: readonly string[]): void {
    if (loss.name === SCORE_CENTERING) checkCentering(loss, inputs);
    else checkLoss(loss, inputs);
  }

  async createTrainer(config: TrainerConfig): Promise<Trainer> {
    const { rank, seed, trainAttn: attn, trainMlp: mlp, trainUnembed: unembed } = config;
    const of = { config, base: this.mark };
    if (rank === 0) return submitted(this.hardware, new LocalTrainer(await this.loadCopy(this.opened), of));
    // Tinker's clients cannot set alpha: its service uses one value for every rank.
    const lora = { rank, alpha: LORA_DEFAULTS.alpha, targets: loraTargets({ attn, mlp, unembed }) };
    return submitted(this.hardware, new LocalTrainer(this.base.branch({ lora, seed }), of));
  }

  async openPolicy(dir?: string): Promise<EnginePolicy> {
    if (dir === undefined) return new LocalPolicy(this.base, this.base.untrained);
    if ((await folderKind(dir)) === "adapter") return this.openAdapter(dir);
    const model = await this.loadCopy(await openModel(dir), { frozen: true });
    const policy = new LocalPolicy(model, {
      bytes: model.base.byteLength,
      weights: () => model.weights,
      release: () => model.release(),
    });
    return submitted(this.hardware, policy);
  }

  private async loadCopy(opened: OpenedModel, options: LanguageModelOptions = {}): Promise<LanguageModel> {
    const model = await loadModel(this.hardware, opened, { ...this.options?.sizes, ...options });
    model.onWarning(this.warn);
    return model;
  }

  private async openAdapter(dir: string): Promise<EnginePolicy> {
    const lora = await readAdapterShape(dir);
    const branch = this.base.branch({ lora });
    try {
      await loadAdapter(dir, branch, { base: this.mark });
      return await submitted(this.hardware, new LocalPolicy(this.base, branch.freeze()));
    } finally {
      branch.release();
    }
  }

  /** Set while the device is opened again: whether the weights were loaded when it was lost. */
  private wasLoaded: boolean | undefined;

  get isLost(): boolean {
    return this.wasLoaded !== undefined || (this.hardware.isLost ?? false);
  }

  /**
   * Opens the device, unless another engine on it has, and loads the base model where it was loaded. Without a device the
   * engine stays lost, so that it is tried again; a base model that cannot be loaded stays unloaded.
   */
  async reopen(): Promise<void> {
    this.wasLoaded ??= this.isLoaded;
    if (this.hardware.isLost) await this.hardware.reopen?.();
    this.unload();
    const { wasLoaded } = this;
    this.wasLoaded = undefined;
    if (wasLoaded) await this.load();
  }

  close(): void {
    this.unload();
    this.hardware.destroy();
  }
}
