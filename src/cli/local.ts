/** Opens the local backend: a device, and a model from a folder or a new one. */
import { LocalBackend } from "../backend/local.ts";
import type { Device } from "../compute/device.ts";
import { type DeviceName, openDevice } from "../compute/open.ts";
import { setting } from "../config/schema.ts";
import type { Tree } from "../config/tree.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import { openAdapter } from "../model/adapter.ts";
import type { ModelConfig } from "../model/config.ts";
import { listFolder } from "../model/files.ts";
import { openModelFolder } from "../model/folder.ts";
import { LanguageModel } from "../model/language_model.ts";
import type { LoraConfig } from "../model/lora.ts";
import {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "../model/tokenizer.ts";
import { readText } from "./files.ts";
import { alphabetOf, type Session } from "./session.ts";

export interface OpenedBackend {
  readonly backend: LocalBackend;
  readonly device: Device;
}

/** @throws ConfigError for a model folder that cannot be read; UnsupportedError where the device asked for is missing. */
export async function openLocalBackend(session: Session): Promise<OpenedBackend> {
  const { config } = session;
  const wanted = setting(config, "rllm.backend");
  if (wanted !== "local") {
    throw new UnsupportedError(
      `Cannot train on the backend ${wanted} from here yet: use rllm/backend=local`,
      {
        part: "cli",
        capability: `rllm/backend=${wanted}`,
      },
    );
  }
  const device = await openDevice({
    device: setting(config, "device"),
    memoryBudgetBytes: setting(config, "memory_budget_bytes") ?? undefined,
  });
  const folder = setting(config, "model.name");
  const backend =
    folder === null ? createModel(device, session) : await loadModel(device, { folder, config });
  return { backend, device };
}

/**
 * A model folder, or a checkpoint of `grpu train`, to run and not to train.
 * @param device the value of `--device`
 */
export async function openForInference(dir: string, device: unknown): Promise<OpenedBackend> {
  const opened = await openDevice({ device: (device as DeviceName | undefined) ?? "auto" });
  try {
    return { backend: await openFolder(opened, dir), device: opened };
  } catch (error) {
    opened.destroy();
    throw error;
  }
}

async function openFolder(device: Device, dir: string): Promise<LocalBackend> {
  const files = await listFolder(dir);
  const isAdapter = files.includes("adapter_config.json") && !files.includes("config.json");
  if (isAdapter) return openAdapted(device, dir);
  const folder = await openModelFolder(dir);
  const model = await LanguageModel.load(device, folder);
  return new LocalBackend({ model, tokenizer: folder.tokenizer, name: dir });
}

/** The base model that an adapter names, with the adapter on it. */
async function openAdapted(device: Device, dir: string): Promise<LocalBackend> {
  const { rank, alpha, targets, base } = await openAdapter(dir);
  if (base === undefined) {
    throw new ConfigError(
      "Cannot open the adapter as its base_model_name_or_path is empty: name the model's folder there",
      {
        file: `${dir}/adapter_config.json`,
      },
    );
  }
  const folder = await openModelFolder(base);
  const model = await LanguageModel.load(device, folder, { lora: { rank, alpha, targets } });
  const backend = new LocalBackend({ model, tokenizer: folder.tokenizer, name: dir, baseFolder: base });
  await backend.load(dir);
  return backend;
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
  const tokenizer = opened.tokenizer && withTemplate(opened.tokenizer, config);
  return new LocalBackend({ model, tokenizer, name: folder, baseFolder: folder });
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
  const plain = isBytes ? byteTokenizer() : characterTokenizer(alphabetOf(session));
  const tokenizer = withTemplate(plain, config);
  const model = LanguageModel.create(device, newModelConfig(config, tokenizer), {
    seed: setting(config, "training.seed"),
  });
  return new LocalBackend({ model, tokenizer, name: "new model" });
}

/** The tokenizer with the chat template of the configuration, where it names one. */
function withTemplate(tokenizer: TextTokenizer, config: Tree): TextTokenizer {
  const named = setting(config, "model.chat_template");
  if (named === null) return tokenizer;
  const source = named === "plain" ? PLAIN_CHAT_TEMPLATE : readText(named, "chat template");
  return withChatTemplate(tokenizer, source);
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
