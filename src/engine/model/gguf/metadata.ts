/** The metadata of a model, under the keys of llama.cpp's converter. */
import { UnsupportedError } from "../../../leaves/errors.ts";
import type { ModelConfig } from "../config.ts";
import type { GgufFamily } from "../families/architecture.ts";
import { ARCHITECTURES } from "../families/architectures.ts";
import { isLlama3 } from "../rope.ts";
import type { GgufValue } from "./container.ts";
import { GGUF_FORMS, type GgufForm } from "./form.ts";

const u32 = (value: number): GgufValue => ({ type: "u32", value });
const f32 = (value: number): GgufValue => ({ type: "f32", value });
const pairs = (...entries: [string, GgufValue][]) => entries;
const text = (value: string): GgufValue => ({ type: "string", value });

/** @throws UnsupportedError for a shape that llama.cpp's family of the name does not compute. */
export function modelMetadata(
  config: ModelConfig,
  { name, form }: { name: string; form: GgufForm },
): [string, GgufValue][] {
  const family = ARCHITECTURES.get(config.architecture)?.gguf;
  if (family === undefined) throw unsupported(`the family ${config.architecture}`);
  const arch = family.name;
  checkShape(config, family);
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
    ...(family.isInterleaved ? pairs(["rope.dimension_count", u32(config.headDim)]) : []),
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

/** Refuses what llama.cpp takes from the name of the family, and no key changes. */
function checkShape(config: ModelConfig, family: GgufFamily): void {
  const { architecture, ropeScaling: scaling, layerTypes } = config;
  if (scaling && "betaFast" in scaling) throw unsupported("YaRN's rotary positions");
  if (config.layersWithoutRope?.length) throw unsupported("layers without rotary positions");
  const slides = layerTypes?.some((type) => type === "sliding_attention") ?? false;
  if (slides && !family.unsupported) throw unsupported(`sliding attention in the family ${architecture}`);
  const found = family.unsupported?.(config);
  if (found !== undefined) throw unsupported(found);
  if (config.mlpBias) throw unsupported("biases in the MLP");
}

function unsupported(what: string): UnsupportedError {
  return new UnsupportedError(
    `Cannot export the model as GGUF: ${what} has no counterpart in what is written here. Export safetensors (without --gguf) instead.`,
    { part: "gguf", capability: what },
  );
}
