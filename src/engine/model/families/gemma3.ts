import type { ModelConfig } from "../config.ts";
import type { Architecture, GgufFacts } from "./architecture.ts";
import { decoderLayers } from "./decoder.ts";
import type { RawConfig } from "./keys.ts";
import { readActivation, readAttentionBias, readLayerTypes, readRope, writeLayerTypes, writeRope } from "./parts.ts";

/**
 * Gemma 3's text models: norms with 1 + weight, four a layer and one over each head of q and k, tanh-GELU, embeddings
 * times sqrt(C), five layers of six with a window and rotary frequencies of their own.
 *
 * transformers rounds sqrt(C) to the weights' type: for bfloat16 models to 25.25 where C is 640. Activations here are
 * float32, as in a model that transformers loads in float32, and the factor is not rounded.
 */
export const gemma3: Architecture = {
  type: "gemma3_text",
  className: "Gemma3ForCausalLM",
  scoreClassName: "Gemma3TextForSequenceClassification",
  defaults: {
    num_key_value_heads: 4,
    head_dim: 256,
    hidden_activation: "gelu_pytorch_tanh",
    max_position_embeddings: 131_072,
    tie_word_embeddings: true,
    query_pre_attn_scalar: 256,
    sliding_window: 4096,
    sliding_window_pattern: 6,
    rope_theta: 1_000_000,
    rope_local_base_freq: 10_000,
    pad_token_id: 0,
    eos_token_id: 1,
    bos_token_id: 2,
  },
  layers: decoderLayers,
  gguf: { name: "gemma3", keys: ggufKeys, unsupported: ggufUnsupported },
  requires: {},
  read(keys) {
    const pattern = keys.count("sliding_window_pattern");
    return {
      headDim: keys.positive("head_dim"),
      qkNorm: true,
      ...readAttentionBias(keys),
      unitOffsetNorms: true,
      outputNorms: true,
      embeddingScale: Math.sqrt(keys.count("hidden_size")),
      queryPreAttnScalar: keys.positive("query_pre_attn_scalar"),
      ...readLayerTypes(keys, { isSliding: (layer) => (layer + 1) % pattern !== 0 }),
      ...readActivation(keys, "hidden_activation"),
      ...readRope(keys),
    };
  },
  write: (config) => ({
    ...writeRope(config),
    hidden_activation: config.activation ?? "silu",
    attention_bias: config.qkvBias,
    query_pre_attn_scalar: config.queryPreAttnScalar,
    ...writeLayerTypes(config),
    // Without `layer_types` the family's class makes five layers of six slide.
    layer_types: config.layerTypes ?? Array.from({ length: config.layers }, () => "full_attention"),
    sliding_window: config.slidingWindow ?? config.contextLength,
  }),
};

/** Layers of the 27B model, which divides q by the root of its own number. */
const LARGEST = 62;

/** Returns the keys that llama.cpp takes from the family's name. */
function ggufKeys({ needed, width, heads, headDim }: GgufFacts): RawConfig {
  return {
    query_pre_attn_scalar: needed("block_count") === LARGEST ? width / heads : headDim,
    sliding_window: needed("attention.sliding_window"),
    sliding_window_pattern: 6,
    rope_local_base_freq: 10_000,
    hidden_activation: "gelu_pytorch_tanh",
  };
}

function ggufUnsupported({
  layerTypes,
  slidingRopeTheta,
  queryPreAttnScalar,
  headDim,
}: ModelConfig): string | undefined {
  const isPublished = (type: string, i: number) => (type === "sliding_attention") === ((i + 1) % 6 !== 0);
  if (!(layerTypes ?? []).every(isPublished)) return "layers that slide in another order than five of six";
  if (slidingRopeTheta !== 10_000) return `sliding layers with a theta of ${slidingRopeTheta}`;
  if (queryPreAttnScalar === headDim) return undefined;
  return `query_pre_attn_scalar ${queryPreAttnScalar} with heads of ${headDim}`;
}
