import type { Architecture } from "./architecture.ts";
import { decoderLayers } from "./decoder.ts";
import { readAttentionBias } from "./parts.ts";
import { QWEN_DEFAULTS, readQwen, writeQwen } from "./qwen.ts";

/** Qwen3, dense: a norm over each head of q and k, and heads of 128 whatever the hidden size. */
export const qwen3: Architecture = {
  type: "qwen3",
  className: "Qwen3ForCausalLM",
  defaults: { ...QWEN_DEFAULTS, head_dim: 128 },
  layers: decoderLayers,
  gguf: { name: "qwen3" },
  requires: {},
  read: (keys) => ({
    headDim: keys.positive("head_dim"),
    qkNorm: true,
    ...readAttentionBias(keys),
    ...readQwen(keys),
  }),
  write: (config) => ({ ...writeQwen(config), attention_bias: config.qkvBias }),
};
