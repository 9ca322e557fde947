/** Hugging Face's `config.json`, read and written: what all families have in common. The rest: architectures/. */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { checkConfig, type ModelConfig } from "../config.ts";
import { type Architecture, COMMON_DEFAULTS, COMMON_REQUIREMENTS } from "../families/architecture.ts";
import { ARCHITECTURES, OBSTACLES } from "../families/architectures.ts";
import { Keys, type RawConfig } from "../families/keys.ts";
import { isYarn, type Rope } from "../rope.ts";

/** More than any published model has; a file that names more would fill the memory before its weights are looked at. */
const MOST_LAYERS = 1000;

/**
 * Reads a parsed `config.json`. Absent keys take the defaults of the family's configuration class in transformers, sizes
 * excepted.
 * @param file named in errors.
 * @throws ConfigError for a missing or ill-typed key, UnsupportedError for an unsupported architecture or setting.
 */
export function parseModelConfig(json: unknown, file = "config.json"): ModelConfig {
  if (typeof json !== "object" || json === null || Array.isArray(json))
    throw new ConfigError("Cannot read the model's configuration: it is not a JSON object.", { file });
  const raw = json as RawConfig;
  const architecture = architectureOf(raw, file);
  const keys = new Keys(raw, { file, defaults: { ...COMMON_DEFAULTS, ...architecture.defaults } });
  const required = Object.entries({ ...COMMON_REQUIREMENTS, ...architecture.requires });
  for (const [key, allowed] of required) keys.limit(key, allowed);
  const layers = keys.count("num_hidden_layers");
  if (layers > MOST_LAYERS) throw keys.wrong("num_hidden_layers", `must be at most ${MOST_LAYERS}`);
  const heads = keys.count("num_attention_heads");
  const family = architecture.read(keys);
  const config: ModelConfig = {
    architecture: architecture.type,
    vocabSize: keys.count("vocab_size"),
    hiddenSize: keys.count("hidden_size"),
    intermediateSize: keys.count("intermediate_size"),
    layers,
    heads,
    kvHeads: keys.count("num_key_value_heads", heads),
    contextLength: contextOf(keys.count("max_position_embeddings"), family),
    rmsNormEps: keys.positive("rms_norm_eps"),
    tied: keys.flag("tie_word_embeddings"),
    ...family,
    ...(hasScoreHead(raw, file) && { scoreHead: true }),
    bosTokenId: keys.tokenIds("bos_token_id")[0],
    padTokenId: keys.tokenIds("pad_token_id")[0],
    eosTokenIds: keys.tokenIds("eos_token_id"),
  };
  checkConfig(config, file);
  return config;
}

/**
 * Longest sequence. YaRN stretches the original context by its factor, and published files keep `max_position_embeddings`
 * where a user adds `rope_scaling` as the model's card says.
 */
function contextOf(positions: number, { ropeScaling: scaling }: Rope): number {
  if (!scaling || !isYarn(scaling)) return positions;
  return Math.max(positions, Math.floor(scaling.factor * scaling.originalContextLength));
}

/** The inverse of {@link parseModelConfig}: a `config.json` that transformers reads too. */
export function modelConfigJson(config: ModelConfig, dtype: "float32" | "bfloat16" = "float32"): object {
  const { eosTokenIds } = config;
  const architecture = ARCHITECTURES.get(config.architecture);
  if (!architecture) throw new RangeError(`Cannot write config.json: no architecture is named ${config.architecture}`);
  return {
    ...classOf(architecture, config),
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
    tie_word_embeddings: config.tied,
    ...architecture.write(config),
    bos_token_id: config.bosTokenId ?? null,
    pad_token_id: config.padTokenId ?? null,
    eos_token_id: eosTokenIds.length > 1 ? eosTokenIds : (eosTokenIds[0] ?? null),
    torch_dtype: dtype,
  };
}

/** The class in transformers, which for a scalar head needs a single label. */
function classOf({ className, scoreClassName }: Architecture, { scoreHead }: ModelConfig): object {
  if (!scoreHead) return { architectures: [className] };
  const name = scoreClassName ?? className.replace("ForCausalLM", SCORE_CLASS);
  return { architectures: [name], id2label: { "0": "LABEL_0" }, label2id: { LABEL_0: 0 } };
}

const SCORE_CLASS = "ForSequenceClassification";

/** @throws UnsupportedError for a classifier with more than one label: transformers' default is two. */
function hasScoreHead({ architectures, id2label, num_labels }: RawConfig, file: string): boolean {
  const [name] = Array.isArray(architectures) ? architectures : [];
  if (typeof name !== "string" || !name.endsWith(SCORE_CLASS)) return false;
  const labels =
    typeof num_labels === "number" ? num_labels : Object.keys((id2label as object | undefined) ?? {}).length;
  if (labels === 1) return true;
  throw new UnsupportedError(
    `Cannot load ${name}: a scalar head has one label, and the model has ${labels || "transformers' default of two"} (${file}).`,
    { part: "model", capability: "num_labels" },
  );
}

/** Token ids of a parsed JSON object: one, a list or null. @throws ConfigError for anything else. */
export function readTokenIds(raw: RawConfig, { key, file }: { key: string; file: string }): number[] {
  return new Keys(raw, { file }).tokenIds(key);
}

function architectureOf(raw: RawConfig, file: string): Architecture {
  const type = raw.model_type;
  const families = [...ARCHITECTURES.keys()].join(", ");
  if (type === undefined)
    throw new ConfigError(`Cannot read the model's configuration: model_type is missing. Supported are ${families}.`, {
      file,
      path: "model_type",
    });
  const architecture = typeof type === "string" ? ARCHITECTURES.get(type) : undefined;
  if (architecture) return architecture;
  const obstacle = typeof type === "string" ? OBSTACLES.find(([types]) => types.test(type))?.[1] : undefined;
  const reason = obstacle ? ` (${obstacle})` : "";
  const shown = JSON.stringify(type);
  throw new UnsupportedError(
    `Cannot load a model with model_type ${shown}${reason}: supported is ${families} (${file}). Take a model of one of these families.`,
    { part: "model", capability: `model_type=${shown}` },
  );
}
