import type { Architecture } from "./architecture.ts";
import { decoderLayers } from "./decoder.ts";
import type { Keys } from "./keys.ts";
import {
  readActivation,
  readAttentionBias,
  readHeadDim,
  readLayerTypes,
  readRope,
  writeLayerTypes,
  writeRope,
} from "./parts.ts";

/** SmolLM3: Llama's layout, with every fourth layer without rotary positions. */
export const smollm3: Architecture = {
  type: "smollm3",
  className: "SmolLM3ForCausalLM",
  defaults: {
    rope_theta: 2_000_000,
    num_key_value_heads: 4,
    no_rope_layer_interval: 4,
    tie_word_embeddings: true,
    pad_token_id: 128_004,
    bos_token_id: 128_000,
    eos_token_id: 128_001,
  },
  layers: decoderLayers,
  requires: {},
  read(keys) {
    const layersWithoutRope = readLayersWithoutRope(keys);
    return {
      headDim: readHeadDim(keys),
      qkNorm: false,
      ...readAttentionBias(keys),
      mlpBias: keys.flag("mlp_bias") || undefined,
      layersWithoutRope,
      ...readLayerTypes(keys, {
        isUsed: keys.flag("use_sliding_window"),
        isSliding: (layer) => layersWithoutRope.includes(layer),
      }),
      ...readActivation(keys, "hidden_act"),
      ...readRope(keys),
    };
  },
  write: (config) => ({
    ...writeRope(config),
    hidden_act: config.activation ?? "silu",
    attention_bias: config.qkvBias,
    mlp_bias: config.mlpBias ?? false,
    no_rope_layers: Array.from({ length: config.layers }, (_, i) => (config.layersWithoutRope?.includes(i) ? 0 : 1)),
    use_sliding_window: config.slidingWindow !== undefined,
    ...writeLayerTypes(config),
  }),
};

/** `no_rope_layers` has 1 for a layer with rotary positions; without it every `no_rope_layer_interval`-th has none. */
function readLayersWithoutRope(keys: Keys): number[] {
  const flags = keys.perLayer("no_rope_layers", [0, 1]);
  const layers = Array.from({ length: keys.count("num_hidden_layers") }, (_, layer) => layer);
  if (flags) return layers.filter((layer) => flags[layer] === 0);
  const interval = keys.count("no_rope_layer_interval");
  return layers.filter((layer) => (layer + 1) % interval === 0);
}
