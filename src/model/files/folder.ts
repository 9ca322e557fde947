/** A model in a folder, in Hugging Face's layout: read with every header checked before a weight is, and written whole. */
import { ConfigError } from "../../errors.ts";
import { type ModelConfig, modelConfigJson, parseModelConfig, readTokenIds, weightShapes } from "./config.ts";
import { type ByteReader, openSafetensors, type SafetensorsFile, type TensorInfo } from "./safetensors.ts";
import { encodeSafetensors, type TensorSource, type WriteOptions } from "./safetensors_write.ts";
import { createTokenizer, type TextTokenizer } from "./tokenizer.ts";

/** Where a model's files come from: a disk, a page's fetch, a set of Blobs. */
export interface FolderReader {
  /** For messages. */
  readonly name: string;
  /** A file by its name within the folder; `undefined` when there is none. */
  open(file: string): Promise<ByteReader | undefined>;
}

/** A set of tensors spread over one or several safetensors files. */
export interface TensorFiles {
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /** The whole tensor as f32, or `length` of its elements from `start`. */
  read(name: string, range?: { start: number; length: number }): Promise<Float32Array>;
}

export interface ModelFolder extends TensorFiles {
  readonly name: string;
  readonly config: ModelConfig;
  /** Absent where the folder has no tokenizer.json. */
  readonly tokenizer?: TextTokenizer | undefined;
}

/**
 * Opens a model folder: reads its configuration, its tokenizer and the headers of its weights, and checks that each
 * weight the configuration calls for is there in the right shape, and no other. Weights are read when asked for.
 * @param folder a path on disk, or a reader.
 * @throws ConfigError naming the file and the tensor or key; UnsupportedError for a model of another kind.
 */
export async function openModelFolder(folder: string | FolderReader): Promise<ModelFolder> {
  const reader = await asReader(folder);
  const raw = await readJson(reader, "config.json");
  if (raw === undefined) {
    throw new ConfigError(`Cannot open the model folder as it has no config.json: ${reader.name}`, {
      file: `${reader.name}/config.json`,
    });
  }
  const generation = ((await readJson(reader, "generation_config.json")) ?? {}) as Record<string, unknown>;
  const config = withEosTokens(parseModelConfig(raw, `${reader.name}/config.json`), {
    generation,
    file: `${reader.name}/generation_config.json`,
  });
  const files = await openTensors(reader);
  checkShapes(files.tensors, { config, name: reader.name });
  return { name: reader.name, config, tokenizer: await openTokenizer(reader, config.eosTokenIds), ...files };
}

/**
 * The tokenizer of a model folder; `undefined` where it has no tokenizer.json.
 * @throws ConfigError naming the file when it cannot be read.
 */
export async function openTokenizer(
  folder: string | FolderReader,
  eosTokenIds: readonly number[] = [],
): Promise<TextTokenizer | undefined> {
  const reader = await asReader(folder);
  const tokenizer = await readJson(reader, "tokenizer.json");
  if (tokenizer === undefined) return undefined;
  return createTokenizer({
    tokenizer,
    config: await readJson(reader, "tokenizer_config.json"),
    chatTemplate: await readText(reader, "chat_template.jinja"),
    eosTokenIds,
    name: `${reader.name}/tokenizer.json`,
  });
}

/**
 * `model.safetensors`, or the files that `model.safetensors.index.json` lists, as one set of tensors.
 * @throws ConfigError for a missing or damaged file.
 */
export async function openTensors(folder: string | FolderReader, stem = "model"): Promise<TensorFiles> {
  const reader = await asReader(folder);
  const index = await readJson(reader, `${stem}.safetensors.index.json`);
  if (index === undefined) {
    const file = await openShard(reader, `${stem}.safetensors`);
    return { tensors: file.tensors, read: (name, range) => file.read(name, range) };
  }
  return joinShards(reader, { index, name: `${reader.name}/${stem}.safetensors.index.json` });
}

async function joinShards(reader: FolderReader, it: { index: unknown; name: string }): Promise<TensorFiles> {
  const map = (it.index as { weight_map?: Record<string, string> } | null)?.weight_map;
  if (typeof map !== "object" || map === null) {
    throw new ConfigError("Cannot read the index of weights as weight_map is missing", { file: it.name });
  }
  const shards = new Map<string, SafetensorsFile>();
  const tensors = new Map<string, TensorInfo>();
  for (const [name, file] of Object.entries(map)) {
    if (typeof file !== "string" || /[\\/]/.test(file)) {
      throw new ConfigError(`Cannot read tensor ${name} as its file is not a name in this folder: ${file}`, {
        file: it.name,
      });
    }
    const shard = shards.get(file) ?? (await openShard(reader, file));
    shards.set(file, shard);
    const info = shard.tensors.get(name);
    if (!info) {
      throw new ConfigError(
        `Cannot read tensor ${name} as it is not in the file that the index names: ${file}`,
        {
          file: it.name,
        },
      );
    }
    tensors.set(name, info);
  }
  return {
    tensors,
    async read(name, range) {
      const shard = shards.get(map[name]!);
      if (shard && tensors.has(name)) return shard.read(name, range);
      throw new ConfigError(`Cannot read tensor ${name} as the index has none of that name`, {
        file: it.name,
      });
    },
  };
}

async function openShard(reader: FolderReader, file: string): Promise<SafetensorsFile> {
  const bytes = await reader.open(file);
  if (bytes) return openSafetensors(bytes);
  throw new ConfigError(`Cannot read the weights as the file does not exist: ${file}`, {
    file: `${reader.name}/${file}`,
  });
}

/** Weights that a folder may hold and a forward pass does without. */
const UNUSED = /\.rotary_emb\.inv_freq$/;

function checkShapes(
  tensors: ReadonlyMap<string, TensorInfo>,
  it: { config: ModelConfig; name: string },
): void {
  const shapes = weightShapes(it.config);
  for (const [name, shape] of shapes) {
    const info = tensors.get(name);
    if (!info) {
      const hint =
        name === "lm_head.weight" ? ". A model without it needs tie_word_embeddings true in config.json" : "";
      throw new ConfigError(`Cannot load the model as tensor ${name} [${shape}] is missing${hint}`, {
        file: it.name,
      });
    }
    if (info.shape.length !== shape.length || info.shape.some((size, i) => size !== shape[i])) {
      const message = `Cannot load tensor ${name} as config.json calls for shape [${shape}]: [${info.shape}]`;
      throw new ConfigError(message, { file: info.file });
    }
  }
  for (const [name, info] of tensors) {
    // A tied model's file may repeat the embedding table as the output matrix.
    if (shapes.has(name) || UNUSED.test(name) || name === "lm_head.weight") continue;
    const message = `Cannot load the model as a ${it.config.architecture} model has no tensor of that name: ${name}`;
    throw new ConfigError(message, { file: info.file });
  }
}

/** generation_config.json's end tokens count where it has some, as for transformers. */
function withEosTokens(
  config: ModelConfig,
  it: { generation: Record<string, unknown>; file: string },
): ModelConfig {
  const eosTokenIds = readTokenIds(it.generation, { key: "eos_token_id", file: it.file });
  return eosTokenIds.length > 0 ? { ...config, eosTokenIds } : config;
}

/** What a folder of weights holds: a whole model, or an adapter on another one. */
export type FolderKind = "model" | "adapter";

/** @throws ConfigError for a folder that holds neither. */
export async function kindOf(folder: string | FolderReader): Promise<FolderKind> {
  const reader = await asReader(folder);
  if (await reader.open("config.json")) return "model";
  if (await reader.open("adapter_config.json")) return "adapter";
  const message =
    "Cannot open the model folder: it has neither config.json (a model) nor adapter_config.json (an adapter)";
  throw new ConfigError(message, { file: reader.name });
}

async function asReader(folder: string | FolderReader): Promise<FolderReader> {
  if (typeof folder !== "string") return folder;
  // Loaded only here, so that a page with its own reader never meets node:fs.
  const { diskFolder } = await import("./disk.ts");
  return diskFolder(folder);
}

/** Text of a file in the folder; `undefined` when there is none. */
export async function readText(reader: FolderReader, file: string): Promise<string | undefined> {
  const bytes = await reader.open(file);
  return bytes && new TextDecoder().decode(await bytes.read(0, bytes.size));
}

/** Parsed JSON file of the folder; `undefined` when there is none. @throws ConfigError when it is not JSON. */
export async function readJson(reader: FolderReader, file: string): Promise<unknown> {
  const text = await readText(reader, file);
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new ConfigError(`Cannot read the file as it is not JSON: ${(cause as Error).message}`, {
      file: `${reader.name}/${file}`,
    });
  }
}

export interface SaveModelOptions extends WriteOptions {
  readonly config: ModelConfig;
  /** Weights by their Hugging Face names, see {@link weightShapes}. */
  readonly tensors: readonly TensorSource[];
  readonly tokenizer?: TextTokenizer | undefined;
  /** More files, by name. */
  readonly extra?: Readonly<Record<string, string>>;
}

/**
 * Writes a model folder that {@link openModelFolder} and transformers read. Whatever was there stays whole until all
 * new files are on the disk.
 * @throws ConfigError when the weights are not the configuration's, or the disk is full.
 */
export async function saveModelFolder(dir: string, options: SaveModelOptions): Promise<void> {
  checkSources(options);
  const { writeFolder } = await import("./disk.ts");
  const { config, tensors, tokenizer, extra = {}, dtype } = options;
  const json = modelConfigJson(config, dtype === "BF16" ? "bfloat16" : "float32");
  const texts = { ...tokenizer?.files(), ...extra, "config.json": `${JSON.stringify(json, null, 2)}\n` };
  await writeFolder(dir, [
    { name: "model.safetensors", content: encodeSafetensors(tensors, options) },
    ...Object.entries(texts).map(([name, content]) => ({ name, content })),
  ]);
}

function checkSources({ config, tensors }: SaveModelOptions): void {
  const given = new Map(tensors.map((tensor) => [tensor.name, tensor.shape]));
  for (const [name, shape] of weightShapes(config)) {
    if (`${given.get(name)}` === `${shape}` && given.delete(name)) continue;
    throw new ConfigError(
      `Cannot save the model as tensor ${name} must be [${shape}]: ${given.get(name) ?? "missing"}`,
    );
  }
  const other = given.keys().next().value;
  if (other !== undefined)
    throw new ConfigError(`Cannot save the model as it has no tensor of that name: ${other}`);
}
