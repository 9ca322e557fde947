/** A file's description of a family of models: how its config.json becomes the shape of a model. */
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
