/** Elements of a frozen matrix to and from the formats that kernels read (compute/packed.ts). */
import { elementReader, FORMAT, matrixBytes, type PackedFormat } from "../../compute/packed.ts";
import { encodeBf16 } from "../dtype.ts";
import { blockMaxima } from "./blocks.ts";
import { int8Scales, packInt8 } from "./int8.ts";
import { packNf4 } from "./nf4.ts";

/** Packed elements of a matrix, from the start of a block on. */
export interface PackedElements {
  readonly words: Uint32Array;
  /** One for each block of 64 elements, for `int8` and `nf4`. */
  readonly scales?: Float32Array | undefined;
}

/**
 * Packs f32 elements, each rounded to the nearest value of the format.
 * @param label what they are, for errors.
 * @throws {ConfigError} where an element is NaN or infinite, and the format has blocks.
 */
export function packElements(format: PackedFormat, values: Float32Array, label = "weights"): PackedElements {
  const words = new Uint32Array(matrixBytes(format, values.length) / 4);
  if (format === "bfloat16") {
    new Uint16Array(words.buffer).set(encodeBf16(values));
    return { words };
  }
  const maxima = blockMaxima(values, label);
  const bytes = new Uint8Array(words.buffer);
  if (format === "nf4") {
    packNf4(values, maxima, bytes);
    return { words, scales: maxima };
  }
  const scales = int8Scales(maxima);
  packInt8(values, scales, bytes);
  return { words, scales };
}

/** The first `length` elements as f32: what kernels multiply by. */
export function unpackElements(
  format: PackedFormat,
  { words, scales = new Float32Array() }: PackedElements,
  length: number,
): Float32Array {
  const read = elementReader(FORMAT[format], words, scales);
  const values = new Float32Array(length);
  for (let i = 0; i < length; i++) values[i] = read(i);
  return values;
}
