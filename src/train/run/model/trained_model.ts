/**
 * The model that a configuration trains, on a device: a new one, or one from opened files. Free of the runtime, because
 * the page that trains uses it too.
 */

import type { Device } from "../../../engine/compute/device.ts";
import type { ModelConfig } from "../../../engine/model/config.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../../engine/model/language_model.ts";
import type { LoraConfig } from "../../../engine/model/lora.ts";
import { shapeOf } from "../../../engine/model/model_shape.ts";
import { loadModel, type OpenedModel } from "../../../engine/model/open_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { LocalBackend, type LocalBackendOptions } from "../../backend/local/backend.ts";
import { criticOf } from "../../backend/local/critic.ts";
import { fittingOptions } from "../../backend/local/plan/fit.ts";
import { trainsStably } from "../../config/rules/stable_reinforce.ts";
import { setting } from "../../config/schema.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";
import { plannedCritic, readCritic } from "./critic_settings.ts";
import { readLora } from "./model_settings.ts";
import { plannedWork } from "./plan_settings.ts";

/** A new model trains all its weights. */
export const FIXED_OF_NEW_MODELS: readonly string[] = ["model.lora_rank"];

/** A model from random weights, in the shape of `model.init`. @throws ConfigError where the settings ask for an adapter */
export async function newBackend(
  device: Device,
  { config, tokenizer }: { config: Tree; tokenizer: TextTokenizer },
): Promise<LocalBackend> {
  const lora = readLora(config);
  if (lora) {
    throw new ConfigError("Cannot train an adapter on a new model: set model.lora_rank=0, or model.name to a folder.", {
      path: "model.lora_rank",
    });
  }
  const shape = newModelShape(config, tokenizer);
  const model = { config: shape, typeOf: () => undefined };
  const its = readCritic(config);
  const critic = await plannedCritic(its);
  const work = plannedWork(config, { model, isTrained: true, fixedSettings: FIXED_OF_NEW_MODELS, critic });
  const options = { ...(await fittingOptions(device, work)), seed: setting(config, "training.seed") };
  const make = () => LanguageModel.create(device, shape, options);
  const policy = make();
  const opened = await criticOf(policy, its, options);
  return new LocalBackend({
    ...recording(config),
    model: policy,
    remake: async () => make(),
    critic: opened,
    tokenizer,
    name: "new model",
  });
}

/** Whether a backend records what it samples, which one of the losses needs. */
export function recording(config: Tree): Pick<LocalBackendOptions, "recordStabilityInfo"> {
  return { recordStabilityInfo: trainsStably((path) => getAt(config, path)) };
}

export function newContextLength(config: Tree): number {
  const longest = setting(config, "rllm.data.max_prompt_length") + setting(config, "rllm.data.max_response_length");
  return Math.min(setting(config, "training.max_length"), longest);
}

export function newModelShape(config: Tree, tokenizer: TextTokenizer): ModelConfig {
  return {
    architecture: "llama",
    vocabSize: tokenizer.vocabSize,
    hiddenSize: setting(config, "model.init.hidden_size"),
    intermediateSize: setting(config, "model.init.intermediate_size"),
    layers: setting(config, "model.init.layers"),
    heads: setting(config, "model.init.heads"),
    kvHeads: setting(config, "model.init.kv_heads"),
    headDim: setting(config, "model.init.head_dim"),
    contextLength: newContextLength(config),
    rmsNormEps: 1e-5,
    ropeTheta: 10000,
    tied: false,
    qkNorm: false,
    qkvBias: false,
    eosTokenIds: [...tokenizer.eosTokenIds],
  };
}

interface Trainable {
  readonly opened: OpenedModel;
  /** Tokenizer with the template of the settings. */
  readonly tokenizer: TextTokenizer | undefined;
  readonly lora: LoraConfig | undefined;
  readonly config: Tree;
  readonly fixedSettings?: readonly string[];
}

/** A model from opened files: an adapter of it, or without `lora` all its weights. */
export async function trainable(
  device: Device,
  { opened, tokenizer, lora, config, fixedSettings }: Trainable,
): Promise<LocalBackend> {
  const { mark } = opened;
  const seed = setting(config, "training.seed");
  const its = readCritic(config);
  const critic = await plannedCritic(its);
  const work = plannedWork(config, { model: shapeOf(opened.files), lora, isTrained: true, fixedSettings, critic });
  const options = { ...(await fittingOptions(device, work)), seed };
  const remake = () => loadModel(device, opened, options);
  const model = await remake();
  return new LocalBackend({
    ...recording(config),
    model,
    remake,
    critic: await criticOf(model, its, options),
    tokenizer,
    name: mark.folder,
    base: mark,
    generationConfig: opened.files.generationConfig,
  });
}
