/** Parts of config.json that families share: activation, head width, sliding layers and rotary positions. */

import type { Activation, LayerType, ModelConfig } from "../config.ts";
import { isLlama3, isYarn, type RopeScaling, yarnAttentionFactor } from "../rope.ts";
import type { Keys, RawConfig } from "./keys.ts";

const ACTIVATIONS: Readonly<Record<string, Activation | undefined>> = {
  silu: undefined,
  swish: undefined,
  gelu_pytorch_tanh: "gelu_pytorch_tanh",
};

/** The MLP's activation; absent for the default. */
export function readActivation(keys: Keys, key: string): Pick<ModelConfig, "activation"> {
  return { activation: ACTIVATIONS[keys.choice(key, Object.keys(ACTIVATIONS))] };
}

/** `head_dim`, otherwise hidden size / heads. */
export function readHeadDim(keys: Keys): number {
  return keys.positive("head_dim", keys.count("hidden_size") / keys.count("num_attention_heads"));
}

/** `attention_bias`: of q, k, v and the output projection. */
export function readAttentionBias(keys: Keys): Pick<ModelConfig, "qkvBias" | "outputBias"> {
  const hasBias = keys.flag("attention_bias");
  return { qkvBias: hasBias, outputBias: hasBias || undefined };
}

const LAYER_TYPES: readonly LayerType[] = ["full_attention", "sliding_attention"];

/**
 * `layer_types` and the window of the sliding layers.
 * @param options.isSliding for a configuration without `layer_types`.
 * @param options.isUsed false where the configuration turns windows off. Default true.
 */
export function readLayerTypes(
  keys: Keys,
  { isSliding, isUsed = true }: { isSliding: (layer: number) => boolean; isUsed?: boolean },
): Pick<ModelConfig, "layerTypes" | "slidingWindow"> {
  const hasWindow = isUsed && keys.get("sliding_window") !== undefined;
  const slidingWindow = hasWindow ? keys.count("sliding_window") : undefined;
  const types = keys.perLayer("layer_types", LAYER_TYPES);
  const layers = Array.from({ length: keys.count("num_hidden_layers") }, (_, layer) => layer);
  const layerTypes = types ?? layers.map((layer) => LAYER_TYPES[hasWindow && isSliding(layer) ? 1 : 0]!);
  return layerTypes.includes("sliding_attention") ? { layerTypes, slidingWindow } : {};
}

/** The inverse of {@link readLayerTypes}. */
export function writeLayerTypes({ layerTypes, slidingWindow }: ModelConfig): RawConfig {
  return { layer_types: layerTypes ?? null, sliding_window: slidingWindow ?? null };
}

const ROPE_TYPES = ["default", "linear", "yarn", "llama3"] as const;

/**
 * Rotary positions: `rope_parameters` of transformers 5, one for all layers or by layer type, or `rope_theta`,
 * `rope_local_base_freq` and `rope_scaling` of transformers 4. A file of the first kind may have a `rope_scaling` too, as models'
 * cards say: it counts, where `rope_parameters` has no scaling of its own.
 */
export function readRope(keys: Keys): Pick<ModelConfig, "ropeTheta" | "ropeScaling" | "slidingRopeTheta"> {
  const parameters = keys.object("rope_parameters");
  const ropeParameters = parameters?.object("full_attention") ?? parameters;
  const scaling = keys.object("rope_scaling");
  if (ropeParameters && scaling) checkOneScaling(keys, { ropeParameters, scaling });
  const rope = scaling ?? ropeParameters;
  const theta = (ropeParameters ?? keys).get("rope_theta") ?? keys.get("rope_theta");
  checkSame(keys, { key: "rope_theta", within: ropeParameters });
  const sliding = parameters?.object("sliding_attention");
  if (sliding) sliding.limit(typeKey(sliding), ["default"]);
  const localTheta = keys.get("rope_local_base_freq") as number | undefined;
  return {
    ropeTheta: (rope ?? keys).positive("rope_theta", theta as number | undefined),
    ropeScaling:
      rope &&
      readScaling(rope, { length: keys.count("max_position_embeddings"), original: originalContext(keys, rope) }),
    slidingRopeTheta: sliding?.positive("rope_theta", localTheta) ?? localTheta,
  };
}

/** @throws ConfigError where `rope_scaling` and `rope_parameters` scale differently. */
function checkOneScaling(keys: Keys, { ropeParameters, scaling }: { ropeParameters: Keys; scaling: Keys }): void {
  const type = ropeParameters.get(typeKey(ropeParameters)) ?? "default";
  const settings = (rope: Keys) => SCALING_KEYS.map((key) => rope.get(key) ?? null);
  const isOther =
    type !== (scaling.get(typeKey(scaling)) ?? "default") || `${settings(ropeParameters)}` !== `${settings(scaling)}`;
  if (type !== "default" && isOther)
    throw keys.wrong("rope_scaling", "must scale as rope_parameters does, or one of the two must be removed");
  checkSame(ropeParameters, { key: "rope_theta", within: scaling });
}

const SCALING_KEYS = [
  "factor",
  "original_max_position_embeddings",
  "low_freq_factor",
  "high_freq_factor",
  "attention_factor",
  "beta_fast",
  "beta_slow",
  "mscale",
  "mscale_all_dim",
  "truncate",
];

/** @throws ConfigError where the file gives a key twice with two values; the family's default is none of its values. */
function checkSame(keys: Keys, { key, within }: { key: string; within: Keys | undefined }): void {
  const [outer, other] = [keys.given(key), within?.given(key)];
  if (outer !== undefined && other !== undefined && outer !== other)
    throw keys.wrong(key, `must be the ${JSON.stringify(other)} that the file gives beside it, or be removed`);
}

/**
 * Returns the original context where the scaling does not say it: `original_max_position_embeddings` of the model, else
 * its longest sequence.
 */
function originalContext(keys: Keys, rope: Keys): number {
  const key = "original_max_position_embeddings";
  checkSame(keys, { key, within: rope });
  return keys.get(key) === undefined ? keys.count("max_position_embeddings") : keys.count(key);
}

/** Older files have `type`. */
function typeKey(rope: Keys): string {
  return rope.get("rope_type") === undefined && rope.get("type") !== undefined ? "type" : "rope_type";
}

/** The longest sequence, and the original one where the scaling does not say it. */
interface Context {
  readonly length: number;
  readonly original: number;
}

function readScaling(rope: Keys, context: Context): RopeScaling | undefined {
  rope.limit("partial_rotary_factor", [1]);
  const key = typeKey(rope);
  const type = rope.get(key) === undefined ? "default" : rope.choice(key, ROPE_TYPES);
  if (type === "linear") return { factor: rope.positive("factor") };
  if (type === "yarn") return readYarn(rope, context);
  if (type === "default") return undefined;
  return {
    factor: rope.positive("factor"),
    lowFreqFactor: rope.positive("low_freq_factor"),
    highFreqFactor: rope.positive("high_freq_factor"),
    originalContextLength: rope.positive("original_max_position_embeddings", context.original),
  };
}

function readYarn(rope: Keys, context: Context): RopeScaling {
  const originalContextLength = rope.positive("original_max_position_embeddings", context.original);
  const factor = rope.positive("factor", context.length / originalContextLength);
  const [mscale, mscaleAllDim] = [rope.get("mscale"), rope.get("mscale_all_dim")];
  const length =
    mscale && mscaleAllDim
      ? yarnAttentionFactor(factor, rope.positive("mscale")) /
        yarnAttentionFactor(factor, rope.positive("mscale_all_dim"))
      : yarnAttentionFactor(factor);
  return {
    factor,
    originalContextLength,
    attentionFactor: rope.positive("attention_factor", length),
    betaFast: rope.positive("beta_fast", 32),
    betaSlow: rope.positive("beta_slow", 1),
    truncate: rope.get("truncate") === undefined || rope.flag("truncate"),
  };
}

/** The inverse of {@link readRope}, in the form that transformers 4 and 5 read. */
export function writeRope({ ropeTheta, ropeScaling, slidingRopeTheta }: ModelConfig): RawConfig {
  return {
    rope_theta: ropeTheta,
    ...(slidingRopeTheta !== undefined && { rope_local_base_freq: slidingRopeTheta }),
    rope_scaling: ropeScaling ? scalingJson(ropeScaling) : null,
  };
}

function scalingJson(scaling: RopeScaling): RawConfig {
  const { factor } = scaling;
  if (isLlama3(scaling))
    return {
      rope_type: "llama3",
      factor,
      low_freq_factor: scaling.lowFreqFactor,
      high_freq_factor: scaling.highFreqFactor,
      original_max_position_embeddings: scaling.originalContextLength,
    };
  if (!isYarn(scaling)) return { rope_type: "linear", factor };
  return {
    rope_type: "yarn",
    factor,
    original_max_position_embeddings: scaling.originalContextLength,
    attention_factor: scaling.attentionFactor,
    beta_fast: scaling.betaFast,
    beta_slow: scaling.betaSlow,
    truncate: scaling.truncate,
  };
}
