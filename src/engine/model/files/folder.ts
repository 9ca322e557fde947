/** Opens a model folder in Hugging Face's layout: every header is checked before a weight is read. */
import { ConfigError } from "../../../leaves/errors.ts";
import type { ModelConfig } from "../config.ts";
import { weightShapes } from "../layers.ts";
import { parseModelConfig } from "./config_json.ts";
import { GENERATION_CONFIG_FILE, readGenerationConfig } from "./generation_config.ts";
import { openFolder } from "./open_folder.ts";
import { type FolderReader, readFolderJson, readFolderText } from "./reader.ts";
import type { TensorInfo } from "./safetensors.ts";
import { openTensors, type TensorFiles } from "./tensor_files.ts";
import { resolveTiedOutput } from "./tied_output.ts";
import { createTokenizer, type TextTokenizer } from "./tokenizer.ts";

/** An open model folder. Weights are read on demand. */
export interface ModelFolder extends TensorFiles {
  readonly name: string;
  readonly config: ModelConfig;
  /** Absent where the folder has no tokenizer.json. */
  readonly tokenizer?: TextTokenizer | undefined;
  /** Text of generation_config.json, for folders with weights that were trained from these. */
  readonly generationConfig?: string | undefined;
}

/**
 * Opens a model folder: reads its configuration, its tokenizer and the headers of its weights, and checks that exactly
 * the weights of the configuration are present, each in its shape. Tied matrices that the files hold twice are compared.
 * @param folder a path on disk, or a reader.
 * @throws ConfigError naming the file and the tensor or key; UnsupportedError for an unsupported architecture.
 */
export async function openModelFolder(folder: string | FolderReader): Promise<ModelFolder> {
  const reader = await openFolder(folder);
  const { config, files } = await resolveTiedOutput(await openModelConfig(reader), await openTensors(reader));
  checkShapes(files.tensors, { config, name: reader.name });
  const tokenizer = await openTokenizer(reader, config.eosTokenIds);
  const generationConfig = await readFolderText(reader, GENERATION_CONFIG_FILE);
  return { name: reader.name, config, tokenizer, generationConfig, ...files };
}

/**
 * The configuration of a model folder, with the end tokens of generation_config.json where it has some, as in
 * transformers. The folder needs no weights.
 * @throws ConfigError and UnsupportedError as {@link openModelFolder}
 */
export async function openModelConfig(folder: string | FolderReader): Promise<ModelConfig> {
  const reader = await openFolder(folder);
  const file = `${reader.name}/config.json`;
  const raw = await readFolderJson(reader, "config.json");
  if (raw === undefined) throw new ConfigError("Cannot open the model folder: it has no config.json.", { file });
  const config = parseModelConfig(raw, file);
  const { eosTokenIds } = await readGenerationConfig(reader);
  return eosTokenIds.length > 0 ? { ...config, eosTokenIds } : config;
}

/**
 * The tokenizer of a model folder; `undefined` where it has no tokenizer.json.
 * @throws ConfigError naming the file when it cannot be read.
 */
export async function openTokenizer(
  folder: string | FolderReader,
  eosTokenIds: readonly number[] = [],
): Promise<TextTokenizer | undefined> {
  const reader = await openFolder(folder);
  const tokenizer = await readFolderJson(reader, "tokenizer.json");
  if (tokenizer === undefined) return undefined;
  return createTokenizer({
    tokenizer,
    config: await tokenizerConfig(reader),
    chatTemplate: await readFolderText(reader, "chat_template.jinja"),
    eosTokenIds,
    folder: reader.name,
  });
}

/** tokenizer_config.json; older folders name special tokens in special_tokens_map.json only. */
async function tokenizerConfig(reader: FolderReader): Promise<unknown> {
  const config = await readFolderJson(reader, "tokenizer_config.json");
  const tokens = await readFolderJson(reader, "special_tokens_map.json");
  const areObjects = [config ?? {}, tokens].every(
    (value) => typeof value === "object" && value !== null && !Array.isArray(value),
  );
  return areObjects ? { ...(tokens as object), ...(config as object | undefined) } : config;
}

/** Tensors that a folder may hold and no forward pass reads. */
const UNUSED = /\.rotary_emb\.inv_freq$/;

const FLOAT_TYPES: ReadonlySet<string> = new Set(["F32", "BF16", "F16", "F64"]);

function checkShapes(tensors: ReadonlyMap<string, TensorInfo>, model: { config: ModelConfig; name: string }): void {
  const shapes = weightShapes(model.config);
  for (const [name, shape] of shapes) {
    const info = tensors.get(name);
    if (!info) throw missingTensor(name, { shape, ...model });
    if (`${info.shape}` !== `${shape}`)
      throw new ConfigError(
        `Cannot load tensor ${name}: config.json requires shape [${shape}] ([${info.shape}]).${keysOf(name)}`,
        { file: info.file },
      );
    if (!FLOAT_TYPES.has(info.dtype))
      throw new ConfigError(
        `Cannot load tensor ${name}: weights must be F32, BF16, F16 or F64 (${info.dtype}). Give the model that is not quantised.`,
        { file: info.file },
      );
  }
  for (const [name, info] of tensors) {
    if (shapes.has(name) || UNUSED.test(name) || isRepeatedTable(name, model.config)) continue;
    throw new ConfigError(
      `Cannot load the model: the architecture ${model.config.architecture} has no tensor ${name}${layersOf(name, model.config)}.`,
      { file: info.file },
    );
  }
}

/** A tied model's file may repeat the embedding table as the output matrix. */
const isRepeatedTable = (name: string, { tied, scoreHead }: ModelConfig) =>
  name === "lm_head.weight" && tied && !scoreHead;

function missingTensor(
  name: string,
  { shape, config, name: file }: { shape: readonly number[]; config: ModelConfig; name: string },
): Error {
  const hint = " A model without it needs tie_word_embeddings true in config.json.";
  const advice = name === "lm_head.weight" ? hint : "";
  const message = `Cannot load the model: tensor ${name} [${shape}] is missing${layersOf(name, config)}.${advice}`;
  return new ConfigError(message, { file });
}

/** Returns config.json's number of layers as text, for a tensor of one. */
function layersOf(name: string, { layers }: ModelConfig): string {
  return name.startsWith("model.layers.") ? ` (config.json has num_hidden_layers ${layers})` : "";
}

const KEYS: readonly (readonly [tensors: RegExp, keys: string])[] = [
  [/(embed_tokens|lm_head)\.weight$/, "vocab_size and hidden_size"],
  [/(q|o)_proj\.(weight|bias)$/, "num_attention_heads, head_dim and hidden_size"],
  [/(k|v)_proj\.(weight|bias)$/, "num_key_value_heads, head_dim and hidden_size"],
  [/mlp\.\w+\.(weight|bias)$/, "intermediate_size and hidden_size"],
  [/(q|k)_norm\.weight$/, "head_dim"],
  [/norm\.weight$/, "hidden_size"],
];

/** The keys of config.json that a tensor's shape follows from. */
function keysOf(name: string): string {
  const keys = KEYS.find(([tensors]) => tensors.test(name))?.[1];
  return keys ? ` It follows from ${keys}.` : "";
}
