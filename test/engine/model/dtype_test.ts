/** The number types of safetensors, value by value. */
import { expect, test } from "vitest";
import {
  BYTES_OF,
  type DType,
  decodeFloats,
  encodeBf16,
  integerReader,
  setRoundedToOdd,
} from "../../../src/engine/model/dtype.ts";
import { uniform } from "../../fixtures/numbers.ts";

/** The bytes of typed arrays, `offset` bytes into a buffer. */
function bytesAt(offset: number, array: ArrayBufferView): Uint8Array {
  const bytes = new Uint8Array(offset + array.byteLength);
  bytes.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), offset);
  return bytes.subarray(offset);
}

const INTEGERS: readonly [DType, ArrayBufferView, readonly (number | bigint)[]][] = [
  ["I64", BigInt64Array.of(-2n, 2n ** 62n), [-2n, 2n ** 62n]],
  ["U64", BigUint64Array.of(3n, 2n ** 64n - 1n), [3n, 2n ** 64n - 1n]],
  ["I32", Int32Array.of(-2, 2 ** 30), [-2, 2 ** 30]],
  ["U32", Uint32Array.of(3, 2 ** 32 - 1), [3, 2 ** 32 - 1]],
  ["I16", Int16Array.of(-2, 2 ** 14), [-2, 2 ** 14]],
  ["U16", Uint16Array.of(3, 2 ** 16 - 1), [3, 2 ** 16 - 1]],
  ["I8", Int8Array.of(-2, 100), [-2, 100]],
  ["U8", Uint8Array.of(3, 255), [3, 255]],
  ["BOOL", Uint8Array.of(0, 1), [0, 1]],
];

test.each(INTEGERS)("%s is an integer", (dtype, array, values) => {
  for (const offset of [0, 3]) {
    const bytes = bytesAt(offset, array);
    const read = integerReader(bytes, dtype)!;
    expect([read(0), read(1)]).toEqual(values);
    expect(bytes.byteLength / BYTES_OF[dtype]).toBe(2);
    expect(decodeFloats(bytes, dtype)).toBeUndefined();
  }
});

const FLOATS: readonly [DType, ArrayBufferView, readonly number[]][] = [
  ["F64", Float64Array.of(-0.5, 1 / 3), [-0.5, Math.fround(1 / 3)]],
  ["F32", Float32Array.of(-0.5, 1 / 3), [-0.5, Math.fround(1 / 3)]],
  ["BF16", Uint16Array.of(0x3f80, 0xc040, 0x7f80), [1, -3, Number.POSITIVE_INFINITY]],
  // 1, the smallest subnormal, the largest number, -0.5, both infinities, NaN.
  [
    "F16",
    Uint16Array.of(0x3c00, 0x0001, 0x7bff, 0xb800, 0x7c00, 0xfc00, 0x7c01),
    [1, 2 ** -24, 65_504, -0.5, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN],
  ],
];

test.each(FLOATS)("%s is a float", (dtype, array, values) => {
  for (const offset of [0, 3]) {
    const bytes = bytesAt(offset, array);
    expect([...decodeFloats(bytes, dtype)!]).toEqual(values);
    expect(bytes.byteLength / BYTES_OF[dtype]).toBe(values.length);
    expect(integerReader(bytes, dtype)).toBeUndefined();
  }
});

test.each([
  ["a number of 8 bits", 0x3f80_0000, 0x3f80],
  ["below half", 0x3f80_7fff, 0x3f80],
  ["half, down to even", 0x3f80_8000, 0x3f80],
  ["half, up to even", 0x3f81_8000, 0x3f82],
  ["above half", 0x3f80_8001, 0x3f81],
  ["the largest float, to infinity", 0x7f7f_ffff, 0x7f80],
  ["infinity", 0x7f80_0000, 0x7f80],
  ["a NaN of low bits only", 0x7f80_0001, 0x7fc0],
  ["a NaN that would overflow", 0xffff_ffff, 0xffff],
])("bfloat16 rounds %s", (_, word, half) => {
  const floats = new Float32Array(Uint32Array.of(0, word).buffer);
  expect([...encodeBf16(floats.subarray(1))]).toEqual([half]);
});

// 2^-8 is half of the last place of bfloat16 at 1, 2^-32 less than half of that of f32.
test.each([
  ["just above a tie", 1 + 2 ** -8 + 2 ** -32, 1 + 2 ** -7],
  ["just below a tie to even", 1 + 3 * 2 ** -8 - 2 ** -32, 1 + 2 ** -7],
  ["a tie", 1 + 2 ** -8, 1],
  ["above a tie by the last place of f32", 1 + 2 ** -8 + 2 ** -23, 1 + 2 ** -7],
  ["a negative number just beyond a tie", -1 - 2 ** -8 - 2 ** -32, -1 - 2 ** -7],
  ["a number of bfloat16", -1.5, -1.5],
  ["less than the smallest number of f32", -(2 ** -160), -0],
  ["zero", -0, -0],
  ["NaN", Number.NaN, Number.NaN],
  ["beyond f32", 2 ** 128, Number.POSITIVE_INFINITY],
])("%s is rounded to bfloat16 once", (_, value, expected) => {
  // One f32 in front, so that the words of a view are not those of its whole buffer.
  const into = new Float32Array(2).subarray(1);
  setRoundedToOdd(into, Float64Array.of(value));
  expect(decodeFloats(bytesAt(0, encodeBf16(into)), "BF16")).toEqual(Float32Array.of(expected));
});

test("rounding to odd first is rounding once, for sums of numbers of different sizes", () => {
  const random = uniform(3);
  for (let i = 0; i < 20_000; i++) {
    const value = (1 + Math.floor(random() * 256) / 256) * 2 ** -4 + (random() - 0.5) * 2 ** (-10 - 30 * random());
    const into = new Float32Array(1);
    setRoundedToOdd(into, Float64Array.of(value));
    const [found] = decodeFloats(bytesAt(0, encodeBf16(into)), "BF16")!;
    // 2^-12 is half of the last place of bfloat16 in [2^-4, 2^-3).
    expect(Math.abs(found! - value)).toBeLessThanOrEqual(2 ** -12);
  }
});
