/** The tensors of a folder as one set, whether they lie in one safetensors file or in several. */
import { ConfigError } from "../../errors.ts";
import { openFolder } from "./open_folder.ts";
import { type FolderReader, readJson } from "./reader.ts";
import { openSafetensors, type SafetensorsFile, type TensorInfo } from "./safetensors.ts";

/** A set of tensors spread over one or several safetensors files. */
export interface TensorFiles {
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /** The whole tensor as f32, or `length` of its elements from `start`. */
  read(name: string, range?: { start: number; length: number }): Promise<Float32Array>;
  /** The bytes of the same elements, as they lie in the file. */
  readBytes(name: string, range?: { start: number; length: number }): Promise<Uint8Array>;
}

/**
 * `STEM.safetensors`, or the files that `STEM.safetensors.index.json` lists. Default stem: `model`.
 * @throws ConfigError for a missing or damaged file.
 */
export async function openTensors(folder: string | FolderReader, stem = "model"): Promise<TensorFiles> {
  const reader = await openFolder(folder);
  const index = await readJson(reader, `${stem}.safetensors.index.json`);
  if (index !== undefined) return joinShards(reader, { index, stem });
  const { tensors, read, readBytes } = await openShard(reader, `${stem}.safetensors`);
  return { tensors, read, readBytes };
}

async function joinShards(reader: FolderReader, it: { index: unknown; stem: string }): Promise<TensorFiles> {
  const source = { file: `${reader.name}/${it.stem}.safetensors.index.json` };
  const map = (it.index as { weight_map?: Record<string, string> } | null)?.weight_map;
  if (typeof map !== "object" || map === null)
    throw new ConfigError("Cannot read the index of weights: it has no weight_map.", source);
  const shards = new Map<string, SafetensorsFile>();
  const tensors = new Map<string, TensorInfo>();
  for (const [name, file] of Object.entries(map)) {
    if (typeof file !== "string" || /[\\/]/.test(file))
      throw new ConfigError(`Cannot read tensor ${name}: its file must be in this folder (${file}).`, source);
    const shard = shards.get(file) ?? (await openShard(reader, file));
    shards.set(file, shard);
    const info = shard.tensors.get(name);
    if (!info)
      throw new ConfigError(`Cannot read tensor ${name}: the index names a file without it (${file}).`, source);
    tensors.set(name, info);
  }
  const shardOf = (name: string): SafetensorsFile => {
    const shard = shards.get(map[name]!);
    if (shard && tensors.has(name)) return shard;
    throw new ConfigError(`Cannot read tensor ${name}: the index does not list it.`, source);
  };
  return {
    tensors,
    read: async (name, range) => shardOf(name).read(name, range),
    readBytes: async (name, range) => shardOf(name).readBytes(name, range),
  };
}

async function openShard(reader: FolderReader, file: string): Promise<SafetensorsFile> {
  const bytes = await reader.open(file);
  if (bytes) return openSafetensors(bytes);
  throw new ConfigError(`Cannot read the weights: there is no file ${file}.`, {
    file: `${reader.name}/${file}`,
  });
}
