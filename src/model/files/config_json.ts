/** Hugging Face's `config.json`, read and written. */
import { ConfigError, UnsupportedError } from "../../errors.ts";
import { checkConfig, type Llama3Scaling, type ModelConfig } from "./config.ts";

const ARCHITECTURES = {
  llama: "LlamaForCausalLM",
  qwen2: "Qwen2ForCausalLM",
  qwen3: "Qwen3ForCausalLM",
} as const;

/** Settings that the forward pass here supports with these values alone. Absent is fine. */
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
 * Reads a parsed `config.json`. Absent keys take the defaults of the architecture's configuration class in transformers
 * (`rms_norm_eps` 1e-6, `rope_theta` 10000, untied, as many key-value heads as heads).
 * @param file named in errors.
 * @throws ConfigError for a missing or ill-typed key, UnsupportedError for an unsupported architecture or setting.
 */
export function parseModelConfig(json: unknown, file = "config.json"): ModelConfig {
  if (typeof json !== "object" || json === null)
    throw new ConfigError("Cannot read the model's configuration: it is not a JSON object.", { file });
  const raw = json as Record<string, unknown>;
  const architecture = readArchitecture(raw, file);
  checkSupported(raw, file);
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

/** The inverse of {@link parseModelConfig}: a `config.json` that transformers reads too. */
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
    rope_scaling: ropeScaling ? llama3Json(ropeScaling) : null,
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

function llama3Json(scaling: Llama3Scaling): object {
  return {
    rope_type: "llama3",
    factor: scaling.factor,
    low_freq_factor: scaling.lowFreqFactor,
    high_freq_factor: scaling.highFreqFactor,
    original_max_position_embeddings: scaling.originalContextLength,
  };
}

function readArchitecture(raw: Record<string, unknown>, file: string): ModelConfig["architecture"] {
  const type = raw.model_type;
  if (typeof type === "string" && Object.hasOwn(ARCHITECTURES, type)) return type as ModelConfig["architecture"];
  const known = Object.keys(ARCHITECTURES).join(", ");
  if (type === undefined)
    throw new ConfigError(`Cannot read the model's configuration: model_type is missing. Supported are ${known}.`, {
      file,
      path: "model_type",
    });
  throw unsupported("model_type", { value: type, file, want: known });
}

function checkSupported(raw: Record<string, unknown>, file: string): void {
  for (const [key, allowed] of Object.entries(REQUIRED)) {
    if (raw[key] === undefined || allowed.includes(raw[key])) continue;
    const want = allowed.map((value) => JSON.stringify(value)).join(" or ");
    throw unsupported(key, { value: raw[key], file, want });
  }
  const types = raw.layer_types;
  if (types === undefined || types === null) return;
  const other = (types as unknown[]).find((type) => type !== "full_attention");
  if (other) throw unsupported("layer_types", { value: other, file, want: '"full_attention"' });
}

/** `rope_theta` and the scaling, from `rope_parameters` (transformers 5) or the top level (4). */
function readRope(raw: Record<string, unknown>, file: string): Pick<ModelConfig, "ropeTheta" | "ropeScaling"> {
  const key = raw.rope_parameters ? "rope_parameters" : "rope_scaling";
  const rope = (raw[key] ?? {}) as Record<string, unknown>;
  const top = readPositive(raw, { key: "rope_theta", fallback: 10_000, file });
  const ropeTheta = readPositive(rope, { key: "rope_theta", fallback: top, file, within: key });
  const type = rope.rope_type ?? rope.type ?? "default";
  if (type === "default") return { ropeTheta };
  if (type !== "llama3") throw unsupported(`${key}.rope_type`, { value: type, file, want: '"default" or "llama3"' });
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
  /** Key of the enclosing object, for messages. */
  readonly within?: string | undefined;
}

function readCount(raw: Record<string, unknown>, field: Field): number {
  const value = readPositive(raw, field);
  if (Number.isSafeInteger(value)) return value;
  throw new ConfigError(`Cannot read the model's configuration: ${field.key} must be a whole number (${value}).`, {
    file: field.file,
    path: field.key,
  });
}

function readPositive(raw: Record<string, unknown>, { key, file, fallback, within }: Field): number {
  const value = raw[key] ?? fallback;
  if (typeof value === "number" && value > 0 && Number.isFinite(value)) return value;
  const path = within ? `${within}.${key}` : key;
  const rule = value === undefined ? `${path} is missing` : `${path} must be a positive number`;
  const shown = value === undefined ? "" : ` (${JSON.stringify(value)})`;
  throw new ConfigError(`Cannot read the model's configuration: ${rule}${shown}.`, { file, path });
}

/** One id, a list of ids or null: transformers writes all three. */
export function readTokenIds(raw: Record<string, unknown>, { key, file }: Field): number[] {
  const value = raw[key] ?? [];
  const ids = Array.isArray(value) ? value : [value];
  if (ids.every((id) => Number.isSafeInteger(id) && id >= 0)) return ids;
  const message = `Cannot read the model's configuration: ${key} must be a token id (${JSON.stringify(value)}).`;
  throw new ConfigError(message, { file, path: key });
}

function unsupported(key: string, it: { value: unknown; file: string; want: string }): UnsupportedError {
  const value = JSON.stringify(it.value);
  return new UnsupportedError(`Cannot load a model with ${key} ${value}: supported is ${it.want} (${it.file}).`, {
    part: "model",
    capability: `${key}=${value}`,
  });
}
