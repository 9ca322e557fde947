/** The critic of the local backend: a value model on the policy's device. */
import type {
  Critic,
  CriticBatch,
  CriticLoss,
  Metrics,
  OptimParams,
  PackedTokens,
} from "../../../engine/contract/backend.ts";
import type { LanguageModel } from "../../../engine/model/language_model.ts";
import { type LoraOptions, loraConfig } from "../../../engine/model/lora.ts";
import type { ModelMark } from "../../../engine/model/open_model.ts";
import { type OpenedModel, openModel } from "../../../engine/model/open_model.ts";
import type { PassOptions } from "../../../engine/model/train/pass_size.ts";
import { ValueModel, type ValueModelOptions } from "../../../engine/model/value_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { accumulateValueLoss } from "./value_loss.ts";

/** Options of a critic: by default it starts from the policy's model and trains as the policy does. */
export interface CriticOptions {
  /** Folder of the model that it starts from, whose tokenizer is the policy's. Default: the policy's model. */
  readonly folder?: string | undefined;
  /** An adapter; null trains all weights. Default: an adapter of the policy's shape where the policy trains one. */
  readonly lora?: LoraOptions | null | undefined;
  /** Seed of its head and its adapter. Default 0. */
  readonly seed?: number | undefined;
}

/** A critic, and how it is made again after the loss of the device. */
export interface OpenedCritic {
  readonly model: ValueModel;
  /** The model that its adapter belongs to. Absent: the policy's. */
  readonly base?: ModelMark | undefined;
  make(policy: LanguageModel): Promise<ValueModel>;
}

/** How passes are cut and a frozen base is held. */
type How = PassOptions & Pick<ValueModelOptions, "dtype" | "quantization">;

/**
 * Opens the critic of a policy; undefined without options.
 * @param how as the policy's
 * @throws ConfigError for an adapter over a policy whose weights all train, or a folder with an adapter
 */
export async function criticOf(
  policy: LanguageModel,
  options: CriticOptions | undefined,
  how: How = {},
): Promise<OpenedCritic | undefined> {
  if (!options) return undefined;
  const maker = await openMaker(options, how);
  return { ...maker, model: await maker.make(policy) };
}

async function openMaker({ folder, lora, seed = 0 }: CriticOptions, how: How): Promise<Omit<OpenedCritic, "model">> {
  if (folder === undefined) return { make: async (policy) => besidePolicy(policy, { lora, seed }) };
  const opened = await openModel(folder);
  refuseAdapter(opened, folder);
  return {
    base: opened.mark,
    make: async (policy) => {
      checkVocabulary(opened, policy);
      return ValueModel.load(policy.device, opened.files, { ...ownCritic(policy, { lora, ...how }), seed });
    },
  };
}

/** How a critic with weights of its own is held. Weights that train are float32. */
export function ownCritic(
  policy: LanguageModel,
  { lora, dtype, quantization, ...passes }: Pick<CriticOptions, "lora"> & How,
): ValueModelOptions {
  const { maxTokensPerPass, gradientCheckpointing } = passes;
  const shape = lora === undefined ? policy.adapter?.config : lora;
  const sizes = { maxTokensPerPass, gradientCheckpointing };
  return shape ? { lora: loraConfig(shape), dtype, quantization, ...sizes } : sizes;
}

/** A critic that starts from the policy's model. Without a seed what it draws is zero. */
export function besidePolicy(policy: LanguageModel, { lora, seed }: Pick<CriticOptions, "lora" | "seed">): ValueModel {
  const policyLora = policy.adapter?.config;
  const shape = lora === undefined ? policyLora : lora;
  if (!shape) return ValueModel.copyOf(policy, { seed });
  if (policyLora) return ValueModel.beside(policy, { lora: loraConfig(shape), seed });
  throw new ConfigError(
    "Cannot put the critic's adapter on the policy's weights: they all train. Set critic.model.lora_rank=0, give it a model of its own (critic.model.path), or train an adapter (model.lora_rank).",
    { path: "critic.model.lora_rank" },
  );
}

function refuseAdapter({ adapters }: OpenedModel, folder: string): void {
  if (adapters.length === 0) return;
  throw new ConfigError("Cannot start the critic from an adapter. Give the folder of a whole model.", {
    path: "critic.model.path",
    file: folder,
  });
}

function checkVocabulary({ files }: OpenedModel, { config }: LanguageModel): void {
  if (files.config.vocabSize === config.vocabSize) return;
  throw new ConfigError(
    `Cannot use ${files.name} as the critic: it has ${files.config.vocabSize} tokens, and the policy's model has ${config.vocabSize}. Give a model with the policy's tokenizer.`,
    { path: "critic.model.path" },
  );
}

/** The contract's critic over a value model. */
export class LocalCritic implements Critic {
  readonly model: ValueModel;

  constructor(model: ValueModel) {
    this.model = model;
  }

  get version(): number {
    return this.model.step;
  }

  async values(rows: PackedTokens, { mask }: { readonly mask: Uint32Array }): Promise<Float32Array> {
    const values = await this.model.values({ ...rows, mask });
    const spread = new Float32Array(rows.tokens.length);
    let r = 0;
    for (let i = 0; i + 1 < rows.offsets.length; i++)
      for (let t = rows.offsets[i]! + 1; t < rows.offsets[i + 1]!; t++) if (mask[t] === 1) spread[t] = values[r++]!;
    return spread;
  }

  forwardBackward(batch: CriticBatch, loss: CriticLoss): Promise<Metrics> {
    return accumulateValueLoss(this.model, batch, loss);
  }

  async optimStep(params: OptimParams): Promise<Metrics> {
    const norm = await this.model.optimStep(params);
    if (Number.isNaN(norm))
      throw new ConfigError(
        "Cannot take the critic's optimiser step: the gradient's norm is not finite. Its weights are unchanged; lower critic.optim.lr, or look for extreme rewards in the last batch.",
      );
    return { "critic/grad_norm": norm, "critic/lr": params.learning_rate };
  }
}
