/** A model folder in the shape of Qwen2.5-0.5B with random weights, which every peer reads. */
import type { ModelConfig } from "../../src/engine/model/config.ts";
import type { TensorSource } from "../../src/engine/model/files/safetensors_write.ts";
import { writeModelFolder } from "../../src/engine/model/files/write_model_folder.ts";
import { weightShapes } from "../../src/engine/model/layers.ts";
import { mulberry32 } from "../../src/leaves/random.ts";

export const QWEN_SHAPE: ModelConfig = {
  architecture: "qwen2",
  vocabSize: 151_936,
  hiddenSize: 896,
  intermediateSize: 4864,
  layers: 24,
  heads: 14,
  kvHeads: 2,
  headDim: 64,
  contextLength: 32_768,
  rmsNormEps: 1e-6,
  ropeTheta: 1_000_000,
  tied: true,
  qkNorm: false,
  qkvBias: true,
  eosTokenIds: [151_935],
};
const DEVIATION = 0.02;

/** Writes the folder in bfloat16, so that the weights are the same numbers in f32, and nearly so in f16. */
export async function writeRandomModel(folder: string, config: ModelConfig): Promise<void> {
  const tensors = [...weightShapes(config)].map(([name, shape], seed): TensorSource => {
    const length = shape.reduce((product, size) => product * size, 1);
    const isNorm = name.endsWith("norm.weight");
    return { name, shape, data: async () => (isNorm ? new Float32Array(length).fill(1) : draw(length, seed)) };
  });
  const extra = { "tokenizer.json": JSON.stringify(tokenizerOf(config)), "tokenizer_config.json": "{}" };
  await writeModelFolder(folder, { config, tensors, dtype: "BF16", extra });
}

function draw(length: number, seed: number): Float32Array {
  const next = mulberry32(seed);
  const scale = 2 * DEVIATION * Math.sqrt(3);
  const values = new Float32Array(length);
  for (let i = 0; i < length; i++) values[i] = (next() - 0.5) * scale;
  return values;
}

/** Bytes, then tokens that no text gives: llama.cpp loads no model without a vocabulary. */
function tokenizerOf({ vocabSize }: ModelConfig) {
  const tokens = [...byteCharacters(), ...Array.from({ length: vocabSize - 256 }, (_, i) => `token${i}`)];
  const Regex = "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s+";
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        { type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: [],
    },
  };
}

/** The characters that stand for bytes in GPT-2's vocabulary. */
function byteCharacters(): string[] {
  const isShown = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let hidden = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isShown(byte) ? byte : 256 + hidden++));
}
