/** The tensors of a model under llama.cpp's names, in its layouts. */

import type { ModelConfig } from "../config.ts";
import { encodeBf16 } from "../dtype.ts";
import { ARCHITECTURES } from "../families/architectures.ts";
import type { TensorSource } from "../files/safetensors_write.ts";
import { type ModelTensor, tensorsOf } from "../layers.ts";
import { isLlama3, ropeFrequencies } from "../rope.ts";
import type { GgufTensor, GgufType } from "./container.ts";
import { encodeF16, encodeQ8 } from "./encode.ts";
import { GGUF_FORMS, type GgufForm } from "./form.ts";

export function ggufTensors(
  sources: readonly TensorSource[],
  target: { config: ModelConfig; form: GgufForm },
): GgufTensor[] {
  const tensors = new Map(tensorsOf(target.config).map((tensor) => [tensor.name, tensor]));
  return [...sources.map((source) => tensorOf(source, { ...target, tensors })), ...ropeFactors(target.config)];
}

function tensorOf(
  source: TensorSource,
  { config, form, tensors }: { config: ModelConfig; form: GgufForm; tensors: ReadonlyMap<string, ModelTensor> },
): GgufTensor {
  const { shape } = source;
  const tensor = tensors.get(source.name)!;
  const name = tensor.gguf!;
  const type = typeOf(shape, form);
  const data = async () => {
    const values = typeof source.data === "function" ? await source.data() : (source.data as Float32Array);
    return encoded(name, { values: inItsLayout(tensor, { values, shape, config }), type });
  };
  return { name, shape, type, data };
}

/** A row that is no multiple of 32 stays f16. */
function typeOf(shape: readonly number[], form: GgufForm): GgufType {
  if (shape.length === 1) return "F32";
  const { matrix } = GGUF_FORMS[form];
  return matrix === "Q8_0" && shape.at(-1)! % 32 !== 0 ? "F16" : matrix;
}

function encoded(name: string, { values, type }: { values: Float32Array; type: GgufType }): Uint8Array {
  if (type === "Q8_0") return encodeQ8(values);
  if (type === "F16") return encodeF16(name, values);
  if (type === "BF16") return bytesOf(encodeBf16(values));
  return bytesOf(values);
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array | Uint16Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

interface Laid {
  readonly values: Float32Array;
  readonly shape: readonly number[];
  readonly config: ModelConfig;
}

/**
 * llama.cpp rotates neighbouring channels of llama's q and k, where transformers rotates the halves of a head: their rows are
 * interleaved. Gemma's norms multiply by 1 + weight there, and by the weight here.
 */
function inItsLayout({ role, rotatedHeads: heads }: ModelTensor, { values, shape, config }: Laid): Float32Array {
  const { isInterleaved } = ARCHITECTURES.get(config.architecture)!.gguf!;
  if (heads !== undefined && isInterleaved) return interleaved(values, { heads, rows: shape[0]! });
  if (config.unitOffsetNorms && role === "norm") return values.map((value) => value + 1);
  return values;
}

/** Row i of a head's first half, then row i of its second half, then row i + 1, ... */
function interleaved(values: Float32Array, { heads, rows }: { heads: number; rows: number }): Float32Array {
  const [width, half] = [values.length / rows, rows / heads / 2];
  const out = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) {
    const [head, within] = [Math.floor(row / (2 * half)), row % (2 * half)];
    const to = head * 2 * half + (within % half) * 2 + Math.floor(within / half);
    out.set(values.subarray(row * width, (row + 1) * width), to * width);
  }
  return out;
}

/** Llama 3.1's stretch as a divisor of each frequency. */
function ropeFactors(config: ModelConfig): GgufTensor[] {
  const { ropeScaling, ropeTheta, headDim } = config;
  if (!ropeScaling || !isLlama3(ropeScaling)) return [];
  const [plain, stretched] = [ropeFrequencies({ ropeTheta, headDim }), ropeFrequencies(config)];
  const factors = Float32Array.from(plain, (frequency, i) => frequency / stretched[i]!);
  const data = async () => new Uint8Array(factors.buffer);
  return [{ name: "rope_freqs.weight", shape: [factors.length], type: "F32", data }];
}
