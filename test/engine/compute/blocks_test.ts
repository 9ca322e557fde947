/** Numbers in f16, and the kernels that bring matrices into its range and into blocks. */
import { describe, expect, test } from "vitest";
import type { Buffer, Device } from "../../../src/engine/compute/device.ts";
import {
  blocks,
  blocksBytes,
  elementAt,
  halfAt,
  halves,
  magnitudes,
  magnitudesPacked,
  powersFor,
} from "../../../src/engine/compute/matmul/blocks.ts";
import { FORMAT } from "../../../src/engine/compute/packed.ts";
import { halfBits, halfValue } from "../../../src/leaves/half.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { floats } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

describe("f16", () => {
  test("each of its numbers has its own bits", () => {
    for (let bits = 0; bits < 65_536; bits++)
      if (!Number.isNaN(halfValue(bits))) expect(halfBits(halfValue(bits))).toBe(bits);
  });

  test.each([
    [1, 0x3c00],
    [-2, 0xc000],
    [65_504, 0x7bff],
    [65_520, 0x7c00],
    [Number.POSITIVE_INFINITY, 0x7c00],
    [Number.NaN, 0x7e00],
    [2 ** -24, 1],
    [2 ** -25, 0],
    [1.5 * 2 ** -24, 2],
    // Ties go to the even one.
    [1 + 2 ** -11, 0x3c00],
    [1 + 3 * 2 ** -11, 0x3c02],
  ])("%f has the bits %i", (value, bits) => expect(halfBits(value)).toBe(bits));
});

test.each([
  [1, 2 ** 14],
  [1.99, 2 ** 14],
  [2, 2 ** 13],
  [2 ** 127, 2 ** -113],
  [2 ** -100, 2 ** 114],
  // Inverses of larger powers are no normal numbers.
  [2 ** -140, 2 ** 126],
  [0, 2 ** 126],
  [Number.POSITIVE_INFINITY, 1],
  [Number.NaN, 1],
])("a row whose largest magnitude is %f is multiplied by %f", (largest, power) => {
  const [bits] = new Uint32Array(Float32Array.of(largest).buffer);
  expect(powersFor(bits!)).toEqual({ power, inverse: 1 / power });
});

/** Of f32. */
const LEAST_NORMAL = 2 ** -126;

interface Case {
  readonly rows: number;
  readonly k: number;
  readonly isTransposed: boolean;
}

/** Where elements lie: after a margin, rows or columns further apart than they are long. */
function placeOf({ rows, k, isTransposed }: Case) {
  const stride = (isTransposed ? rows : k) + 3;
  const [row, along_k] = isTransposed ? [1, stride] : [stride, 1];
  return { offset: 5, row, along_k, length: 5 + stride * Math.max(isTransposed ? k : rows, 1) };
}

const CASES = [false, true].flatMap((isTransposed) =>
  [
    [0, 4],
    [4, 0],
    [1, 1],
    [15, 17],
    [17, 255],
    [130, 33],
    [33, 600],
  ].map(([rows, k]) => ({ rows: rows!, k: k!, isTransposed })),
);

overDevices("matrices in blocks", (device) => {
  test.each(CASES)("$rows x $k, transposed: $isTransposed", async (it) => {
    const { rows, k } = it;
    const { length, offset, row, along_k } = placeOf(it);
    const values = floats(length, 1).map((x, i) => x * 10 ** ((i % 60) - 30));
    const element = (r: number, j: number) => values[offset + r * row + j * along_k]!;
    const x = device.upload(values, "x");
    const sizes = device.alloc(rows * 4, "magnitudes");
    const inHalves = device.alloc(blocksBytes(rows, k, { inputs: "f16" }), "halves");
    const inFloats = device.alloc(blocksBytes(rows, k, { inputs: "f32" }), "blocks");
    device.clear(sizes);
    device.dispatch(magnitudes, { buffers: { x, magnitudes: sizes }, params: { rows, k, offset, row, along_k } });
    const params = { m: rows, k, a_offset: offset, a_row: row, a_k: along_k };
    device.dispatch(halves, { buffers: { a: x, magnitudes: sizes, halves: inHalves }, params });
    device.dispatch(blocks, { buffers: { a: x, magnitudes: sizes, blocks: inFloats }, params });
    const [found, words, floatWords] = await readWords(device, [sizes, inHalves, inFloats]);
    const floatsOf = new Float32Array(floatWords!.buffer);
    const largest = Array.from({ length: rows }, (_, r) =>
      Array.from({ length: k }, (_, j) => Math.abs(element(r, j))).reduce((a, b) => Math.max(a, b), 0),
    );
    expect(new Float32Array(found!.buffer)).toEqual(Float32Array.from(largest));
    // In the range of f16, with all of its bits, and zeros around.
    const [filledRows, filledK] = [Math.ceil(rows / 128) * 128, Math.ceil(k / 16) * 16];
    for (let r = 0; r < filledRows; r++)
      for (let j = 0; j < filledK; j++) {
        const at = elementAt(r, j, { k });
        const value = halfAt(words!, at);
        const isInside = r < rows && j < k;
        const expected = isInside ? element(r, j) * powersFor(found![r]!).power : 0;
        // A power of two changes no bit of what stays a normal number; below, devices may flush to zero.
        const flushed = Math.abs(expected) < LEAST_NORMAL ? LEAST_NORMAL : 0;
        if (!(Math.abs(floatsOf[at]! - expected) <= flushed))
          expect.fail(`(${r}, ${j}) is ${floatsOf[at]} in f32, expected ${expected}`);
        if (!isInside && value !== 0) expect.fail(`(${r}, ${j}) is ${value}, and lies outside`);
        if (Math.abs(value - expected) > Math.max(Math.abs(expected) * 2 ** -11, 2 ** -25))
          expect.fail(`(${r}, ${j}) is ${value}, expected ${expected}`);
      }
    device.release(x, sizes, inHalves, inFloats);
  });

  for (const format of PACKED_FORMATS)
    test.each([false, true])(`magnitudes of a matrix in ${format}, transposed: %s`, async (isTransposed) => {
      const it = { rows: 35, k: 300, isTransposed };
      const { length, offset, row, along_k } = placeOf(it);
      const packed = packedElements(format, length, 3);
      const [words, scales] = [device.upload(packed.words, "words"), device.upload(packed.scales, "scales")];
      const sizes = device.alloc(it.rows * 4, "magnitudes");
      device.clear(sizes);
      device.dispatch(magnitudesPacked, {
        buffers: { words, scales, magnitudes: sizes },
        params: { rows: it.rows, k: it.k, offset, row, along_k },
        constants: { FORMAT: FORMAT[format] },
      });
      const [found] = await readWords(device, [sizes]);
      const expected = Float32Array.from({ length: it.rows }, (_, r) =>
        Math.max(...Array.from({ length: it.k }, (_, j) => Math.abs(packed.values[offset + r * row + j * along_k]!))),
      );
      expect(new Float32Array(found!.buffer)).toEqual(expected);
      device.release(words, scales, sizes);
    });

  test("magnitudes join what is there, and NaN is the largest", async () => {
    const x = device.upload(Float32Array.of(1, Number.NaN, Number.POSITIVE_INFINITY, 2, -3, 0.5), "x");
    const sizes = device.upload(new Uint32Array(Float32Array.of(0, 0, 4).buffer), "magnitudes");
    const params = { rows: 3, k: 2, offset: 0, row: 2, along_k: 1 };
    device.dispatch(magnitudes, { buffers: { x, magnitudes: sizes }, params });
    const [found] = await readWords(device, [sizes]);
    expect([...new Float32Array(found!.buffer)]).toEqual([Number.NaN, Number.POSITIVE_INFINITY, 4]);
    device.release(x, sizes);
  });

  test("more than 65,535 blocks of rows", async () => {
    const rows = 16 * 65_535 + 5;
    const x = device.upload(floats(rows, 6), "x");
    const sizes = device.alloc(rows * 4, "magnitudes");
    device.clear(sizes);
    const params = { rows, k: 1, offset: 0, row: 1, along_k: 1 };
    device.dispatch(magnitudes, { buffers: { x, magnitudes: sizes }, params });
    const [found] = await readWords(device, [sizes]);
    const expected = floats(rows, 6).map(Math.abs);
    expect(new Float32Array(found!.buffer).findIndex((value, i) => value !== expected[i])).toBe(-1);
    device.release(x, sizes);
  });
});

async function readWords(device: Device, buffers: readonly Buffer[]) {
  const requests = buffers.map((buffer) => ({ buffer, type: "u32" as const, length: buffer.byteLength / 4 }));
  return (await device.read(requests)) as Uint32Array[];
}
