/** Opens the local backend: a device, and a model from a folder or a new one. */
import { LocalBackend } from "../backend/local.ts";
import type { Device } from "../compute/device.ts";
import { type DeviceName, openDevice } from "../compute/open.ts";
import { setting } from "../config/schema.ts";
import type { Tree } from "../config/tree.ts";
import { ConfigError } from "../errors.ts";
import type { ModelConfig } from "../model/config.ts";
import { openModelFolder } from "../model/folder.ts";
import { LanguageModel } from "../model/language_model.ts";
import type { LoraConfig } from "../model/lora.ts";
import { byteTokenizer, characterTokenizer, type TextTokenizer } from "../model/tokenizer.ts";
import { alphabetOf, type Session } from "./session.ts";

export interface OpenedBackend {
  readonly backend: LocalBackend;
  readonly device: Device;
}

/** @throws ConfigError for a model folder that cannot be read; UnsupportedError where the device asked for is missing. */
export async function openLocalBackend(session: Session): Promise<OpenedBackend> {
  const { config } = session;
  const device = await openDevice({
    device: setting(config, "device"),
    memoryBudgetBytes: setting(config, "memory_budget_bytes") ?? undefined,
  });
  const folder = setting(config, "model.name");
  const backend =
    folder === null ? createModel(device, session) : await loadModel(device, { folder, config });
  return { backend, device };
}

/** A model folder (or a checkpoint of one) without anything that trains it. */
export async function openForInference(folder: string, device: DeviceName): Promise<OpenedBackend> {
  const opened = await openDevice({ device });
  const model = await openModelFolder(folder);
  const languageModel = await LanguageModel.load(opened, model);
  const backend = new LocalBackend({ model: languageModel, tokenizer: model.tokenizer, name: folder });
  return { backend, device: opened };
}

async function loadModel(
  device: Device,
  { folder, config }: { folder: string; config: Tree },
): Promise<LocalBackend> {
  const opened = await openModelFolder(folder);
  const model = await LanguageModel.load(device, opened, {
    lora: readLora(config),
    seed: setting(config, "training.seed"),
  });
  return new LocalBackend({ model, tokenizer: opened.tokenizer, name: folder, baseFolder: folder });
}

function createModel(device: Device, session: Session): LocalBackend {
  const { config } = session;
  const lora = readLora(config);
  if (lora) {
    throw new ConfigError(
      "Cannot train an adapter on a new model: set model.lora_rank=0, or model.name to a folder.",
      {
        path: "model.lora_rank",
      },
    );
  }
  const isBytes = setting(config, "model.init.tokenizer") === "byte";
  const tokenizer = isBytes ? byteTokenizer() : characterTokenizer(alphabetOf(session));
  const model = LanguageModel.create(device, newModelConfig(config, tokenizer), {
    seed: setting(config, "training.seed"),
  });
  return new LocalBackend({ model, tokenizer, name: "new model" });
}

function newModelConfig(config: Tree, tokenizer: TextTokenizer): ModelConfig {
  const longest =
    setting(config, "rllm.data.max_prompt_length") + setting(config, "rllm.data.max_response_length");
  return {
    architecture: "llama",
    vocabSize: tokenizer.vocabSize,
    hiddenSize: setting(config, "model.init.hidden_size"),
    intermediateSize: setting(config, "model.init.intermediate_size"),
    layers: setting(config, "model.init.layers"),
    heads: setting(config, "model.init.heads"),
    kvHeads: setting(config, "model.init.kv_heads"),
    headDim: setting(config, "model.init.head_dim"),
    contextLength: Math.min(setting(config, "training.max_length"), longest),
    rmsNormEps: 1e-5,
    ropeTheta: 10000,
    tied: false,
    qkNorm: false,
    qkvBias: false,
    eosTokenIds: [...tokenizer.eosTokenIds],
  };
}

const ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"];
const MLP = ["gate_proj", "up_proj", "down_proj"];

function readLora(config: Tree): LoraConfig | undefined {
  const rank = setting(config, "model.lora_rank");
  if (rank === 0) return undefined;
  const targets = [
    ...(setting(config, "model.train_attn") ? ATTENTION : []),
    ...(setting(config, "model.train_mlp") ? MLP : []),
    ...(setting(config, "model.train_unembed") ? ["lm_head"] : []),
  ];
  return { rank, alpha: setting(config, "model.lora_alpha"), targets };
}
