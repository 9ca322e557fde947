/** A `config.json` from a GGUF file's metadata: what transformers' class of the family calls the same. */
import { ConfigError, UnsupportedError } from "../../../../leaves/errors.ts";
import type { Architecture } from "../../families/architecture.ts";
import { ARCHITECTURES } from "../../families/architectures.ts";
import { ropeFrequencies } from "../../rope.ts";
import type { MetadataValue, StoredTensor } from "./parse.ts";

/** Families by llama.cpp's name, which several families may share: the first is what a file of that name is read as. */
const FAMILIES: ReadonlyMap<string, Architecture> = new Map(
  [...ARCHITECTURES.values()].reverse().flatMap((family) => (family.gguf ? [[family.gguf.name, family] as const] : [])),
);

/** A file's facts about its model. */
export interface GgufModel {
  readonly file: string;
  readonly metadata: ReadonlyMap<string, MetadataValue>;
  readonly tensors: ReadonlyMap<string, StoredTensor>;
}

type Json = Readonly<Record<string, unknown>>;

/** Whether llama.cpp interleaves the rows of q and k in the file's family. */
export function isInterleaved(model: GgufModel): boolean {
  return FAMILIES.get(familyOf(model))!.gguf!.isInterleaved ?? false;
}

/** llama.cpp's name of the family. @throws ConfigError where the file names none, UnsupportedError for one that is not read here */
export function familyOf({ file, metadata }: GgufModel): string {
  const name = metadata.get("general.architecture");
  if (typeof name !== "string")
    throw new ConfigError("Cannot read the GGUF file: it has no general.architecture. Give the file of a model.", {
      file,
    });
  if (FAMILIES.has(name)) return name;
  throw new UnsupportedError(
    `Cannot read the GGUF file: the family ${name.slice(0, 80)} is not supported (${file}). Give a model of ${[...FAMILIES.keys()].sort().join(", ")}.`,
    { part: "gguf", capability: name },
  );
}

/**
 * @param options.dtype of the weights, which transformers loads the model in
 * @param options.ropeFactors values of rope_freqs.weight
 */
export function configJson(
  model: GgufModel,
  { dtype, ropeFactors }: { dtype: "bfloat16" | "float32"; ropeFactors?: Float32Array | undefined },
): Json {
  const { file, metadata, tensors } = model;
  const family = familyOf(model);
  const { type, className, gguf } = FAMILIES.get(family)!;
  const familyNumber = (key: string) => numberAt(metadata.get(`${family}.${key}`));
  const needed = (key: string): number => {
    const value = familyNumber(key);
    if (value !== undefined) return value;
    throw new ConfigError(`Cannot read the GGUF file: it has no ${family}.${key}. Fetch the file again.`, { file });
  };
  const [heads, width] = [needed("attention.head_count"), needed("embedding_length")];
  const headDim = familyNumber("attention.key_length") ?? width / heads;
  const theta = familyNumber("rope.freq_base") ?? 10_000;
  checkComputation(model, { family, headDim });
  const has = (name: string) => tensors.has(name);
  return {
    architectures: [className],
    model_type: type,
    vocab_size: tensors.get("token_embd.weight")?.shape[0] ?? needed("vocab_size"),
    hidden_size: width,
    intermediate_size: needed("feed_forward_length"),
    num_hidden_layers: needed("block_count"),
    num_attention_heads: heads,
    num_key_value_heads: familyNumber("attention.head_count_kv") ?? heads,
    head_dim: headDim,
    max_position_embeddings: needed("context_length"),
    rms_norm_eps: shortest(needed("attention.layer_norm_rms_epsilon")),
    rope_theta: shortest(theta),
    rope_scaling: ropeFactors ? llama3Scaling(ropeFactors, { theta, file }) : ropeScaling(model, family),
    tie_word_embeddings: !has("output.weight"),
    attention_bias: has("blk.0.attn_q.bias"),
    ...gguf?.keys?.({ needed, has, width, heads, headDim }),
    bos_token_id: tokenId(metadata, "bos") ?? null,
    eos_token_id: tokenId(metadata, "eos") ?? null,
    pad_token_id: tokenId(metadata, "padding") ?? null,
    torch_dtype: dtype,
  };
}

/** Ids of the tokens that end a reply: of a text, of a turn, of a message. */
export function endTokenIds(metadata: GgufModel["metadata"]): number[] {
  const ids = ["eos", "eot", "eom"].map((name) => tokenId(metadata, name));
  return [...new Set(ids.filter((id) => id !== undefined))];
}

export function tokenId(metadata: GgufModel["metadata"], name: string): number | undefined {
  return numberAt(metadata.get(`tokenizer.ggml.${name}_token_id`));
}

/** Keys that change what is computed, by the value that changes nothing. */
const NEUTRAL: Readonly<Record<string, number>> = {
  logit_scale: 1,
  residual_scale: 1,
  embedding_scale: 1,
  "attention.scale": 0,
  final_logit_softcapping: 0,
  attn_logit_softcapping: 0,
  expert_count: 0,
};

/** @throws UnsupportedError for a key that no model here follows, because what ignores it computes something else */
function checkComputation(
  { file, metadata }: GgufModel,
  { family, headDim }: { family: string; headDim: number },
): void {
  const familyNumber = (key: string) => numberAt(metadata.get(`${family}.${key}`));
  const rotated = familyNumber("rope.dimension_count") ?? headDim;
  const values = familyNumber("attention.value_length") ?? headDim;
  const changed = Object.entries(NEUTRAL).find(([key, neutral]) => (familyNumber(key) ?? neutral) !== neutral)?.[0];
  const key = rotated !== headDim ? "rope.dimension_count" : values !== headDim ? "attention.value_length" : changed;
  if (key === undefined) return;
  throw new UnsupportedError(
    `Cannot read the GGUF file: ${family}.${key}=${familyNumber(key)} is not supported (${file}). Give another model of its family.`,
    { part: "gguf", capability: key },
  );
}

function ropeScaling({ file, metadata }: GgufModel, family: string): Json | null {
  const type = metadata.get(`${family}.rope.scaling.type`) ?? "none";
  const factor = numberAt(metadata.get(`${family}.rope.scaling.factor`)) ?? 1;
  if (type === "none" || (type === "linear" && factor === 1)) return null;
  if (type === "linear") return { rope_type: "linear", factor: shortest(factor) };
  throw new UnsupportedError(
    `Cannot read the GGUF file: its rotary positions are scaled by ${String(type)} (${file}). Give the model's folder in place of the file.`,
    { part: "gguf", capability: `rope scaling ${String(type)}` },
  );
}

/**
 * The published stretch of Llama 3 that gives these divisors of the frequencies, which are all that a file holds.
 * @throws UnsupportedError where none does
 */
function llama3Scaling(factors: Float32Array, { theta, file }: { theta: number; file: string }): Json {
  const factor = Math.round(Math.max(...factors));
  const rope = { ropeTheta: theta, headDim: 2 * factors.length };
  const scaling = { factor, lowFreqFactor: 1, highFreqFactor: 4, originalContextLength: 8192 };
  const [plain, stretched] = [ropeFrequencies(rope), ropeFrequencies({ ...rope, ropeScaling: scaling })];
  const isSame = factors.every((value, i) => Math.abs(value - plain[i]! / stretched[i]!) <= 1e-4 * value);
  if (isSame)
    return {
      rope_type: "llama3",
      ...{ factor, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192 },
    };
  throw new UnsupportedError(
    `Cannot read the GGUF file: its rope_freqs are no stretch of Llama 3's (${file}). Give the model's folder in place of the file.`,
    { part: "gguf", capability: "rope_freqs" },
  );
}

const numberAt = (value: MetadataValue | undefined) => (typeof value === "number" ? value : undefined);

/** The shortest decimal of an f32: 1e-05 in place of 9.999999747378752e-06. */
function shortest(value: number): number {
  for (let digits = 1; digits <= 9; digits++) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.fround(rounded) === value) return rounded;
  }
  return value;
}
