/**
 * The shape of a LoRA adapter: W + (alpha / rank) B A for chosen matrices, A [rank, in], B [out, rank].
 * @see https://arxiv.org/abs/2106.09685
 */

import { ATTENTION_TARGETS } from "./blocks/attention.ts";
import { MLP_TARGETS } from "./blocks/gated_mlp.ts";

export { ATTENTION_TARGETS, MLP_TARGETS };

/** The rank, the scale and the matrices of an adapter. */
export interface LoraConfig {
  readonly rank: number;
  readonly alpha: number;
  /** Last parts of the module names: {@link ATTENTION_TARGETS}, {@link MLP_TARGETS}, {@link UNEMBED_TARGET}. */
  readonly targets: readonly string[];
  /** Restricts the targets to these modules (`model.layers.0.self_attn.q_proj`). Default: all of them. */
  readonly modules?: { has(module: string): boolean };
  /** True where a scalar head trains with the adapter and is saved with it (PEFT's `modules_to_save: ["score"]`). */
  readonly scoreHead?: boolean | undefined;
}

/** The output matrix. A model that ties it to the embedding table has no such module. */
export const UNEMBED_TARGET = "lm_head";

/** Every matrix of every layer, scaled as Tinker's service scales it. */
export const LORA_DEFAULTS = {
  rank: 32,
  alpha: 32,
  targets: [...ATTENTION_TARGETS, ...MLP_TARGETS],
} as const satisfies LoraConfig;

/** A {@link LoraConfig}; {@link LORA_DEFAULTS} for what is absent. */
export type LoraOptions = Partial<LoraConfig>;

/** Fills in {@link LORA_DEFAULTS} for what is absent. */
export function loraConfig(options: LoraOptions): LoraConfig {
  return { ...LORA_DEFAULTS, ...options };
}

/** The targets in the named parts of a model. */
export function loraTargets(parts: { attn: boolean; mlp: boolean; unembed: boolean }): string[] {
  return [
    ...(parts.attn ? ATTENTION_TARGETS : []),
    ...(parts.mlp ? MLP_TARGETS : []),
    ...(parts.unembed ? [UNEMBED_TARGET] : []),
  ];
}

/** `model.layers.0.self_attn.q_proj` for `model.layers.0.self_attn.q_proj.weight`. */
export function moduleOf(tensor: string): string {
  return tensor.replace(/\.weight$/, "");
}

/** `rank 8, alpha 16 on q_proj, v_proj`. */
export function describeLora({ rank, alpha, targets, scoreHead }: LoraConfig): string {
  return `rank ${rank}, alpha ${alpha} on ${[...targets].sort().join(", ")}${scoreHead ? ", with a scalar head" : ""}`;
}
