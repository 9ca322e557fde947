/**
 * A GGUF file as a folder in Hugging Face's layout, so that whatever opens a folder opens the file: config.json and the tokenizer's
 * files are made when the file is opened, and model.safetensors is decoded range by range as it is read.
 */
import { ConfigError } from "../../../../leaves/errors.ts";
import type { ModelConfig } from "../../config.ts";
import { encodeBf16 } from "../../dtype.ts";
import { tensorsOf } from "../../layers.ts";
import { parseModelConfig } from "../config_json.ts";
import type { ByteReader, FolderReader } from "../reader.ts";
import { configJson, endTokenIds, type GgufModel, isInterleaved, tokenId } from "./config.ts";
import { type MetadataValue, parseGguf, type StoredTensor } from "./parse.ts";
import { decodedRows, type HubTensor, hubTensor, type TensorReading } from "./tensors.ts";
import { isQuantized } from "./types.ts";
import { tokenizerFiles } from "./vocabulary.ts";

/** Types that a model's weights are converted to. */
export interface GgufOptions {
  /** Type of quantised matrices, which hold more than bfloat16 does. Default bfloat16, for its memory; float32 is exact. */
  readonly dtype?: "bfloat16" | "float32" | undefined;
}

/**
 * @param files the file, or its shards in order
 * @param name path of the file, or of the folder that holds it, for messages
 * @throws ConfigError or UnsupportedError that names the file
 */
export async function ggufFolder(
  files: readonly ByteReader[],
  { name, dtype = "bfloat16" }: { name: string } & GgufOptions,
): Promise<FolderReader> {
  const shards = await Promise.all(files.map(parseGguf));
  const metadata = shards[0]!.metadata;
  const tensors = joined(shards.map((shard) => shard.tensors));
  checkShards(metadata, { count: files.length, tensors: tensors.size, file: name });
  const model: GgufModel = { file: files[0]!.name, metadata, tensors };
  const texts = await textFiles(model, dtype);
  const config = parseModelConfig(texts.config, files[0]!.name);
  const weights = safetensors(model, { config, dtype, name: `${files[0]!.name} as safetensors` });
  return {
    name,
    async open(file) {
      if (file === "model.safetensors") return weights;
      const bytes = texts.files.get(file);
      if (!bytes) return undefined;
      return {
        name: `${name}/${file}`,
        size: bytes.length,
        read: async (offset, length) => bytes.subarray(offset, offset + length),
      };
    },
  };
}

/** @throws ConfigError for a tensor that two shards hold */
function joined(shards: readonly (readonly StoredTensor[])[]): Map<string, StoredTensor> {
  const tensors = new Map<string, StoredTensor>();
  for (const tensor of shards.flat()) {
    if (tensors.has(tensor.name))
      throw new ConfigError(`Cannot read the GGUF file: tensor ${tensor.name} lies in two shards.`, {
        file: tensor.reader.name,
      });
    tensors.set(tensor.name, tensor);
  }
  return tensors;
}

/** @throws ConfigError where a shard is missing */
function checkShards(
  metadata: ReadonlyMap<string, MetadataValue>,
  source: { count: number; tensors: number; file: string },
): void {
  const count = metadata.get("split.count") ?? 1;
  const tensors = metadata.get("split.tensors.count") ?? source.tensors;
  if (Number(count) === source.count && Number(tensors) === source.tensors) return;
  throw new ConfigError(
    `Cannot read the GGUF file: it has ${count} shards with ${tensors} tensors, and ${source.count} with ${source.tensors} are here. Put all shards into one folder, and name the first.`,
    { file: source.file },
  );
}

async function textFiles(
  model: GgufModel,
  dtype: "bfloat16" | "float32",
): Promise<{ config: object; files: ReadonlyMap<string, Uint8Array> }> {
  const { metadata, tensors } = model;
  const factors = tensors.get("rope_freqs.weight");
  const ropeFactors = factors && (await decodedRows(factors, { first: 0, count: 1 }));
  const ends = endTokenIds(metadata);
  const [bos, pad] = [tokenId(metadata, "bos"), tokenId(metadata, "padding")];
  const generation = {
    ...(bos !== undefined && { bos_token_id: bos }),
    ...(ends.length > 0 && { eos_token_id: ends }),
    ...(pad !== undefined && { pad_token_id: pad }),
  };
  const tokenizer = tokenizerFiles(model);
  const config = configJson(model, { dtype: storedDtype(model, dtype), ropeFactors });
  const json: Record<string, unknown> = {
    "config.json": config,
    "generation_config.json": generation,
    ...(tokenizer && { "tokenizer.json": tokenizer.tokenizer, "tokenizer_config.json": tokenizer.config }),
  };
  const encoder = new TextEncoder();
  const encoded = Object.entries(json).map(
    ([file, value]) => [file, encoder.encode(JSON.stringify(value, null, 2))] as const,
  );
  return { config, files: new Map(encoded) };
}

/** float32 where a matrix is, as transformers would load the whole. */
function storedDtype({ tensors }: GgufModel, dtype: "bfloat16" | "float32"): "bfloat16" | "float32" {
  const matrices = [...tensors.values()].filter(({ shape }) => shape.length > 1);
  const isBfloat16 = matrices.every(({ type }) => type === "BF16" || (isQuantized(type) && dtype === "bfloat16"));
  return isBfloat16 ? "bfloat16" : "float32";
}

/** A tensor's place in the file that does not exist. */
interface Place extends HubTensor {
  readonly begin: number;
  readonly end: number;
}

function safetensors(
  model: GgufModel,
  { config, dtype, name }: { config: ModelConfig; dtype: "bfloat16" | "float32"; name: string },
): ByteReader {
  const reading: TensorReading = {
    named: new Map(tensorsOf(config).map((tensor) => [tensor.gguf ?? "", tensor])),
    isInterleaved: isInterleaved(model),
    hasUnitOffsetNorms: config.unitOffsetNorms ?? false,
    dtype,
  };
  const found = [...model.tensors.values()].flatMap((tensor) => hubTensor(tensor, reading) ?? []);
  let end = 0;
  const places: Place[] = found.map((tensor) => {
    const begin = end;
    end += tensor.width * tensor.shape.reduce((product, size) => product * size, 1);
    return { ...tensor, begin, end };
  });
  const entries = places.map((place) => [
    place.name,
    { dtype: place.dtype, shape: place.shape, data_offsets: [place.begin, place.end] },
  ]);
  const header = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  const prefix = new Uint8Array(8 + header.length);
  new DataView(prefix.buffer).setBigUint64(0, BigInt(header.length), true);
  prefix.set(header, 8);
  return {
    name,
    size: prefix.length + end,
    async read(offset, length) {
      const out = new Uint8Array(length);
      out.set(prefix.subarray(offset, offset + length));
      const [from, to] = [offset - prefix.length, offset + length - prefix.length];
      for (const place of places) {
        const [first, last] = [Math.max(from, place.begin), Math.min(to, place.end)];
        if (first < last) out.set(await bytesOf(place, { from: first, to: last }), first - from);
      }
      return out;
    },
  };
}

/** Bytes of the file from one of a tensor's to another: whole rows are decoded, and cut. */
async function bytesOf(place: Place, { from, to }: { from: number; to: number }): Promise<Uint8Array> {
  const rowBytes = place.shape.at(-1)! * place.width;
  const first = Math.floor((from - place.begin) / rowBytes);
  const count = Math.ceil((to - place.begin) / rowBytes) - first;
  const bytes = encoded(await place.rows({ first, count }), place.dtype);
  const skip = from - place.begin - first * rowBytes;
  return bytes.subarray(skip, skip + to - from);
}

function encoded(values: Float32Array | Uint8Array, dtype: HubTensor["dtype"]): Uint8Array {
  if (values instanceof Uint8Array) return values;
  const { buffer, byteOffset, byteLength } = dtype === "BF16" ? encodeBf16(values) : values;
  return new Uint8Array(buffer, byteOffset, byteLength);
}
