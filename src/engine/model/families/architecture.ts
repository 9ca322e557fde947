/** The form of a family of models: how its config.json becomes a shape, and the blocks of that shape. */
import type { Layer } from "../blocks/kinds.ts";
import type { ModelConfig } from "../config.ts";
import type { Keys, RawConfig } from "./keys.ts";

/** The fields of the shape that differ among families. */
export type Variant = Pick<ModelConfig, "headDim" | "qkNorm" | "qkvBias" | "ropeTheta"> & Partial<ModelConfig>;

/** A family of models, by `model_type` of config.json. */
export interface Architecture {
  /** `model_type` in config.json. */
  readonly type: string;
  /** The class in transformers, written to `architectures`. */
  readonly className: string;
  /** Its class with a scalar head. Default: that of the name with ForSequenceClassification in place of ForCausalLM. */
  readonly scoreClassName?: string;
  /** Values of absent keys, as in the family's configuration class of transformers; see also {@link COMMON_DEFAULTS}. */
  readonly defaults: RawConfig;
  /** Keys that the family's class reads and the forward pass here supports with these values alone. */
  readonly requires: Readonly<Record<string, readonly unknown[]>>;
  /** The family's part of the shape. @throws ConfigError, UnsupportedError naming the file and the key. */
  read(keys: Keys): Variant;
  /** The inverse of `read`: keys of config.json beside those that all families have. */
  write(config: ModelConfig): RawConfig;
  /** The blocks of each layer: all that the passes, the cache, adapters, plans and files know of the family. */
  layers(config: ModelConfig): readonly Layer[];
  /** The family in llama.cpp, where it is written and read there. */
  readonly gguf?: GgufFamily | undefined;
}

/** How llama.cpp holds a family. */
export interface GgufFamily {
  /** `general.architecture`. */
  readonly name: string;
  /** Whether it rotates neighbouring channels, where transformers rotates the halves of a head: rows of q and k are interleaved. */
  readonly isInterleaved?: boolean | undefined;
  /** Keys of config.json beside the common ones, from a file's metadata and tensors. */
  keys?(file: GgufFacts): RawConfig;
  /** Names the part of a shape that the family there does not compute, beyond the common checks; undefined for none. */
  unsupported?(config: ModelConfig): string | undefined;
}

/** Facts of a GGUF file about its model. */
export interface GgufFacts {
  /** A number under the family's prefix. @throws ConfigError naming the file where it is absent */
  needed(key: string): number;
  has(tensor: string): boolean;
  readonly width: number;
  readonly heads: number;
  readonly headDim: number;
}

/** Defaults that all families of transformers share. */
export const COMMON_DEFAULTS: RawConfig = { rms_norm_eps: 1e-6, hidden_act: "silu", tie_word_embeddings: false };

/**
 * Values that every family requires: the forward pass has nothing else. Some are keys of other families, with which a file
 * names another computation than its `model_type` has.
 */
export const COMMON_REQUIREMENTS = {
  attn_logit_softcapping: [null],
  final_logit_softcapping: [null],
  logit_scale: [1],
  logits_scaling: [1],
  embedding_multiplier: [1],
  residual_multiplier: [1],
  attention_multiplier: [null],
  attention_chunk_size: [null],
  is_causal: [true],
  use_bidirectional_attention: [false],
  partial_rotary_factor: [1],
  quantization_config: [null],
  attention_dropout: [0],
} as const;
