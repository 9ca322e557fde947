/** Weights as safetensors files: one, or several with an index, as transformers writes and reads them. */

import type { FileSource } from "./file_source.ts";
import { byteLengthOf, encodeSafetensors, type SafetensorsOptions, type TensorSource } from "./safetensors_write.ts";

/** Bytes of tensors in one file, as in transformers. */
export const MAX_SHARD_BYTES = 5e9;

export interface ShardOptions extends SafetensorsOptions {
  /** Default {@link MAX_SHARD_BYTES}. A larger tensor has a file of its own. */
  readonly maxShardBytes?: number | undefined;
}

/** The files of a model's weights, to be written in order: each tensor's data are asked for when its turn comes. */
export function weightFiles(tensors: readonly TensorSource[], options: ShardOptions): FileSource[] {
  const shards = cut(tensors, options);
  if (shards.length === 1) return [{ name: "model.safetensors", content: encodeSafetensors(tensors, options) }];
  const digits = (count: number) => String(count).padStart(5, "0");
  const nameOf = (i: number) => `model-${digits(i + 1)}-of-${digits(shards.length)}.safetensors`;
  const total = tensors.reduce((sum, tensor) => sum + byteLengthOf(tensor, options), 0);
  const map = shards.flatMap((shard, i) => shard.map(({ name }) => [name, nameOf(i)] as const));
  const index = { metadata: { total_size: total }, weight_map: Object.fromEntries(map) };
  return [
    ...shards.map((shard, i) => ({ name: nameOf(i), content: encodeSafetensors(shard, options) })),
    { name: "model.safetensors.index.json", content: `${JSON.stringify(index, null, 2)}\n` },
  ];
}

/** Names of weight files that a folder may hold from earlier. */
export const WEIGHT_FILE = /^model(-\d+-of-\d+)?\.safetensors(\.index\.json)?$/;

function cut(tensors: readonly TensorSource[], options: ShardOptions): TensorSource[][] {
  const { maxShardBytes = MAX_SHARD_BYTES } = options;
  const shards: TensorSource[][] = [[]];
  let bytes = 0;
  for (const tensor of tensors) {
    const size = byteLengthOf(tensor, options);
    if (bytes > 0 && bytes + size > maxShardBytes) {
      shards.push([]);
      bytes = 0;
    }
    shards.at(-1)!.push(tensor);
    bytes += size;
  }
  return shards;
}
