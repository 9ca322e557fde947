/** A model's layers, as its family lists them, and the tensors that they and the ends of the model have. */
import type { BlockTensor } from "./blocks/block.ts";
import { type Block, blockKind, type Layer } from "./blocks/kinds.ts";
import type { ModelConfig } from "./config.ts";
import { ARCHITECTURES } from "./families/architectures.ts";
import { decoderLayers } from "./families/decoder.ts";
import { EMBEDDING, FINAL_NORM, SCORE, UNEMBED } from "./weights.ts";

/** The layers of a shape: those of its family, or for a shape without one attention and a gated MLP. */
export function layersOf(config: ModelConfig): readonly Layer[] {
  return (ARCHITECTURES.get(config.architecture)?.layers ?? decoderLayers)(config);
}

/** The blocks of all layers, in the order of the forward pass. */
export function blocksOf(config: ModelConfig): Block[] {
  return layersOf(config).flatMap(({ blocks }) => blocks);
}

/** A tensor of a model folder. The ends of the model are the embedding table, the final norm and the output matrix. */
export interface ModelTensor extends Omit<BlockTensor, "role" | "gguf"> {
  /** `vocabulary`: a row for each token; `score`: a scalar head. */
  readonly role: BlockTensor["role"] | "vocabulary" | "score";
  /** llama.cpp's name; undefined for a scalar head, which it does not have. */
  readonly gguf: string | undefined;
}

/** Every tensor of a model folder, in its order. */
export function tensorsOf(config: ModelConfig): ModelTensor[] {
  const { hiddenSize: C, vocabSize: V, scoreHead, tied } = config;
  const table = { shape: [V, C], role: "vocabulary" } as const;
  return [
    { ...table, name: EMBEDDING, gguf: "token_embd.weight" },
    ...blocksOf(config).flatMap((block) => blockKind(block).weights(block, C).map(inLayer(block))),
    { name: FINAL_NORM, shape: [C], role: "norm", gguf: "output_norm.weight" },
    ...(scoreHead ? [{ name: SCORE, shape: [1, C], role: "score", gguf: undefined } as const] : []),
    ...(scoreHead || tied ? [] : [{ ...table, name: UNEMBED, gguf: "output.weight" }]),
  ];
}

/** `blk.0.attn_q.weight`: llama.cpp has the last part of the name too. */
function inLayer({ layer }: Block): (tensor: BlockTensor) => ModelTensor {
  return (tensor) => ({ ...tensor, gguf: `blk.${layer}.${tensor.gguf}.${tensor.name.split(".").at(-1)}` });
}

/** Name and shape of every weight in the model's safetensors; matrices are [out, in]. */
export function weightShapes(config: ModelConfig): Map<string, readonly number[]> {
  return new Map(tensorsOf(config).map(({ name, shape }) => [name, shape]));
}

/** Number of weights; a tied output matrix counts once. */
export function parameterCount(config: ModelConfig): number {
  let sum = 0;
  for (const { shape } of tensorsOf(config)) sum += shape.reduce((product, size) => product * size, 1);
  return sum;
}
