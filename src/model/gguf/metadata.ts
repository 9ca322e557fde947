/** The metadata of a model, under the keys of llama.cpp's converter. */
import { UnsupportedError } from "../../errors.ts";
import type { ModelConfig } from "../files/config.ts";
import { isLlama3 } from "../files/rope.ts";
import type { GgufValue } from "./container.ts";
import { GGUF_FORMS, type GgufForm } from "./form.ts";
import { isInterleaved } from "./tensors.ts";

/** llama.cpp's name of a family. */
const ARCHITECTURES: Readonly<Record<string, string>> = {
  llama: "llama",
  mistral: "llama",
  qwen2: "qwen2",
  qwen3: "qwen3",
  gemma3_text: "gemma3",
};

const u32 = (value: number): GgufValue => ({ type: "u32", value });
const f32 = (value: number): GgufValue => ({ type: "f32", value });
const pairs = (...entries: [string, GgufValue][]) => entries;
const text = (value: string): GgufValue => ({ type: "string", value });

/** @throws UnsupportedError for a shape that llama.cpp's family of the name does not compute. */
export function modelMetadata(
  config: ModelConfig,
  { name, form }: { name: string; form: GgufForm },
): [string, GgufValue][] {
  const arch = ARCHITECTURES[config.architecture];
  if (arch === undefined) throw unsupported(`the family ${config.architecture}`);
  checkShape(config);
  const familyKeys: [string, GgufValue][] = [
    ["context_length", u32(config.contextLength)],
    ["embedding_length", u32(config.hiddenSize)],
    ["block_count", u32(config.layers)],
    ["feed_forward_length", u32(config.intermediateSize)],
    ["attention.head_count", u32(config.heads)],
    ["attention.head_count_kv", u32(config.kvHeads)],
    ["attention.key_length", u32(config.headDim)],
    ["attention.value_length", u32(config.headDim)],
    ["attention.layer_norm_rms_epsilon", f32(config.rmsNormEps)],
    ["rope.freq_base", f32(config.ropeTheta)],
    ["vocab_size", u32(config.vocabSize)],
    ...(isInterleaved(config) ? pairs(["rope.dimension_count", u32(config.headDim)]) : []),
    ...(config.slidingWindow !== undefined ? pairs(["attention.sliding_window", u32(config.slidingWindow)]) : []),
    ...ropeScaling(config),
  ];
  return [
    ["general.architecture", text(arch)],
    ["general.name", text(name)],
    ["general.file_type", u32(GGUF_FORMS[form].fileType)],
    ["general.quantization_version", u32(2)],
    ...familyKeys.map(([key, value]): [string, GgufValue] => [`${arch}.${key}`, value]),
  ];
}

/** Llama 3.1's stretch is a tensor: rope_freqs. */
function ropeScaling({ ropeScaling: scaling }: ModelConfig): [string, GgufValue][] {
  if (!scaling || isLlama3(scaling)) return [];
  return [
    ["rope.scaling.type", text("linear")],
    ["rope.scaling.factor", f32(scaling.factor)],
  ];
}

/** Checks the shape that llama.cpp takes from the name of the family, and no key changes. */
function checkShape(config: ModelConfig): void {
  const { architecture, ropeScaling: scaling, layerTypes, queryPreAttnScalar, headDim } = config;
  const isGemma = architecture === "gemma3_text";
  if (scaling && "betaFast" in scaling) throw unsupported("YaRN's rotary positions");
  if (config.layersWithoutRope?.length) throw unsupported("layers without rotary positions");
  const slides = layerTypes?.some((type) => type === "sliding_attention") ?? false;
  if (slides && !isGemma) throw unsupported(`sliding attention in the family ${architecture}`);
  const isPublished = (type: string, i: number) => (type === "sliding_attention") === ((i + 1) % 6 !== 0);
  if (isGemma && !(layerTypes ?? []).every(isPublished))
    throw unsupported("layers that slide in another order than five of six");
  if (isGemma && config.slidingRopeTheta !== 10_000)
    throw unsupported(`sliding layers with a theta of ${config.slidingRopeTheta}`);
  if (isGemma && queryPreAttnScalar !== headDim)
    throw unsupported(`query_pre_attn_scalar ${queryPreAttnScalar} with heads of ${headDim}`);
  if (config.mlpBias) throw unsupported("biases in the MLP");
}

function unsupported(what: string): UnsupportedError {
  return new UnsupportedError(
    `Cannot export the model as GGUF: ${what} has no counterpart in what is written here. Export safetensors (without --gguf) instead.`,
    { part: "gguf", capability: what },
  );
}
