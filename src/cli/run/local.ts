/** Opens the local backend: a device, and a model from a folder or a new one. */
import { LocalBackend } from "../../backend/local/backend.ts";
import type { Device } from "../../compute/device.ts";
import { type DeviceName, openDevice } from "../../compute/open.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { ConfigError, UnsupportedError } from "../../errors.ts";
import type { ModelConfig } from "../../model/files/config.ts";
import { kindOf, openModelFolder, openTokenizer } from "../../model/files/folder.ts";
import { describeAdapter } from "../../model/files/peft.ts";
import {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "../../model/files/tokenizer.ts";
import { LanguageModel } from "../../model/language_model.ts";
import { loadModel, type OpenedModel, openBase, openModel } from "../../model/open_model.ts";
import { ATTENTION_TARGETS, type LoraConfig, MLP_TARGETS } from "../../model/train/lora_adapter.ts";
import { readText } from "../files.ts";
import { alphabetOf, type Session } from "./session.ts";

export interface OpenedBackend {
  readonly backend: LocalBackend;
  readonly device: Device;
}

export interface OpenOptions {
  /** Folder of weights to go on from: they say what is opened, and the configuration may not say otherwise. */
  readonly checkpoint?: string | undefined;
  /** False to sample and score only, which needs neither an optimiser's files nor its memory. Default true. */
  readonly isTrained?: boolean;
}

/** @throws ConfigError for a model folder that cannot be read; UnsupportedError where the device asked for is missing. */
export async function openLocalBackend(session: Session, options: OpenOptions = {}): Promise<OpenedBackend> {
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
  return closingOnError(device, () => openOn(device, session, options));
}

async function openOn(device: Device, session: Session, options: OpenOptions): Promise<LocalBackend> {
  const { config } = session;
  const { checkpoint, isTrained = true } = options;
  const folder = setting(config, "model.name");
  const base = folder ?? undefined;
  const template = templateOf(config);
  if (checkpoint !== undefined) {
    const isAdapter = (await kindOf(checkpoint)) === "adapter";
    if (!isTrained) return openFixed(device, { folder: checkpoint, base, template });
    if (!isAdapter) return resumeModel(device, { session, checkpoint });
    const lora = await describeAdapter(checkpoint);
    const opened = await openBase(checkpoint, { base });
    const own = await openTokenizer(checkpoint, opened.files.config.eosTokenIds);
    return trainable(device, { opened: { ...opened, tokenizer: own ?? opened.tokenizer }, lora, config });
  }
  if (folder === null) return createModel(device, session);
  if (!isTrained) return openFixed(device, { folder, template });
  return trainable(device, { opened: await openModel(folder), lora: readLora(config), config });
}

/** A trained model of this configuration's own kind, under the checkpoint's tokenizer. */
async function resumeModel(
  device: Device,
  { session, checkpoint }: { session: Session; checkpoint: string },
): Promise<LocalBackend> {
  const { config } = session;
  const files = await openModelFolder(checkpoint);
  const folder = setting(config, "model.name");
  if (folder === null) checkTokenizer(session, { tokenizer: files.tokenizer, checkpoint });
  const room = folder === null ? newContextLength(config) : 0;
  const contextLength = Math.max(files.config.contextLength, room);
  const model = await LanguageModel.load(device, { ...files, config: { ...files.config, contextLength } });
  const tokenizer = files.tokenizer && withTemplate(files.tokenizer, templateOf(config));
  return new LocalBackend({ model, tokenizer, name: folder ?? "new model" });
}

interface Trainable {
  readonly opened: OpenedModel;
  readonly lora: LoraConfig | undefined;
  readonly config: Tree;
}

async function trainable(device: Device, { opened, lora, config }: Trainable): Promise<LocalBackend> {
  const { mark, tokenizer } = opened;
  const model = await loadModel(device, opened, { lora, seed: setting(config, "training.seed") });
  return new LocalBackend({
    model,
    tokenizer: tokenizer && withTemplate(tokenizer, templateOf(config)),
    name: mark.folder,
    base: mark,
  });
}

/** To sample and score; an adapter is merged into its base. */
async function openFixed(
  device: Device,
  { folder, base, template }: { folder: string; base?: string | undefined; template?: string | undefined },
): Promise<LocalBackend> {
  const opened = await openModel(folder, { base });
  const model = await loadModel(device, opened);
  const tokenizer = opened.tokenizer && withTemplate(opened.tokenizer, template);
  return new LocalBackend({ model, tokenizer, name: folder, fixedTo: folder });
}

/**
 * A model folder, an adapter or a checkpoint of `grpu train`, to run and not to train.
 * @param options.device the value of `--device`
 * @param options.base folder of an adapter's base
 * @param options.template Jinja file in place of the model's chat template, or `plain`
 */
export async function openForInference(
  folder: string,
  { device: name, ...how }: { device: unknown; base?: string | undefined; template?: string | undefined },
): Promise<OpenedBackend> {
  const device = await openDevice({ device: (name as DeviceName | undefined) ?? "auto" });
  return closingOnError(device, () => openFixed(device, { folder, ...how }));
}

async function closingOnError(device: Device, open: () => Promise<LocalBackend>): Promise<OpenedBackend> {
  try {
    return { backend: await open(), device };
  } catch (error) {
    device.destroy();
    throw error;
  }
}

/**
 * The tokens of a model that this configuration made are those of its checkpoint.
 * @throws ConfigError where the configuration names others.
 */
function checkTokenizer(
  session: Session,
  { tokenizer, checkpoint }: { tokenizer: TextTokenizer | undefined; checkpoint: string },
): void {
  const saved = tokenizer?.files()["tokenizer.json"];
  const isNamed =
    session.isGiven("model.init.alphabet") && setting(session.config, "model.init.alphabet") !== null;
  const isByte = setting(session.config, "model.init.tokenizer") === "byte";
  const wasByte = saved === byteTokenizer().files()["tokenizer.json"];
  const isOther =
    isByte !== wasByte || (isNamed && saved !== plainTokenizer(session).files()["tokenizer.json"]);
  if (!isOther) return;
  throw new ConfigError(
    `Cannot open the checkpoint ${checkpoint}: its tokens are not those of the configuration (${tokenizer?.vocabSize ?? 0} tokens, and ${plainTokenizer(session).vocabSize}). Remove model.init.alphabet and model.init.tokenizer from the configuration.`,
    { path: isByte !== wasByte ? "model.init.tokenizer" : "model.init.alphabet" },
  );
}

function plainTokenizer(session: Session): TextTokenizer {
  const isBytes = setting(session.config, "model.init.tokenizer") === "byte";
  return isBytes ? byteTokenizer() : characterTokenizer(alphabetOf(session));
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
  const tokenizer = withTemplate(plainTokenizer(session), templateOf(config));
  const model = LanguageModel.create(device, newModelConfig(config, tokenizer), {
    seed: setting(config, "training.seed"),
  });
  return new LocalBackend({ model, tokenizer, name: "new model" });
}

function templateOf(config: Tree): string | undefined {
  return setting(config, "model.chat_template") ?? undefined;
}

/** The tokenizer with another chat template, where one is named. */
function withTemplate(tokenizer: TextTokenizer, named: string | undefined): TextTokenizer {
  if (named === undefined) return tokenizer;
  const source = named === "plain" ? PLAIN_CHAT_TEMPLATE : readText(named, "chat template");
  return withChatTemplate(tokenizer, source);
}

function newContextLength(config: Tree): number {
  const longest =
    setting(config, "rllm.data.max_prompt_length") + setting(config, "rllm.data.max_response_length");
  return Math.min(setting(config, "training.max_length"), longest);
}

function newModelConfig(config: Tree, tokenizer: TextTokenizer): ModelConfig {
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

function readLora(config: Tree): LoraConfig | undefined {
  const rank = setting(config, "model.lora_rank");
  if (rank === 0) return undefined;
  const targets = [
    ...(setting(config, "model.train_attn") ? ATTENTION_TARGETS : []),
    ...(setting(config, "model.train_mlp") ? MLP_TARGETS : []),
    ...(setting(config, "model.train_unembed") ? ["lm_head"] : []),
  ];
  return { rank, alpha: setting(config, "model.lora_alpha"), targets };
}
