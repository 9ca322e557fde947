/** A model's `config.json` as Hugging Face writes it, read into the few facts that a forward pass needs, and back. */
import { ConfigError, UnsupportedError } from "../../errors.ts";

/** Rotary frequencies stretched for long contexts, as Llama 3.1 and later do. */
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
  /** Width of one head; need not be hiddenSize / heads. */
  readonly headDim: number;
  /** Longest sequence. */
  readonly contextLength: number;
  readonly rmsNormEps: number;
  readonly ropeTheta: number;
  readonly ropeScaling?: Llama3Scaling;
  /** The output matrix is the embedding table. */
  readonly tied: boolean;
  /** RMSNorm over each head of q and k (Qwen3). */
  readonly qkNorm: boolean;
  /** q, k and v have a bias (Qwen2). */
  readonly qkvBias: boolean;
  readonly bosTokenId?: number | undefined;
  readonly padTokenId?: number | undefined;
  readonly eosTokenIds: readonly number[];
}

const ARCHITECTURES = {
  llama: "LlamaForCausalLM",
  qwen2: "Qwen2ForCausalLM",
  qwen3: "Qwen3ForCausalLM",
} as const;

/** Settings that must have one of these values (or be absent) for the forward pass here to be the model's. */
const REQUIRED: Readonly<Record<string, readonly unknown[]>> = {
  hidden_act: ["silu", "swish"],
  attention_bias: [false],
  mlp_bias: [false],
  use_sliding_window: [false],
  partial_rotary_factor: [1],
  quantization_config: [null],
  attention_dropout: [0],
};

/**
 * Reads a parsed `config.json`. Keys that are absent take the published defaults of the architecture's own
 * configuration class (`rms_norm_eps` 1e-6, `rope_theta` 10000, untied, as many key-value heads as heads).
 * @param file named in errors.
 * @throws ConfigError for a missing or ill-typed key, UnsupportedError for a model that is not of a supported kind.
 */
export function parseModelConfig(json: unknown, file = "config.json"): ModelConfig {
  if (typeof json !== "object" || json === null) {
    throw new ConfigError("Cannot read the model's configuration as it is not a JSON object", { file });
  }
  const raw = json as Record<string, unknown>;
  const architecture = readArchitecture(raw, file);
  for (const [key, allowed] of Object.entries(REQUIRED)) {
    if (raw[key] === undefined || allowed.includes(raw[key])) continue;
    throw unsupported(key, {
      value: raw[key],
      file,
      want: allowed.map((v) => JSON.stringify(v)).join(" or "),
    });
  }
  checkLayerTypes(raw, file);
  const count = (key: string, fallback?: number) => readCount(raw, { key, fallback, file });
  const hiddenSize = count("hidden_size");
  const heads = count("num_attention_heads");
  const config: ModelConfig = {
    architecture,
    vocabSize: count("vocab_size"),
    hiddenSize,
    intermediateSize: count("intermediate_size"),
    layers: count("num_hidden_layers"),
    heads,
    kvHeads: count("num_key_value_heads", heads),
    // transformers' Qwen3Config defaults to 128 whatever the hidden size.
    headDim: count("head_dim", architecture === "qwen3" ? 128 : hiddenSize / heads),
    contextLength: count("max_position_embeddings"),
    rmsNormEps: readPositive(raw, { key: "rms_norm_eps", fallback: 1e-6, file }),
    ...readRope(raw, file),
    tied: raw.tie_word_embeddings === true,
    qkNorm: architecture === "qwen3",
    qkvBias: architecture === "qwen2",
    bosTokenId: readTokenIds(raw, { key: "bos_token_id", file })[0],
    padTokenId: readTokenIds(raw, { key: "pad_token_id", file })[0],
    eosTokenIds: readTokenIds(raw, { key: "eos_token_id", file }),
  };
  checkConfig(config, file);
  return config;
}

/** Rules between the fields. @throws ConfigError */
export function checkConfig(config: ModelConfig, file?: string): void {
  const fail = (rule: string, path: string) =>
    new ConfigError(`Cannot build the model as ${rule}`, { path, file });
  if (config.heads % config.kvHeads !== 0) {
    const rule = `heads must be a multiple of key-value heads: ${config.heads} and ${config.kvHeads}`;
    throw fail(rule, "num_key_value_heads");
  }
  if (!Number.isInteger(config.headDim) || config.headDim % 2 !== 0) {
    throw fail(`the head width must be even: ${config.headDim}`, "head_dim");
  }
  for (const id of config.eosTokenIds) {
    if (id >= config.vocabSize) throw fail(`an end token is outside the vocabulary: ${id}`, "eos_token_id");
  }
}

/** `config.json` for a saved model, which transformers and {@link parseModelConfig} read back. */
export function modelConfigJson(config: ModelConfig, dtype: "float32" | "bfloat16" = "float32"): object {
  const { ropeScaling, eosTokenIds } = config;
  return {
    architectures: [ARCHITECTURES[config.architecture]],
    model_type: config.architecture,
    vocab_size: config.vocabSize,
    hidden_size: config.hiddenSize,
    intermediate_size: config.intermediateSize,
    num_hidden_layers: config.layers,
    num_attention_heads: config.heads,
    num_key_value_heads: config.kvHeads,
    head_dim: config.headDim,
    max_position_embeddings: config.contextLength,
    rms_norm_eps: config.rmsNormEps,
    rope_theta: config.ropeTheta,
    rope_scaling: ropeScaling
      ? {
          rope_type: "llama3",
          factor: ropeScaling.factor,
          low_freq_factor: ropeScaling.lowFreqFactor,
          high_freq_factor: ropeScaling.highFreqFactor,
          original_max_position_embeddings: ropeScaling.originalContextLength,
        }
      : null,
    tie_word_embeddings: config.tied,
    hidden_act: "silu",
    ...(config.architecture === "qwen2" ? {} : { attention_bias: false }),
    ...(config.architecture === "llama" ? { mlp_bias: false } : { use_sliding_window: false }),
    bos_token_id: config.bosTokenId ?? null,
    pad_token_id: config.padTokenId ?? null,
    eos_token_id: eosTokenIds.length > 1 ? eosTokenIds : (eosTokenIds[0] ?? null),
    torch_dtype: dtype,
  };
}

/** Name and shape of every weight, as in the model's safetensors: matrices are [out, in]. */
export function weightShapes(config: ModelConfig): Map<string, readonly number[]> {
  const { hiddenSize: C, intermediateSize: F, vocabSize: V, headDim: D } = config;
  const [Q, KV] = [config.heads * D, config.kvHeads * D];
  const shapes = new Map<string, readonly number[]>([["model.embed_tokens.weight", [V, C]]]);
  for (let layer = 0; layer < config.layers; layer++) {
    const add = (name: string, ...shape: number[]) => shapes.set(`model.layers.${layer}.${name}`, shape);
    add("input_layernorm.weight", C);
    add("self_attn.q_proj.weight", Q, C);
    add("self_attn.k_proj.weight", KV, C);
    add("self_attn.v_proj.weight", KV, C);
    if (config.qkvBias) {
      add("self_attn.q_proj.bias", Q);
      add("self_attn.k_proj.bias", KV);
      add("self_attn.v_proj.bias", KV);
    }
    if (config.qkNorm) {
      add("self_attn.q_norm.weight", D);
      add("self_attn.k_norm.weight", D);
    }
    add("self_attn.o_proj.weight", C, Q);
    add("post_attention_layernorm.weight", C);
    add("mlp.gate_proj.weight", F, C);
    add("mlp.up_proj.weight", F, C);
    add("mlp.down_proj.weight", C, F);
  }
  shapes.set("model.norm.weight", [C]);
  if (!config.tied) shapes.set("lm_head.weight", [V, C]);
  return shapes;
}

/** Number of weights; a tied output matrix counts once. */
export function parameterCount(config: ModelConfig): number {
  let sum = 0;
  for (const shape of weightShapes(config).values())
    sum += shape.reduce((product, size) => product * size, 1);
  return sum;
}

/**
 * Rotation per position of each pair of channels, [headDim / 2]: theta^(-2i / headDim), stretched by `ropeScaling`.
 * @see https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
 */
export function ropeFrequencies(
  config: Pick<ModelConfig, "headDim" | "ropeTheta" | "ropeScaling">,
): Float64Array {
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

function readArchitecture(raw: Record<string, unknown>, file: string): ModelConfig["architecture"] {
  const type = raw.model_type;
  if (typeof type === "string" && Object.hasOwn(ARCHITECTURES, type))
    return type as ModelConfig["architecture"];
  const known = Object.keys(ARCHITECTURES).join(", ");
  if (type === undefined) {
    throw new ConfigError(`Cannot read the model's configuration as model_type is missing: one of ${known}`, {
      file,
      path: "model_type",
    });
  }
  throw unsupported("model_type", { value: type, file, want: known });
}

function checkLayerTypes(raw: Record<string, unknown>, file: string): void {
  const types = raw.layer_types;
  if (types === undefined || types === null) return;
  const other = (types as unknown[]).find((type) => type !== "full_attention");
  if (other) throw unsupported("layer_types", { value: other, file, want: '"full_attention"' });
}

/** `rope_theta` and the scaling, from `rope_parameters` (transformers 5) or the top level (4). */
function readRope(
  raw: Record<string, unknown>,
  file: string,
): Pick<ModelConfig, "ropeTheta" | "ropeScaling"> {
  const key = raw.rope_parameters ? "rope_parameters" : "rope_scaling";
  const rope = (raw[key] ?? {}) as Record<string, unknown>;
  const top = readPositive(raw, { key: "rope_theta", fallback: 10_000, file });
  const ropeTheta = readPositive(rope, { key: "rope_theta", fallback: top, file, within: key });
  const type = rope.rope_type ?? rope.type ?? "default";
  if (type === "default") return { ropeTheta };
  if (type !== "llama3") {
    throw unsupported(`${key}.rope_type`, { value: type, file, want: '"default" or "llama3"' });
  }
  const number = (name: string) => readPositive(rope, { key: name, file, within: key });
  return {
    ropeTheta,
    ropeScaling: {
      factor: number("factor"),
      lowFreqFactor: number("low_freq_factor"),
      highFreqFactor: number("high_freq_factor"),
      originalContextLength: number("original_max_position_embeddings"),
    },
  };
}

interface Field {
  readonly key: string;
  readonly file: string;
  readonly fallback?: number | undefined;
  /** Key of the object it lies in, for messages. */
  readonly within?: string;
}

function readCount(raw: Record<string, unknown>, field: Field): number {
  const value = readPositive(raw, field);
  if (Number.isSafeInteger(value)) return value;
  throw new ConfigError(
    `Cannot read the model's configuration as ${field.key} must be a whole number: ${value}`,
    {
      file: field.file,
      path: field.key,
    },
  );
}

function readPositive(raw: Record<string, unknown>, { key, file, fallback, within }: Field): number {
  const value = raw[key] ?? fallback;
  if (typeof value === "number" && value > 0 && Number.isFinite(value)) return value;
  const path = within ? `${within}.${key}` : key;
  const rule = value === undefined ? `${path} is missing` : `${path} must be a positive number`;
  const shown = value === undefined ? "" : `: ${JSON.stringify(value)}`;
  throw new ConfigError(`Cannot read the model's configuration as ${rule}${shown}`, { file, path });
}

/** One id, a list of ids or null, as transformers writes them. */
export function readTokenIds(raw: Record<string, unknown>, { key, file }: Field): number[] {
  const value = raw[key] ?? [];
  const ids = Array.isArray(value) ? value : [value];
  if (ids.every((id) => Number.isSafeInteger(id) && id >= 0)) return ids;
  const message = `Cannot read the model's configuration as ${key} must be a token id`;
  throw new ConfigError(`${message}: ${JSON.stringify(value)}`, { file, path: key });
}

function unsupported(key: string, it: { value: unknown; file: string; want: string }): UnsupportedError {
  const value = JSON.stringify(it.value);
  return new UnsupportedError(
    `Cannot load a model with ${key} ${value} (${it.file}): supported is ${it.want}`,
    {
      part: "model",
      capability: `${key}=${value}`,
    },
  );
}
