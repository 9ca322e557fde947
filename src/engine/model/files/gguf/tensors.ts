/** A GGUF file's tensors under Hugging Face's names, in its layouts. */

import { decodeFloats } from "../../dtype.ts";
import type { ModelTensor } from "../../layers.ts";
import { dequantize } from "./dequantize.ts";
import type { StoredTensor } from "./parse.ts";
import { bytesOfElements, isQuantized } from "./types.ts";

interface Rows {
  readonly first: number;
  readonly count: number;
}

/** A tensor as safetensors would hold it. */
export interface HubTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly dtype: "F32" | "F16" | "BF16";
  /** Bytes of an element. */
  readonly width: number;
  /** Values of whole rows, or their bytes where these are the file's own. A vector is one row. */
  readonly rows: (of: Rows) => Promise<Float32Array | Uint8Array>;
}

/** The facts by which a file's tensors are read. */
export interface TensorReading {
  /** Tensors by llama.cpp's names. */
  readonly named: ReadonlyMap<string, ModelTensor>;
  /** Whether the rows of q and k are interleaved. */
  readonly isInterleaved: boolean;
  /** Whether norms are stored as 1 + weight. */
  readonly hasUnitOffsetNorms: boolean;
  readonly dtype: "bfloat16" | "float32";
}

/** Undefined for a tensor that Hugging Face's layout does not have, such as rope_freqs. */
export function hubTensor(tensor: StoredTensor, reading: TensorReading): HubTensor | undefined {
  const named = reading.named.get(tensor.name);
  if (!named) return undefined;
  const { name, role, rotatedHeads } = named;
  const { type, shape } = tensor;
  if (reading.hasUnitOffsetNorms && role === "norm") {
    const rows = async (of: Rows) => (await decodedRows(tensor, of)).map((value) => value - 1);
    return { name, shape, dtype: "F32", width: 4, rows };
  }
  const stored = isQuantized(type) ? (reading.dtype === "bfloat16" ? "BF16" : "F32") : type;
  const heads = reading.isInterleaved ? rotatedHeads : undefined;
  const rows = (of: Rows) => (heads === undefined ? storedRows(tensor, of) : separated(tensor, { ...of, heads }));
  return { name, shape, dtype: stored, width: stored === "F32" ? 4 : 2, rows };
}

/** llama.cpp interleaves the halves of a head's rows; Hugging Face has one after the other. Elements of a bias are rows. */
async function separated(tensor: StoredTensor, { first, count, heads }: Rows & { heads: number }) {
  const isBias = tensor.shape.length === 1;
  const height = tensor.shape[0]! / heads;
  const [from, to] = isBias ? [0, tensor.shape[0]!] : [first, first + count];
  const [start, end] = [Math.floor(from / height) * height, Math.ceil(to / height) * height];
  const values = await storedRows(tensor, isBias ? { first: 0, count: 1 } : { first: start, count: end - start });
  const width = values.length / (end - start);
  const out = values.slice(0, (to - from) * width);
  for (let row = from; row < to; row++) {
    const [head, within] = [Math.floor(row / height), row % height];
    const source = head * height + (within % (height / 2)) * 2 + Math.floor(within / (height / 2)) - start;
    out.set(values.subarray(source * width, (source + 1) * width), (row - from) * width);
  }
  return out;
}

/** The values of quantised rows; of others the bytes, which are those of safetensors. */
function storedRows(tensor: StoredTensor, of: Rows): Promise<Float32Array | Uint8Array> {
  return isQuantized(tensor.type) ? decodedRows(tensor, of) : rawRows(tensor, of);
}

/** Values of rows, each rounded to f32 as the Python package `gguf` rounds them. */
export async function decodedRows(tensor: StoredTensor, of: Rows): Promise<Float32Array> {
  const { type } = tensor;
  const bytes = await rawRows(tensor, of);
  return isQuantized(type) ? dequantize(bytes, type) : decodeFloats(bytes, type)!;
}

function rawRows({ reader, offset, shape, type }: StoredTensor, { first, count }: Rows): Promise<Uint8Array> {
  const rowBytes = bytesOfElements(shape.at(-1)!, type);
  return reader.read(offset + first * rowBytes, count * rowBytes);
}
