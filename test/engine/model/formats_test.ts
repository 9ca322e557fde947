import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { NF4_LEVELS, SCALE_BLOCK } from "../../../src/engine/compute/packed.ts";
import { packElements, unpackElements } from "../../../src/engine/model/formats/pack.ts";
import { floats } from "../../fixtures/numbers.ts";

/** By test/fixtures/formats/make.py, from bitsandbytes and numpy; bytes as hexadecimal digits. */
const reference = JSON.parse(
  readFileSync(new URL("../../fixtures/formats/reference.json", import.meta.url), "utf8"),
) as Record<"int8" | "nf4", { bytes: string; scales: string; values: string }> & {
  elements: string;
  nf4: { levels: string };
};
const bytesOf = (digits: string) => Uint8Array.from(Buffer.from(digits, "hex"));
const floatsOf = (digits: string) => new Float32Array(bytesOf(digits).buffer);

describe.each(["int8", "nf4"] as const)("%s", (format) => {
  const expected = reference[format];
  const elements = floatsOf(reference.elements);

  test("bytes, scales and values are those of the reference", () => {
    const packed = packElements(format, elements);
    const bytes = new Uint8Array(packed.words.buffer);
    const length = format === "int8" ? elements.length : elements.length / 2;
    expect(bytes.subarray(0, length)).toEqual(bytesOf(expected.bytes));
    expect(packed.scales).toEqual(floatsOf(expected.scales));
    expect(unpackElements(format, packed, elements.length)).toEqual(floatsOf(expected.values));
  });

  /** Of the block's largest magnitude; the formats' own rounding, and that to f32. */
  const worst = format === "int8" ? 0.5 / 127 : (NF4_LEVELS[1]! - NF4_LEVELS[0]!) / 2;
  test.each([0, 1, 63, 64, 65, 1000])("%i elements are off by no more than the format allows", (length) => {
    const values = floats(length, 3, 0.1);
    const got = unpackElements(format, packElements(format, values), length);
    for (let i = 0; i < length; i++) {
      const block = values.subarray(i - (i % SCALE_BLOCK), i - (i % SCALE_BLOCK) + SCALE_BLOCK);
      const most = block.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
      expect(Math.abs(got[i]! - values[i]!)).toBeLessThanOrEqual(most * (worst + 1e-6));
    }
  });

  test("each element has the nearest value of the format", () => {
    const values = floats(SCALE_BLOCK, 9);
    values[0] = 1;
    const codes =
      format === "nf4" ? [...NF4_LEVELS] : Array.from({ length: 255 }, (_, i) => Math.fround(1 / 127) * (i - 127));
    const got = unpackElements(format, packElements(format, values), SCALE_BLOCK);
    for (const [i, value] of values.entries()) {
      const nearest = Math.min(...codes.map((code) => Math.abs(code - value)));
      expect(Math.abs(Math.abs(got[i]! - value) - nearest)).toBeLessThan(1e-7);
    }
  });

  test("packing what was unpacked changes nothing", () => {
    const once = packElements(format, floats(640, 4));
    const again = packElements(format, unpackElements(format, once, 640));
    expect(again.words).toEqual(once.words);
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY])("%f is an error that names its place", (value) => {
    const values = floats(100, 5);
    values[70] = value;
    expect(() => packElements(format, values, "lm_head.weight")).toThrow(
      /Cannot quantize lm_head.weight: element 70 is not finite/,
    );
  });
});

// In units of 2^-149, the smallest number of f32, which a scale is rounded to.
test.each([
  ["a scale that is rounded to 0", [63, -20], 0, [0, 0]],
  ["values beyond 127 of a scale that is rounded down", [190, -190, 64], 1, [127, -127, 64]],
  ["a scale of 2 units", [254, 3, -5, 127], 2, [254, 4, -4, 128]],
])("int8 blocks of denormal numbers: %s", (_, units, scale, kept) => {
  const values = Float32Array.from(units, (unit) => unit * 2 ** -149);
  const packed = packElements("int8", values);
  expect(packed.scales).toEqual(Float32Array.of(scale * 2 ** -149));
  const got = unpackElements("int8", packed, units.length);
  expect(got).toEqual(Float32Array.from(kept, (unit) => unit * 2 ** -149));
});

test("the levels of nf4 are those of bitsandbytes", () => {
  expect(NF4_LEVELS).toEqual(floatsOf(reference.nf4.levels));
});

test("bfloat16: an odd number of elements, rounded to nearest, ties to even", () => {
  const values = Float32Array.of(1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -0.1, Number.NaN);
  const packed = packElements("bfloat16", values);
  expect(packed).toEqual({ words: Uint32Array.of(0x3f80_3f80, 0xbdcd_3f82, 0x7fc0) });
  const expected = Float32Array.of(1, 1, 1 + 2 ** -6, -0.10009765625, Number.NaN);
  expect(unpackElements("bfloat16", packed, 5)).toEqual(expected);
});
