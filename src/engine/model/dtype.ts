/** The number types of safetensors, to and from typed arrays. Bytes are little-endian, as on every WebGPU platform. */
import { halfValue } from "../../leaves/half.ts";

/** Bytes per number. */
export const BYTES_OF = {
  F64: 8,
  F32: 4,
  F16: 2,
  BF16: 2,
  I64: 8,
  I32: 4,
  I16: 2,
  I8: 1,
  U64: 8,
  U32: 4,
  U16: 2,
  U8: 1,
  BOOL: 1,
} as const;
export type DType = keyof typeof BYTES_OF;

/** f32 values of F32, F16, BF16 or F64 bytes; `undefined` for integer types. */
export function decodeFloats(raw: Uint8Array, dtype: DType): Float32Array | undefined {
  const width = BYTES_OF[dtype];
  // A typed array must start at a multiple of its width: other bytes are copied.
  const bytes = raw.byteOffset % width === 0 ? raw : raw.slice();
  const range = [bytes.buffer, bytes.byteOffset, bytes.byteLength / width] as const;
  if (dtype === "F32") return new Float32Array(...range);
  if (dtype === "F64") return Float32Array.from(new Float64Array(...range));
  if (dtype === "BF16") return decodeBf16(new Uint16Array(...range));
  return dtype === "F16" ? decodeHalves(new Uint16Array(...range)) : undefined;
}

function decodeBf16(halves: Uint16Array): Float32Array {
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = halves[i]! << 16;
  return new Float32Array(words.buffer);
}

/** BF16 bits of f32 values, rounded to nearest even; NaN stays NaN. */
export function encodeBf16(floats: Float32Array): Uint16Array {
  const words = new Uint32Array(floats.buffer, floats.byteOffset, floats.length);
  const halves = new Uint16Array(floats.length);
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    const isNan = (word & 0x7fff_ffff) > 0x7f80_0000;
    halves[i] = isNan ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  }
  return halves;
}

/**
 * into = values, rounded to odd: a value between two of f32 becomes the one whose last bit is 1. {@link encodeBf16} then
 * gives what rounding the f64 value once gives, because no such value is a tie of bfloat16. What f32 cannot hold becomes
 * infinite. @see Boldo and Melquiond 2008, Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd
 */
export function setRoundedToOdd(into: Float32Array, values: Float64Array): void {
  into.set(values);
  const words = new Uint32Array(into.buffer, into.byteOffset, into.length);
  for (let i = 0; i < words.length; i++) {
    const [nearest, value] = [into[i]!, values[i]!];
    if (nearest === value || !Number.isFinite(nearest)) continue;
    // Towards 0 first: the bits of a float without its sign are in the order of its size.
    if (Math.abs(nearest) > Math.abs(value)) words[i]!--;
    words[i]! |= 1;
  }
}

function decodeHalves(halves: Uint16Array): Float32Array {
  const table = halfTable();
  const floats = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) floats[i] = table[halves[i]!]!;
  return floats;
}

let halfValues: Float32Array | undefined;

/** Value of each of the 65,536 half-precision bit patterns. */
function halfTable(): Float32Array {
  halfValues ??= Float32Array.from({ length: 65_536 }, (_, bits) => halfValue(bits));
  return halfValues;
}

/** Exact integers, as numbers or above 32 bits as bigints; `undefined` for float types. */
export function integerReader(bytes: Uint8Array, dtype: DType): ((i: number) => number | bigint) | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const readers: Partial<Record<DType, (i: number) => number | bigint>> = {
    I64: (i) => view.getBigInt64(i * 8, true),
    U64: (i) => view.getBigUint64(i * 8, true),
    I32: (i) => view.getInt32(i * 4, true),
    U32: (i) => view.getUint32(i * 4, true),
    I16: (i) => view.getInt16(i * 2, true),
    U16: (i) => view.getUint16(i * 2, true),
    I8: (i) => view.getInt8(i),
    U8: (i) => view.getUint8(i),
    BOOL: (i) => view.getUint8(i),
  };
  return readers[dtype];
}
