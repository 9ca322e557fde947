/** The shape of a decoder: the facts that a forward pass needs, its weights and its rotary frequencies. */
import { ConfigError } from "../../errors.ts";

/** Llama 3.1's stretch of the rotary frequencies for long contexts. */
export interface Llama3Scaling {
  readonly factor: number;
  readonly lowFreqFactor: number;
  readonly highFreqFactor: number;
  readonly originalContextLength: number;
}

/** Shape of a decoder-only transformer: RMSNorm, rotary positions (half-rotation), grouped-query attention, SwiGLU. */
export interface ModelConfig {
  readonly architecture: "llama" | "qwen2" | "qwen3";
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
  readonly ropeTheta: number;
  readonly ropeScaling?: Llama3Scaling | undefined;
  /** True where the output matrix is the embedding table. */
  readonly tied: boolean;
  /** True where each head of q and k has an RMSNorm (Qwen3). */
  readonly qkNorm: boolean;
  /** True where q, k and v have a bias (Qwen2). */
  readonly qkvBias: boolean;
  readonly bosTokenId?: number | undefined;
  readonly padTokenId?: number | undefined;
  readonly eosTokenIds: readonly number[];
}

/** Checks the rules between the fields. @throws ConfigError naming the field. */
export function checkConfig(config: ModelConfig, file?: string): void {
  const fail = (rule: string, path: string) => new ConfigError(`Cannot build the model: ${rule}.`, { path, file });
  const { heads, kvHeads, headDim, vocabSize } = config;
  if (heads % kvHeads !== 0)
    throw fail(`heads must be a multiple of key-value heads (${heads} and ${kvHeads})`, "num_key_value_heads");
  if (!Number.isInteger(headDim) || headDim % 2 !== 0)
    throw fail(`the head width must be even (${headDim})`, "head_dim");
  for (const id of config.eosTokenIds)
    if (id >= vocabSize) throw fail(`an end token is outside the vocabulary (${id})`, "eos_token_id");
}

/** Name and shape of every weight in the model's safetensors; matrices are [out, in]. */
export function weightShapes(config: ModelConfig): Map<string, readonly number[]> {
  const { hiddenSize: C, vocabSize: V } = config;
  const shapes = new Map<string, readonly number[]>([["model.embed_tokens.weight", [V, C]]]);
  const layer = layerShapes(config);
  for (let i = 0; i < config.layers; i++)
    for (const [name, shape] of layer) shapes.set(`model.layers.${i}.${name}`, shape);
  shapes.set("model.norm.weight", [C]);
  if (!config.tied) shapes.set("lm_head.weight", [V, C]);
  return shapes;
}

function layerShapes(config: ModelConfig): (readonly [name: string, shape: readonly number[]])[] {
  const { hiddenSize: C, intermediateSize: F, headDim: D } = config;
  const [Q, KV] = [config.heads * D, config.kvHeads * D];
  const biases = [
    ["self_attn.q_proj.bias", [Q]],
    ["self_attn.k_proj.bias", [KV]],
    ["self_attn.v_proj.bias", [KV]],
  ] as const;
  const norms = [
    ["self_attn.q_norm.weight", [D]],
    ["self_attn.k_norm.weight", [D]],
  ] as const;
  return [
    ["input_layernorm.weight", [C]],
    ["self_attn.q_proj.weight", [Q, C]],
    ["self_attn.k_proj.weight", [KV, C]],
    ["self_attn.v_proj.weight", [KV, C]],
    ...(config.qkvBias ? biases : []),
    ...(config.qkNorm ? norms : []),
    ["self_attn.o_proj.weight", [C, Q]],
    ["post_attention_layernorm.weight", [C]],
    ["mlp.gate_proj.weight", [F, C]],
    ["mlp.up_proj.weight", [F, C]],
    ["mlp.down_proj.weight", [C, F]],
  ];
}

/** Number of weights; a tied output matrix counts once. */
export function parameterCount(config: ModelConfig): number {
  let sum = 0;
  for (const shape of weightShapes(config).values()) sum += shape.reduce((product, size) => product * size, 1);
  return sum;
}

/**
 * Rotation per position of each pair of channels, [headDim / 2]: theta^(-2i / headDim), stretched by `ropeScaling`.
 * @see https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
 */
export function ropeFrequencies(config: Pick<ModelConfig, "headDim" | "ropeTheta" | "ropeScaling">): Float64Array {
  const { headDim, ropeTheta, ropeScaling: scaling } = config;
  return Float64Array.from({ length: headDim / 2 }, (_, i) => {
    const frequency = ropeTheta ** ((-2 * i) / headDim);
    if (!scaling) return frequency;
    const turns = (scaling.originalContextLength * frequency) / (2 * Math.PI);
    const { lowFreqFactor: low, highFreqFactor: high, factor } = scaling;
    if (turns < low) return frequency / factor;
    if (turns > high) return frequency;
    const smooth = (turns - low) / (high - low);
    return ((1 - smooth) / factor + smooth) * frequency;
  });
}
