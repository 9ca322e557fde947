import type { Architecture } from "./architecture.ts";
import { decoderLayers } from "./decoder.ts";
import { readActivation, readAttentionBias, readHeadDim, readRope, writeRope } from "./parts.ts";

/** Llama 2 and 3, SmolLM2, and others in Llama's layout. */
export const llama: Architecture = {
  type: "llama",
  className: "LlamaForCausalLM",
  defaults: { rope_theta: 10_000 },
  layers: decoderLayers,
  gguf: {
    name: "llama",
    isInterleaved: true,
    keys: ({ has }) => ({ mlp_bias: has("blk.0.ffn_up.bias") }),
  },
  requires: { use_sliding_window: [false] },
  read(keys) {
    keys.perLayer("layer_types", ["full_attention"]);
    // The class has no window, and other loaders take one from here.
    if (keys.get("use_sliding_window") === undefined) keys.limit("sliding_window", [null]);
    return {
      headDim: readHeadDim(keys),
      qkNorm: false,
      ...readAttentionBias(keys),
      mlpBias: keys.flag("mlp_bias") || undefined,
      ...readActivation(keys, "hidden_act"),
      ...readRope(keys),
    };
  },
  write: (config) => ({
    ...writeRope(config),
    hidden_act: config.activation ?? "silu",
    attention_bias: config.qkvBias,
    mlp_bias: config.mlpBias ?? false,
  }),
};
