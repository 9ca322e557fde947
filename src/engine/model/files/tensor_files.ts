/** The tensors of a folder as one set, whether they lie in one safetensors file or in several. */
import { ConfigError } from "../../../leaves/errors.ts";
import { openFolder } from "./open_folder.ts";
import { type FolderReader, readFolderJson, readFolderText } from "./reader.ts";
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
  const name = `${stem}.safetensors.index.json`;
  const index = await readFolderJson(reader, name);
  if (index !== undefined) return joinShards(reader, { index, file: name, whole: `${stem}.safetensors` });
  const { tensors, read, readBytes } = await openShard(reader, `${stem}.safetensors`);
  return { tensors, read, readBytes };
}

async function joinShards(
  reader: FolderReader,
  listing: { index: unknown; file: string; whole: string },
): Promise<TensorFiles> {
  const source = { file: `${reader.name}/${listing.file}` };
  const map = (listing.index as { weight_map?: Record<string, string> } | null)?.weight_map;
  if (typeof map !== "object" || map === null)
    throw new ConfigError("Cannot read the index of weights: it has no weight_map.", source);
  if (!Object.values(map).includes(listing.whole) && (await reader.open(listing.whole)))
    throw new ConfigError(
      `Cannot read the weights: there is both an index of weights and a file ${listing.whole} that it does not name. Remove the one that is not the model.`,
      source,
    );
  checkRepeats((await readFolderText(reader, listing.file)) ?? "", source);
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
  checkOwners(shards, { map, source });
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

interface IndexCheck {
  readonly map: Readonly<Record<string, string>>;
  readonly source: { readonly file: string };
}

/** JSON.parse keeps the last of two entries of one name: @throws ConfigError for an index that has such. */
function checkRepeats(text: string, source: IndexCheck["source"]): void {
  const seen = new Set<string>();
  for (const name of listedNames(text)) {
    if (seen.has(name))
      throw new ConfigError(
        `Cannot read the index of weights: it names "${name}" twice. Fetch the file again.`,
        source,
      );
    seen.add(name);
  }
}

/** The names in weight_map, repeated ones too, in one walk over a text that is JSON. */
function* listedNames(text: string): Generator<string> {
  let [depth, topKey, lastText] = [0, "", ""];
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === '"') {
      const end = endOfText(text, i);
      lastText = text.slice(i, end + 1);
      i = end;
    } else if (character === "{") depth++;
    else if (character === "}") depth--;
    // Outside texts a colon follows a key.
    else if (character === ":" && depth === 1) topKey = JSON.parse(lastText);
    else if (character === ":" && depth === 2 && topKey === "weight_map") yield JSON.parse(lastText);
  }
}

/** Returns where the closing quote of the text that opens at `start` lies. */
function endOfText(text: string, start: number): number {
  let at = start + 1;
  while (text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
  return at;
}

/** @throws ConfigError for a tensor that the index does not list, or that lies in two files, which may differ. */
function checkOwners(shards: ReadonlyMap<string, SafetensorsFile>, { map, source }: IndexCheck): void {
  for (const [file, { tensors }] of shards)
    for (const name of tensors.keys()) {
      const owner = Object.hasOwn(map, name) ? map[name] : undefined;
      if (owner === file) continue;
      if (owner === undefined)
        throw new ConfigError(
          `Cannot read the weights: ${file} holds tensor ${name}, which the index does not list. Fetch the files again.`,
          source,
        );
      throw new ConfigError(`Cannot read tensor ${name}: it lies in two files (${owner}, ${file}).`, source);
    }
}

async function openShard(reader: FolderReader, file: string): Promise<SafetensorsFile> {
  const bytes = await reader.open(file);
  if (bytes) return openSafetensors(bytes);
  throw new ConfigError(`Cannot read the weights: there is no file ${file}. Fetch it, next to the others.`, {
    file: `${reader.name}/${file}`,
  });
}
