import type { Architecture } from "./architecture.ts";
import { decoderLayers } from "./decoder.ts";
import { readActivation, readHeadDim, readLayerTypes, readRope, writeRope } from "./parts.ts";

/** Mistral 7B and its kin: Llama's layout, in the first version with a window in every layer. */
export const mistral: Architecture = {
  type: "mistral",
  className: "MistralForCausalLM",
  defaults: { rope_theta: 10_000, sliding_window: 4096 },
  layers: decoderLayers,
  gguf: { name: "llama", isInterleaved: true },
  requires: { layer_types: [null] },
  read: (keys) => ({
    headDim: readHeadDim(keys),
    qkNorm: false,
    qkvBias: false,
    ...readLayerTypes(keys, { isSliding: () => true }),
    ...readActivation(keys, "hidden_act"),
    ...readRope(keys),
  }),
  write: (config) => ({
    ...writeRope(config),
    hidden_act: config.activation ?? "silu",
    sliding_window: config.slidingWindow ?? null,
  }),
};
