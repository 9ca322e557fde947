/** The shape of a decoder: the facts that a forward pass needs, and its weights. The families that have it: architectures/. */
import { ConfigError } from "../../leaves/errors.ts";
import { MAX_HEAD_WIDTH } from "./kernels/head_width.ts";
import type { Rope } from "./rope.ts";

/**
 * Kinds of a layer's attention: to the whole sequence up to a token, or to the last `slidingWindow` tokens. Names of
 * config.json.
 */
export type LayerType = "full_attention" | "sliding_attention";

/** The function of the gate in the MLP, by its name in config.json. */
export type Activation = "silu" | "gelu_pytorch_tanh";

/**
 * Shape of a decoder-only transformer: RMSNorm, rotary positions (half-rotation), grouped-query attention, a gated MLP.
 * An optional field that is absent is the plain case, so that the fingerprints of models without it stay the same.
 */
export interface ModelConfig extends Rope {
  /** `model_type` in config.json. */
  readonly architecture: string;
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  /** Width of one head; not always hiddenSize / heads. */
  readonly headDim: number;
  /** Longest sequence, in tokens. */
  readonly contextLength: number;
  readonly rmsNormEps: number;
  /** True where the output matrix is the embedding table. */
  readonly tied: boolean;
  /** True where each head of q and k has an RMSNorm (Qwen3, Gemma 3). */
  readonly qkNorm: boolean;
  /** True where q, k and v have a bias (Qwen2). */
  readonly qkvBias: boolean;
  /** True where the output projection of attention has a bias (`attention_bias` of Llama). */
  readonly outputBias?: boolean | undefined;
  /** True where the MLP's projections have biases. */
  readonly mlpBias?: boolean | undefined;
  /** Default "silu". */
  readonly activation?: Activation | undefined;
  /** True where norms multiply by 1 + weight (Gemma). */
  readonly unitOffsetNorms?: boolean | undefined;
  /** True where what attention and the MLP add to the residual stream is normalised first (Gemma): four norms a layer. */
  readonly outputNorms?: boolean | undefined;
  /** Factor of the embeddings. Default 1. */
  readonly embeddingScale?: number | undefined;
  /** Attention divides q k by its square root. Default headDim. */
  readonly queryPreAttnScalar?: number | undefined;
  /** Tokens that a sliding layer attends to, the token itself included. */
  readonly slidingWindow?: number | undefined;
  /** One a layer. Default: all attend to the whole sequence. */
  readonly layerTypes?: readonly LayerType[] | undefined;
  /** Theta of the sliding layers, whose frequencies are not stretched. Default: as the other layers. */
  readonly slidingRopeTheta?: number | undefined;
  /** Layers whose q and k are not rotated (SmolLM3). */
  readonly layersWithoutRope?: readonly number[] | undefined;
  /** True where a scalar head (`score.weight`) is in place of the output matrix: transformers' ForSequenceClassification. */
  readonly scoreHead?: boolean | undefined;
  readonly bosTokenId?: number | undefined;
  readonly padTokenId?: number | undefined;
  readonly eosTokenIds: readonly number[];
}

/** Checks the rules between the fields. @throws ConfigError naming the field. */
export function checkConfig(config: ModelConfig, file?: string): void {
  const fail = (rule: string, path: string) => new ConfigError(`Cannot build the model: ${rule}.`, { path, file });
  const { heads, kvHeads, headDim, vocabSize, hiddenSize, intermediateSize } = config;
  if (heads % kvHeads !== 0)
    throw fail(`heads must be a multiple of key-value heads (${heads} and ${kvHeads})`, "num_key_value_heads");
  if (!Number.isInteger(headDim) || headDim % 2 !== 0)
    throw fail(`the head width must be even (${headDim})`, "head_dim");
  if (headDim % 4 !== 0 || headDim > MAX_HEAD_WIDTH)
    throw fail(`the head width must be a multiple of 4 up to ${MAX_HEAD_WIDTH} (${headDim})`, "head_dim");
  if (hiddenSize % 4 !== 0) throw fail(`the hidden size must be a multiple of 4 (${hiddenSize})`, "hidden_size");
  if (intermediateSize % 4 !== 0)
    throw fail(`the width of the MLP must be a multiple of 4 (${intermediateSize})`, "intermediate_size");
  for (const id of config.eosTokenIds)
    if (id >= vocabSize) throw fail(`an end token is outside the vocabulary (${id})`, "eos_token_id");
  if (config.layerTypes?.includes("sliding_attention") && config.slidingWindow === undefined)
    throw fail("layers with sliding attention need the width of the window", "sliding_window");
}

/** Tokens that a layer's attention sees, the token itself included; Infinity for the whole sequence. */
export function windowOf({ layerTypes, slidingWindow }: ModelConfig, layer: number): number {
  return layerTypes?.[layer] === "sliding_attention" ? slidingWindow! : Number.POSITIVE_INFINITY;
}

/** Rotary positions of a layer; undefined where it has none. */
export function ropeOf(config: ModelConfig, layer: number): Rope | undefined {
  const { layerTypes, slidingRopeTheta, ropeTheta, ropeScaling } = config;
  if (config.layersWithoutRope?.includes(layer)) return undefined;
  const isLocal = layerTypes?.[layer] === "sliding_attention" && slidingRopeTheta !== undefined;
  return isLocal ? { ropeTheta: slidingRopeTheta } : { ropeTheta, ropeScaling };
}
