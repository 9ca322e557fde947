/**
 * Products of random shapes and magnitudes on emulated matrix units, against float64 within what their inputs' type rounds, and
 * against the bits of other companies. PRODUCT_CASES=10000 runs that many.
 */
import { describe, expect, test } from "vitest";
import { type Device, type MatrixInputs, readFloats } from "../../../src/engine/compute/device.ts";
import { MODE, type ProductParams } from "../../../src/engine/compute/matmul/kernels.ts";
import { matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import { multiplyByMatrices } from "../../../src/engine/compute/matmul/subgroup_matrix.ts";
import { elementReader, FORMAT, hasScales, type PackedFormat } from "../../../src/engine/compute/packed.ts";
import { encodeBf16 } from "../../../src/engine/model/dtype.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { matrixDevice } from "../../fixtures/emulated_matrices.ts";
import { firstDifference, floats, seeds, uniform } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

const CASES = Number(process.env.PRODUCT_CASES ?? 12);
const MOST = 300;
const LARGEST = 3.402_823_5e38;
const LEAST_NORMAL = 2 ** -126;

type Magnitudes = "around 1" | "by line" | "by element" | "denormal";

interface Case {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
  readonly format: PackedFormat | undefined;
  readonly joins: "nothing" | "C" | "addend" | "bias";
  readonly magnitudes: readonly [Magnitudes, Magnitudes];
  /** Elements before each matrix, and between its rows. */
  readonly margin: number;
  readonly inputs: MatrixInputs;
}

function randomCase(seed: number): Case {
  const next = uniform(seed);
  const below = (end: number) => Math.floor(next() * end);
  const magnitudes = () => (["around 1", "by line", "by element", "denormal"] as const)[below(4)]!;
  const [whole, any] = [4 * (1 + below(MOST / 4)), 1 + below(MOST)];
  const transposeB = below(2) === 0;
  return {
    // B lies in whole vec4 along one axis.
    ...{ m: 1 + below(MOST), n: transposeB ? any : whole, k: transposeB ? whole : any },
    ...{ transposeA: below(3) === 0, transposeB },
    format: [undefined, ...PACKED_FORMATS][below(4)],
    joins: (["nothing", "C", "addend", "bias"] as const)[below(4)]!,
    magnitudes: [magnitudes(), magnitudes()],
    margin: 4 * below(3),
    inputs: below(2) === 0 ? "f16" : "f32",
  };
}

/** Values of up to 1e30, down to denormals, with zeros among them. */
function scaledValues(length: number, seed: number, { kind, line }: { kind: Magnitudes; line: number }): Float32Array {
  const next = uniform(seed);
  const exponentOf = (least: number, most: number) => least + next() * (most - least);
  let exponent = 0;
  return floats(length, seed + 1).map((value, i) => {
    if (kind === "by element" || (kind === "by line" && i % line === 0)) exponent = exponentOf(-44, 30);
    if (kind === "denormal") exponent = exponentOf(-45, -37);
    return next() < 0.05 ? 0 : value * 10 ** exponent;
  });
}

/** B as it is stored, and its values. */
function storedValues(format: PackedFormat | undefined, length: number, about: { kind: Magnitudes; line: number }) {
  const values = scaledValues(length, 3, about);
  const packed = packedElements(format ?? "bfloat16", length, 3);
  if (!format) return { words: values, scales: packed.scales, values };
  const { words } = packed;
  if (!hasScales(format)) new Uint16Array(words.buffer).set(encodeBf16(values));
  const scales = hasScales(format)
    ? packed.scales.map((scale, i) => scale * Math.abs(values[(i * 64) % length]!))
    : packed.scales;
  const read = elementReader(FORMAT[format], words, scales);
  return { words, scales, values: Float32Array.from({ length }, (_, i) => read(i)) };
}

describe.skipIf(!gpuDevice?.info.features.includes("shader-f16"))("random products on emulated matrix units", () => {
  test(`${CASES} of them`, { timeout: 7_200_000 }, async () => {
    const devices = {
      f16: await matrixDevice(gpuDevice!, { inputs: "f16" }),
      f32: await matrixDevice(gpuDevice!, { inputs: "f32" }),
    };
    for (const seed of seeds(CASES)) {
      const it = randomCase(seed);
      await runCase(devices[it.inputs], it, `seed ${seed} ${JSON.stringify(it)}`);
    }
  });
});

async function runCase(device: Device, it: Case, what: string): Promise<void> {
  const { m, n, k, transposeA, transposeB, format, joins, margin } = it;
  const [aStride, bStride, cStride] = [(transposeA ? m : k) + margin, (transposeB ? k : n) + margin, n + margin];
  const [aLength, bLength, cLength] = [
    margin + (transposeA ? k : m) * aStride,
    margin + (transposeB ? n : k) * bStride,
    margin + m * cStride,
  ];
  const a = scaledValues(aLength, 1, { kind: it.magnitudes[0], line: aStride });
  const b = storedValues(format, bLength, { kind: it.magnitudes[1], line: bStride });
  const [before, addend] = [floats(cLength, 5), floats(cLength, 6)];
  const [A, B, S, D] = [
    device.upload(a, "a"),
    device.upload(b.words, "b"),
    device.upload(b.scales, "scales"),
    device.upload(addend, "addend"),
  ];
  const strides: Omit<ProductParams, "m"> = {
    ...{ n, k, alpha: 1, a_offset: margin, b_offset: margin, c_offset: margin, c_row: cStride, addend_offset: margin },
    ...(transposeA ? { a_row: 1, a_k: aStride } : { a_row: aStride, a_k: 1 }),
    ...(transposeB ? { b_k: 1, b_column: bStride } : { b_k: bStride, b_column: 1 }),
    addend_row: joins === "bias" ? 0 : cStride,
    mode: { nothing: MODE.write, C: MODE.accumulate, addend: MODE.add, bias: MODE.add }[joins],
  };
  const run = async (multiply: (c: typeof A) => void) => {
    const C = device.upload(before, "c");
    multiply(C);
    const found = await readFloats(device, C, cLength);
    device.release(C);
    return found;
  };
  const direct = (rows: number) =>
    run((c) => {
      const buffers = { a: A, b: B, addend: D, c };
      multiplyByMatrices(device, { params: { ...strides, m: rows }, buffers, format, scales: S });
    });
  const found = await direct(m);
  expectProduct(found, what);
  const fewer = 1 + (m >> 4);
  const end = margin + (fewer - 1) * cStride + n;
  expect(firstDifference(found, await direct(fewer), end), `${what}, ${fewer} rows`).toBe(-1);
  if (m >= 128 && n >= 64 && k >= 64) {
    const chosen = await run((c) =>
      matmul(device, {
        ...{ m, n, k, transposeA, transposeB },
        a: { buffer: A, offset: margin, stride: aStride },
        b: { buffer: B, offset: margin, stride: bStride, format: format ?? "float32", scales: S },
        c: { buffer: c, offset: margin, stride: cStride },
        ...(joins === "C" && { accumulate: true }),
        ...(joins === "addend" && { addend: D }),
        ...(joins === "bias" && { bias: { buffer: D, offset: margin } }),
      }),
    );
    expect(firstDifference(found, chosen), `${what}, as a model records it`).toBe(-1);
  }
  device.release(A, B, S, D);

  function expectProduct(found: Float32Array, what: string): void {
    const { a_row, a_k, b_k, b_column } = strides;
    const [rows, columns] = [
      sizesOf(a, { count: m, k, row: a_row, along_k: a_k, margin }),
      sizesOf(b.values, { count: n, k, row: b_column, along_k: b_k, margin }),
    ];
    // Each input rounded to a neighbour, and sums in any order.
    const relative = (it.inputs === "f16" ? 2 ** -10 * 1.01 : 2 ** -21) + (k + 4) * 2 ** -23;
    // Below the range of the type around the largest of the row, and below that of f32.
    const lost = (largest: number) => Math.max(largest * (it.inputs === "f16" ? 2 ** -39 : 2 ** -140), LEAST_NORMAL);
    for (let i = 0; i < m; i++)
      for (let j = 0; j < n; j++) {
        let [sum, size] = [0, 0];
        for (let q = 0; q < k; q++) {
          const term = a[margin + i * a_row + q * a_k]! * b.values[margin + j * b_column + q * b_k]!;
          sum += term;
          size += Math.abs(term);
        }
        const at = margin + i * cStride + j;
        const joined = { nothing: 0, C: before[at]!, addend: addend[at]!, bias: addend[margin + j]! }[joins];
        const [row, column] = [rows[i]!, columns[j]!];
        const [lostOfA, lostOfB] = [lost(row.largest), lost(column.largest)];
        const bound =
          size * relative +
          (lostOfA * column.sum + lostOfB * row.sum + k * lostOfA * lostOfB) +
          (Math.abs(joined) * 2 ** -22 + 2 * LEAST_NORMAL);
        const expected = sum + joined;
        if (
          Math.abs(expected) + bound < LARGEST
            ? Math.abs(found[at]! - expected) <= bound
            : isBeyond(found[at]!, { expected, bound })
        )
          continue;
        expect.fail(`${what}: (${i}, ${j}) is ${found[at]}, expected ${expected} ± ${bound}`);
      }
    for (let at = 0; at < cLength; at++)
      if (at < margin || (at - margin) % cStride >= n)
        if (found[at] !== before[at]) expect.fail(`${what}: element ${at} lies outside, and is written`);
  }
}

/** Around the limit of f32 either a number or infinity; beyond it infinity of the right sign. */
function isBeyond(value: number, { expected, bound }: { expected: number; bound: number }): boolean {
  if (Number.isNaN(value)) return false;
  return Math.abs(expected) - bound < LARGEST * 1.001 || value === Math.sign(expected) * Number.POSITIVE_INFINITY;
}

interface Lines {
  readonly count: number;
  readonly k: number;
  readonly row: number;
  readonly along_k: number;
  readonly margin: number;
}

/** Of each row, or of each column: the largest magnitude and the sum of all. */
function sizesOf(values: Float32Array, { count, k, row, along_k, margin }: Lines) {
  return Array.from({ length: count }, (_, i) => {
    let [largest, sum] = [0, 0];
    for (let q = 0; q < k; q++) {
      const size = Math.abs(values[margin + i * row + q * along_k]!);
      largest = Math.max(largest, size);
      sum += size;
    }
    return { largest, sum };
  });
}
