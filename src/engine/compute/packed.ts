/** Packed matrices: how their elements lie in memory, the bytes they take, and what each element is. */
import { SLICE_ALIGNMENT_BYTES } from "./device.ts";

/**
 * How the elements of a frozen matrix lie in memory, row-major and without gaps.
 * - `float32`: one word each.
 * - `bfloat16`: the upper half of the float32, two in a word, the even one in the low half: the bytes of a model file.
 * - `int8`: a signed byte times the scale of its block.
 * - `nf4`: four bits that choose one of {@link NF4_LEVELS}, times the scale of its block; two in a byte, the even one in
 *   the high half.
 * @see Dettmers et al. 2023, QLoRA, and bitsandbytes for the levels of nf4 and the order of its halves.
 */
export type MatrixFormat = "float32" | "bfloat16" | "int8" | "nf4";

export type PackedFormat = Exclude<MatrixFormat, "float32">;

/** This many consecutive elements of an int8 or nf4 matrix share a scale. */
export const SCALE_BLOCK = 64;

/** Quantiles of the normal distribution, scaled to [-1, 1]; one of them is 0. */
export const NF4_LEVELS: Float32Array = Float32Array.of(
  ...[-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635],
  ...[-0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725],
  ...[0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941],
  ...[0.7229568362236023, 1],
);

const BITS: Readonly<Record<MatrixFormat, number>> = { float32: 32, bfloat16: 16, int8: 8, nf4: 4 };

/** The shaders' constant FORMAT. */
export const FORMAT: Readonly<Record<PackedFormat, number>> = { bfloat16: 1, int8: 2, nf4: 3 };

const BY_CODE = new Map(Object.entries(FORMAT).map(([name, code]) => [code, name as PackedFormat]));

/** True for the formats whose blocks have scales. */
export function hasScales(format: MatrixFormat): boolean {
  return format === "int8" || format === "nf4";
}

/** Bytes of a matrix's elements: whole words, without its scales. */
export function matrixBytes(format: MatrixFormat, elements: number): number {
  return Math.ceil((elements * BITS[format]) / 32) * 4;
}

/** Bytes of a matrix's scales, one f32 for each block. */
export function scalesBytes(format: MatrixFormat, elements: number): number {
  return hasScales(format) ? Math.ceil(elements / SCALE_BLOCK) * 4 : 0;
}

/** Elements that fit in so many bytes, without their scales. */
export function fittingElements(format: MatrixFormat, bytes: number): number {
  return Math.floor((bytes * 8) / BITS[format]);
}

/** A window of a buffer may start at multiples of this many elements: its bytes and its scales are aligned slices. */
export function alignedElements(format: MatrixFormat): number {
  return hasScales(format) ? (SLICE_ALIGNMENT_BYTES / 4) * SCALE_BLOCK : fittingElements(format, SLICE_ALIGNMENT_BYTES);
}

/** The elements of packed words as numbers, each rounded to f32 as kernels do: the references' reader. @param code of {@link FORMAT} */
export function elementReader(code: number, words: Uint32Array, scales: Float32Array): (at: number) => number {
  const bytes = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  const floats = new Float32Array(1);
  const bits = new Uint32Array(floats.buffer);
  const scaled = (value: number, at: number) => Math.fround(value * scales[Math.floor(at / SCALE_BLOCK)]!);
  const fromBits = (word: number) => {
    bits[0] = word;
    return floats[0]!;
  };
  const readers: Readonly<Record<PackedFormat, (at: number) => number>> = {
    bfloat16: (at) => fromBits((bytes[at * 2]! | (bytes[at * 2 + 1]! << 8)) << 16),
    int8: (at) => scaled((bytes[at]! << 24) >> 24, at),
    nf4: (at) => scaled(NF4_LEVELS[(bytes[at >>> 1]! >> (at % 2 === 0 ? 4 : 0)) & 15]!, at),
  };
  return readers[BY_CODE.get(code)!];
}
