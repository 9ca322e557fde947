/** The engine behind the servers on this machine: adapters and whole copies of one base model, on one device. */

import type { Device } from "../../compute/device.ts";
import type { Metrics, OptimParams, SampledSequence, SampleRequest } from "../../contract/backend.ts";
import type {
  Engine,
  LossRequest,
  LossRows,
  Policy,
  PromptScores,
  Trainer,
  TrainerConfig,
} from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";
import { parameterCount } from "../../model/files/config.ts";
import { kindOf, type ModelFolder } from "../../model/files/folder.ts";
import { describeAdapter } from "../../model/files/peft.ts";
import type { FrozenPolicy, LanguageModel } from "../../model/language_model.ts";
import { loadModel, type ModelMark, type OpenedModel, openModel } from "../../model/open_model.ts";
import { Scratch } from "../../model/scratch.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../model/train/lora_adapter.ts";
import type { PassOutputs } from "../../model/train/passes.ts";
import { loadAdapter, loadCheckpoint, saveCheckpoint } from "./checkpoint.ts";
import { SERVED_LOSSES, ServedLoss } from "./engine_loss.ts";

/** The service's, for every rank. */
const LORA_ALPHA = 32;
/** Share of the device's memory that copies of the weights with an adapter in them may take, and the most of them. */
const COPIES_SHARE = 0.25;
const MAX_COPIES = 8;

export interface LocalEngineOptions {
  readonly device: Device;
  /** Folder of the base model, or of an adapter that is merged into its own base. */
  readonly folder: string;
  /** The base of an adapter that does not say where it is. */
  readonly base?: string | undefined;
}

export class LocalEngine implements Engine {
  readonly folder: string;
  readonly losses = SERVED_LOSSES;
  /** Recorded in the files of adapters that are trained here. */
  readonly mark: ModelMark;
  private readonly hardware: Device;
  private readonly opened: OpenedModel;
  private readonly files: ModelFolder;
  private readonly base: LanguageModel;

  private constructor(device: Device, opened: OpenedModel, base: LanguageModel) {
    this.hardware = device;
    this.opened = opened;
    this.mark = opened.mark;
    this.files = opened.files;
    this.base = base;
    // Clients take configuration and tokenizer from it, which an adapter's own folder need not have.
    this.folder = opened.files.name;
  }

  /** @throws ConfigError for a folder that holds no model. */
  static async open({ device, folder, base }: LocalEngineOptions): Promise<LocalEngine> {
    const opened = await openModel(folder, { base });
    const bytes = parameterCount(opened.files.config) * 4 * (device.info.family === "tiled" ? 1 : 2);
    const fitting = Math.floor((device.memory.budget * COPIES_SHARE) / bytes);
    const adapterSlots = Math.min(Math.max(fitting, 1), MAX_COPIES);
    const model = await loadModel(device, opened, { untied: true, adapterSlots });
    return new LocalEngine(device, opened, model);
  }

  get architecture(): string {
    return this.files.config.architecture;
  }

  get vocabSize(): number {
    return this.files.config.vocabSize;
  }

  get contextLength(): number {
    return this.base.contextLength;
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

  async createTrainer(config: TrainerConfig): Promise<Trainer> {
    if (config.rank === 0)
      return new LocalTrainer(await loadModel(this.hardware, this.opened), { config, engine: this });
    const lora = { rank: config.rank, alpha: LORA_ALPHA, targets: targetsOf(config) };
    return new LocalTrainer(this.base.branch({ lora, seed: config.seed }), { config, engine: this });
  }

  async openPolicy(dir?: string): Promise<Policy> {
    if (dir === undefined) {
      const weights = this.base.base;
      return new LocalPolicy(this.base, { bytes: 0, weights: () => weights, release() {} });
    }
    if ((await kindOf(dir)) === "adapter") return this.openAdapter(dir);
    const model = await loadModel(this.hardware, await openModel(dir));
    const weights = model.base;
    return new LocalPolicy(model, {
      bytes: weights.byteLength,
      weights: () => weights,
      release: () => model.release(),
    });
  }

  private async openAdapter(dir: string): Promise<Policy> {
    const lora = await describeAdapter(dir);
    const branch = this.base.branch({ lora });
    try {
      await loadAdapter(dir, branch, { base: this.mark });
      return new LocalPolicy(this.base, branch.freeze());
    } finally {
      branch.release();
    }
  }

  close(): void {
    this.base.release();
    this.hardware.destroy();
  }
}

function targetsOf({ trainAttn, trainMlp, trainUnembed }: TrainerConfig): string[] {
  return [
    ...(trainAttn ? ATTENTION_TARGETS : []),
    ...(trainMlp ? MLP_TARGETS : []),
    ...(trainUnembed ? ["lm_head"] : []),
  ];
}

class LocalTrainer implements Trainer {
  readonly config: TrainerConfig;
  private readonly model: LanguageModel;
  private readonly engine: LocalEngine;
  /** This trainer, and policies that need the weights' pass: the model goes with the last of them. */
  private users = 1;

  constructor(model: LanguageModel, of: { config: TrainerConfig; engine: LocalEngine }) {
    this.model = model;
    this.config = of.config;
    this.engine = of.engine;
  }

  get bytes(): number {
    const { byteLength } = this.model.trainable;
    // Values, gradients and two moments.
    return 4 * byteLength;
  }

  get step(): number {
    return this.model.step;
  }

  async forwardBackward(
    rows: LossRows,
    { loss, forwardOnly }: { loss: LossRequest; forwardOnly: boolean },
  ): Promise<{ logprobs: Float32Array; metrics: Metrics }> {
    const taken = new ServedLoss(loss, rows);
    if (forwardOnly) {
      const { logprobs } = await this.model.score(rows, { temperature: 1 });
      taken.take(logprobs, 0);
    } else
      await this.model.accumulate(rows, {
        temperature: 1,
        loss: (outputs) => this.takeLoss(taken, { rows, outputs }),
      });
    return { logprobs: taken.logprobs, metrics: { "loss:sum": taken.sum } };
  }

  private async takeLoss(taken: ServedLoss, { rows, outputs }: { rows: LossRows; outputs: PassOutputs }) {
    const { device } = this.model;
    const length = outputs.offsets[outputs.offsets.length - 1];
    const [logprobs] = await device.read([{ buffer: outputs.logprobs, type: "f32", length }]);
    const slopes = taken.take(logprobs as Float32Array, rows.offsets[outputs.sequences.from]!);
    const scratch = new Scratch(device);
    return { dlogprobs: scratch.upload(slopes, "dlogprobs"), reads: [], release: () => scratch.release() };
  }

  clearGradients(): void {
    this.model.optimizer.gradients.clear();
  }

  async optimStep(params: OptimParams): Promise<Metrics> {
    checkOptim(params);
    const norm = await this.model.optimStep(params);
    if (!Number.isNaN(norm)) return { grad_norm: norm, learning_rate: params.learning_rate };
    throw new ConfigError(
      "Cannot take the optimiser step as the gradient's norm must be finite. The weights are unchanged and the gradient is cleared; look for extreme weights, advantages or log-probs.",
    );
  }

  freeze(): Policy {
    const policy = this.model.freeze();
    this.users++;
    return new LocalPolicy(this.model, {
      ...policy,
      release: () => {
        policy.release();
        this.leave();
      },
    });
  }

  save(dir: string, { optimizer }: { optimizer: boolean }): Promise<void> {
    return saveCheckpoint(dir, { model: this.model, base: this.engine.mark, optimizer });
  }

  load(dir: string, { optimizer }: { optimizer: boolean }): Promise<void> {
    return loadCheckpoint(dir, this.model, { optimizer, base: this.engine.mark });
  }

  release(): void {
    this.leave();
  }

  private leave(): void {
    this.users--;
    if (this.users === 0) this.model.release();
  }
}

class LocalPolicy implements Policy {
  readonly bytes: number;
  private readonly model: LanguageModel;
  private readonly frozen: FrozenPolicy;

  constructor(model: LanguageModel, frozen: FrozenPolicy) {
    this.model = model;
    this.frozen = frozen;
    this.bytes = frozen.bytes;
  }

  sample(
    requests: readonly SampleRequest[],
    options: { readonly signal?: AbortSignal } = {},
  ): Promise<SampledSequence[]> {
    return this.model.sample(requests, { weightVersion: 0, policy: this.frozen, signal: options.signal });
  }

  async scorePrompts(
    prompts: readonly (readonly number[])[],
    { topk }: { readonly topk: number },
  ): Promise<PromptScores[]> {
    const offsets = new Uint32Array(prompts.length + 1);
    for (const [i, { length }] of prompts.entries()) offsets[i + 1] = offsets[i]! + length;
    const rows = { tokens: Uint32Array.from(prompts.flat()), offsets };
    const { logprobs } = await this.model.logprobs(rows, { policy: this.frozen, temperature: 1 });
    const top = topk > 0 ? await this.model.top(rows, { k: topk, policy: this.frozen }) : undefined;
    return prompts.map((_, i) => {
      const [from, to] = [offsets[i], offsets[i + 1]];
      const own = logprobs.slice(from, to);
      own[0] = Number.NaN;
      // What stands after a position is about the next token.
      const shifted = <A extends Float32Array | Uint32Array>(of: A) =>
        of.slice(from! * topk, (to! - 1) * topk) as A;
      return {
        logprobs: own,
        top: top && {
          tokens: Uint32Array.of(...new Uint32Array(topk), ...shifted(top.tokens)),
          logprobs: Float32Array.of(...new Float32Array(topk).fill(Number.NaN), ...shifted(top.logprobs)),
        },
      };
    });
  }

  release(): void {
    this.frozen.release();
  }
}

/** What f32 holds without becoming 0 or infinite; steps beyond these turn weights into NaN. */
const LEAST_EPS = 1e-30;
const MOST_RATE = 100;

function checkOptim(params: OptimParams): void {
  const isFloat = (value: number) => value >= 0 && Number.isFinite(Math.fround(value));
  const isRate = (value: number) => value >= 0 && value <= MOST_RATE;
  const isShare = (value: number) => value >= 0 && Math.fround(value) < 1;
  const rules: readonly (readonly [keyof OptimParams, string, (value: number) => boolean])[] = [
    ["learning_rate", `in [0, ${MOST_RATE}]`, isRate],
    ["beta1", "in [0, 1)", isShare],
    ["beta2", "in [0, 1)", isShare],
    ["eps", `in [${LEAST_EPS}, 1]`, (value) => value >= LEAST_EPS && value <= 1],
    ["weight_decay", `in [0, ${MOST_RATE}]`, isRate],
    ["grad_clip_norm", "at least 0 and in the range of f32", isFloat],
  ];
  for (const [name, rule, holds] of rules)
    if (!holds(params[name]))
      throw new ConfigError(
        `Cannot take the optimiser step: ${name} must be a number ${rule} (${params[name]}).`,
        { path: name },
      );
}
