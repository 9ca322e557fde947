import type { Architecture } from "./architecture.ts";
import { decoderLayers } from "./decoder.ts";
import { readHeadDim } from "./parts.ts";
import { QWEN_DEFAULTS, readQwen, writeQwen } from "./qwen.ts";

/** Qwen2 and Qwen2.5: q, k and v always have a bias. */
export const qwen2: Architecture = {
  type: "qwen2",
  className: "Qwen2ForCausalLM",
  defaults: QWEN_DEFAULTS,
  layers: decoderLayers,
  gguf: { name: "qwen2" },
  requires: {},
  read: (keys) => ({ headDim: readHeadDim(keys), qkNorm: false, qkvBias: true, ...readQwen(keys) }),
  write: writeQwen,
};
