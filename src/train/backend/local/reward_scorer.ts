/** A reward model on this device that scores rollouts: a folder with a scalar head, or an adapter with one and its base. */
import type { Device } from "../../../engine/compute/device.ts";
import type { PackedTokens } from "../../../engine/contract/backend.ts";
import type { RewardScorer } from "../../../engine/contract/reward_model.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { LoraConfig } from "../../../engine/model/lora.ts";
import { type OpenedModel, openModel } from "../../../engine/model/open_model.ts";
import { ValueModel, type ValueModelOptions } from "../../../engine/model/value_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { atLastTokens } from "./reward_model.ts";

/** Tokens of a scoring pass: enough to keep a device busy, and small next to the policy's training pass. */
const TOKENS_PER_PASS = 2048;

/** Scores with the weights of a folder. Open it before the policy, whose plan then counts this memory. */
export class LocalRewardScorer implements RewardScorer {
  readonly name: string;
  readonly tokenizer: Tokenizer | undefined;
  private model: ValueModel;
  private readonly remake: () => Promise<ValueModel>;

  private constructor(
    model: ValueModel,
    of: { name: string; tokenizer: Tokenizer | undefined; remake: () => Promise<ValueModel> },
  ) {
    this.model = model;
    this.name = of.name;
    this.tokenizer = of.tokenizer;
    this.remake = of.remake;
  }

  /**
   * Opens a folder on the policy's device. Its weights do not change, and are held in bfloat16 where the file has them so.
   * @throws {ConfigError} for a folder that cannot be read or has no scalar head; {OutOfMemoryError} where its weights do not fit
   */
  static async open(folder: string, { device }: { readonly device: Device }): Promise<LocalRewardScorer> {
    const opened = await openModel(folder);
    checkHead(opened, folder);
    const remake = () => load(device, opened);
    return new LocalRewardScorer(await remake(), { name: folder, tokenizer: opened.tokenizer, remake });
  }

  get vocabSize(): number {
    return this.model.base.config.vocabSize;
  }

  get contextLength(): number {
    return this.model.base.config.contextLength;
  }

  scores(rows: PackedTokens): Promise<Float32Array> {
    return this.model.values(atLastTokens(rows));
  }

  async recover(): Promise<void> {
    this.model = await this.remake();
  }

  close(): void {
    this.model.release();
  }
}

/** How its weights are held, for plans too. */
export function scorerOptions(lora?: LoraConfig): ValueModelOptions {
  return { frozen: true, maxTokensPerPass: TOKENS_PER_PASS, label: "reward model weights", ...(lora && { lora }) };
}

function checkHead({ files, adapters }: OpenedModel, folder: string): void {
  const heads = adapters.filter(({ adapter }) => adapter.scoreHead).length + Number(files.config.scoreHead === true);
  if (heads > 0 && adapters.length <= 1) return;
  const why =
    heads === 0
      ? "it has no scalar head (score.weight)"
      : `it is an adapter over ${adapters.length - 1} others, and one at most can be added to a base`;
  throw new ConfigError(
    `Cannot score with the reward model: ${why}. Train one with grpu reward-model, or give a folder of transformers' ForSequenceClassification with one label.`,
    { path: "reward_model.model.path", file: folder },
  );
}

async function load(device: Device, { files, adapters: [saved] }: OpenedModel): Promise<ValueModel> {
  const lora = saved && { rank: saved.adapter.rank, alpha: saved.adapter.alpha, targets: saved.adapter.targets };
  const model = await ValueModel.load(device, files, scorerOptions(lora));
  if (!saved) return model;
  model.adapter!.load(saved.adapter, `${saved.folder}/adapter_config.json`);
  model.refresh();
  return model;
}
