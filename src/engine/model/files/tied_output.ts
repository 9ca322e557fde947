/** Whether the output matrix is the embedding table: what config.json says, against what the files hold. */
import type { ModelConfig } from "../config.ts";
import type { TensorInfo } from "./safetensors.ts";
import type { TensorFiles } from "./tensor_files.ts";

const EMBEDDING = "model.embed_tokens.weight";
const HEAD = "lm_head.weight";
/** Elements that are compared at a time. */
const PIECE_ELEMENTS = 2 ** 22;

interface ConfiguredTensors {
  readonly config: ModelConfig;
  readonly files: TensorFiles;
}

/**
 * The configuration and the tensors of a model with `tie_word_embeddings`. With both matrices in the files it is tied
 * only where they are equal; with the output matrix alone, that is the table.
 * @see transformers 5, `PreTrainedModel.tie_weights`
 */
export async function resolveTiedOutput(config: ModelConfig, files: TensorFiles): Promise<ConfiguredTensors> {
  const [table, head] = [files.tensors.get(EMBEDDING), files.tensors.get(HEAD)];
  if (!config.tied || config.scoreHead || !head) return { config, files };
  if (!table) return { config, files: withTable(files, head) };
  return (await areEqual(files, { table, head })) ? { config, files } : { config: { ...config, tied: false }, files };
}

/** The output matrix under the name of the embedding table. */
function withTable(files: TensorFiles, head: TensorInfo): TensorFiles {
  const tensors = new Map(files.tensors);
  tensors.delete(HEAD);
  tensors.set(EMBEDDING, { ...head, name: EMBEDDING });
  const sourceOf = (name: string) => (name === EMBEDDING ? HEAD : name);
  return {
    tensors,
    read: (name, range) => files.read(sourceOf(name), range),
    readBytes: (name, range) => files.readBytes(sourceOf(name), range),
  };
}

async function areEqual(files: TensorFiles, { table, head }: Record<"table" | "head", TensorInfo>): Promise<boolean> {
  if (`${table.shape}` !== `${head.shape}`) return false;
  const size = table.shape.reduce((product, each) => product * each, 1);
  const read = table.dtype === head.dtype ? files.readBytes : files.read;
  for (let start = 0; start < size; start += PIECE_ELEMENTS) {
    const range = { start, length: Math.min(PIECE_ELEMENTS, size - start) };
    const [embedding, other] = [await read(EMBEDDING, range), await read(HEAD, range)];
    if (!embedding.every((value, i) => value === other[i])) return false;
  }
  return true;
}
