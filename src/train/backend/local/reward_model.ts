/** A reward model on this machine: a value model that is read at the last token of each sequence. */
import type { Device } from "../../../engine/compute/device.ts";
import { openDevice } from "../../../engine/compute/open.ts";
import type { Metrics, ModelDescription, OptimParams, PackedTokens } from "../../../engine/contract/backend.ts";
import type { RewardModel } from "../../../engine/contract/reward_model.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import { parameterCount } from "../../../engine/model/layers.ts";
import { type ModelMark, openModel } from "../../../engine/model/open_model.ts";
import type { TargetChoice } from "../../../engine/model/train/targets.ts";
import { ValueModel, type ValueModelOptions } from "../../../engine/model/value_model.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { loadValueCheckpoint, saveValueCheckpoint } from "./checkpoint.ts";
import { keepTrained, type TrainedState, writeTrained } from "./kept_state.ts";

/** Parts of a {@link LocalRewardModel}. */
export interface LocalRewardModelOptions {
  readonly model: ValueModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Name of the folder or run, for messages. */
  readonly name: string;
  /** The base model, recorded in an adapter's files. */
  readonly base?: ModelMark | undefined;
  /** Makes the model as it was before training, on the device that was reopened. */
  readonly remake: () => Promise<ValueModel>;
}

/** Trains a reward model on this machine and scores sequences with it. */
export class LocalRewardModel implements RewardModel {
  readonly name = "local";
  readonly tokenizer: Tokenizer | undefined;
  private current: ValueModel;
  private kept: TrainedState | undefined;
  private listener: ((message: string) => void) | undefined;
  private readonly options: LocalRewardModelOptions;
  private readonly device: Device;

  constructor(options: LocalRewardModelOptions) {
    this.options = options;
    this.current = options.model;
    this.device = options.model.device;
    this.tokenizer = options.tokenizer;
  }

  /**
   * Opens a folder of a model to train a reward model from it: an adapter with a head, or without `lora` all weights. A head that the
   * folder has is kept.
   * @throws {ConfigError} for a folder that cannot be read, or one of an adapter
   */
  static async open(
    folder: string,
    { device: openedDevice, ...options }: ValueModelOptions & { readonly device?: Device | undefined } = {},
  ): Promise<LocalRewardModel> {
    const { files, adapters, mark, tokenizer } = await openModel(folder);
    if (adapters.length > 0) throw refusedAdapter(mark.folder);
    const device = openedDevice ?? (await openDevice());
    const remake = () => ValueModel.load(device, files, { label: "weights", ...options });
    return new LocalRewardModel({ model: await remake(), remake, tokenizer, name: mark.folder, base: mark });
  }

  /** Another one after {@link recover}. */
  get valueModel(): ValueModel {
    return this.current;
  }

  get model(): ModelDescription {
    const { base, adapter } = this.current;
    const { vocabSize, contextLength } = base.config;
    const parameters = parameterCount(base.config);
    return {
      name: this.options.name,
      vocabSize,
      contextLength,
      eosTokenIds: [...new Set([...base.config.eosTokenIds, ...(this.tokenizer?.eosTokenIds ?? [])])],
      parameters,
      trainableParameters: adapter?.values.size ?? parameters,
    };
  }

  get weightVersion(): number {
    return this.current.step;
  }

  scores(rows: PackedTokens): Promise<Float32Array> {
    return this.current.values(atLastTokens(rows));
  }

  async backward(rows: PackedTokens, dscores: Float32Array): Promise<void> {
    const { device } = this;
    await this.current.accumulate(atLastTokens(rows), {
      loss({ sequences }) {
        const dvalues = device.upload(dscores.slice(sequences.from, sequences.to), "dscores");
        return { dvalues, reads: [], release: () => device.release(dvalues) };
      },
    });
  }

  async optimStep(params: OptimParams): Promise<Metrics> {
    const norm = await this.current.optimStep(params);
    if (Number.isNaN(norm))
      throw new ConfigError(
        "Cannot take the optimiser step: the gradient's norm is not finite. The weights are unchanged; lower optim.lr, or look for extreme margins in the last batch.",
      );
    return { grad_norm: norm };
  }

  onWarning(listener: (message: string) => void): void {
    this.listener = listener;
    this.current.onWarning(listener);
  }

  async keep(): Promise<void> {
    if (this.device.reopen) this.kept = await keepTrained(this.current);
  }

  async recover(): Promise<boolean> {
    if (!this.device.reopen)
      throw new UnsupportedError("Cannot reopen the reward model: its device cannot be opened again.", {
        part: "local",
        capability: "recover",
      });
    await this.device.reopen();
    this.current = await this.options.remake();
    if (this.listener) this.current.onWarning(this.listener);
    if (!this.kept) return false;
    writeTrained(this.current, this.kept);
    await this.device.submit();
    return true;
  }

  async save(dir: string): Promise<void> {
    const { tokenizer, base } = this.options;
    await saveValueCheckpoint(dir, { model: this.current, tokenizer, base });
  }

  load(dir: string): Promise<void> {
    return loadValueCheckpoint(dir, this.current, { what: "reward model" });
  }

  close(): void {
    this.current.release();
    this.device.destroy();
  }
}

/** An adapter starts no reward model: its head would be added to changes that nobody merged. */
export function refusedAdapter(folder: string): ConfigError {
  return new ConfigError(
    "Cannot start the reward model from an adapter. Merge it into its base with grpu export --merge, and give that folder.",
    { path: "model.path", file: folder },
  );
}

/** Rows whose targets are the last position of each sequence; which token would follow does not matter to a value. */
export function atLastTokens({ tokens, offsets }: PackedTokens): PackedTokens & TargetChoice {
  const positions = offsets.slice(1).map((end) => end - 1);
  return { tokens, offsets, positions, targets: new Uint32Array(positions.length) };
}
