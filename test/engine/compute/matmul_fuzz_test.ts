/**
 * Products of random shapes as a GPU takes them, against float64 and against the bits of other tiles and other companies.
 * PRODUCT_CASES=10000 runs that many, FIRST_SEED=501 from that seed on.
 */
import { describe, expect, test } from "vitest";
import { type Buffer, type Device, readFloats, type TileFamily } from "../../../src/engine/compute/device.ts";
import { FEW_ROWS, MATMUL_KERNELS } from "../../../src/engine/compute/matmul/kernels.ts";
import { fuses, matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import type { PackedFormat } from "../../../src/engine/compute/packed.ts";
import { plainRows, rmsNormTiled } from "../../../src/engine/model/kernels/norm.ts";
import { swiglu } from "../../../src/engine/model/kernels/swiglu.ts";
import { changed, narrowDevice } from "../../fixtures/changed_device.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { expectClose, firstDifference, floats, seeds, uniform } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

const CASES = Number(process.env.PRODUCT_CASES ?? 24);
const MOST = 300;
/** In which most of these matrices do not fit. */
const NARROW_BYTES = 2 ** 15;

interface Case {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
  readonly format: PackedFormat | undefined;
  readonly joins: "nothing" | "C" | "addend" | "bias" | "sums";
  /** Elements before each matrix, and between its rows. */
  readonly margin: number;
  readonly isNarrow: boolean;
}

function randomCase(seed: number): Case {
  const next = uniform(seed);
  const below = (end: number) => Math.floor(next() * end);
  // Three in four are whole vec4, which the large tiles take.
  const isOfFours = below(4) > 0;
  const size = () => (isOfFours ? Math.min(4 * (1 + below(MOST / 4)), MOST) : 1 + below(MOST));
  return {
    ...{ m: below(2) === 0 ? 1 + below(MOST) : size(), n: size(), k: size() },
    ...{ transposeA: below(3) === 0, transposeB: below(2) === 0 },
    format: [undefined, undefined, ...PACKED_FORMATS][below(5)],
    joins: (["nothing", "C", "addend", "bias", "sums"] as const)[below(5)]!,
    margin: below(2) === 0 ? 0 : isOfFours ? 4 : 1 + below(5),
    isNarrow: below(4) === 0,
  };
}

function asGpu(device: Device, tile: TileFamily): Device {
  return changed(device, { info: { ...device.info, family: "tiled", tile, subgroupSize: 0 } });
}

describe.skipIf(!gpuDevice)("random products as a GPU takes them", () => {
  test(`${CASES} of them`, { timeout: 7_200_000 }, async () => {
    for (const seed of seeds(CASES)) await runCase(gpuDevice!, randomCase(seed), `seed ${seed}`);
  });

  test(`${CASES} that take over norms and SwiGLU, with the bits of those kernels`, { timeout: 7_200_000 }, async () => {
    for (const seed of seeds(CASES)) await runFused(gpuDevice!, randomCase(seed), `seed ${seed}`);
  });

  test(`${CASES} that take over an adapter's product, with the bits of its own`, { timeout: 7_200_000 }, async () => {
    for (const seed of seeds(CASES)) await runAdapted(gpuDevice!, randomCase(seed), `seed ${seed}`);
  });

  test(`${CASES} of one row by bfloat16 on lanes, with the bits of float32`, { timeout: 7_200_000 }, async () => {
    for (const seed of seeds(CASES)) await runRow(gpuDevice!, randomCase(seed), `seed ${seed}`);
  });
});

async function runCase(device: Device, it: Case, where: string): Promise<void> {
  const what = `${where} ${JSON.stringify(it)}`;
  const { m, n, k, format, margin, joins } = it;
  const a = laidOut({ rows: m, columns: k, isTurned: it.transposeA, margin });
  const b = laidOut({ rows: k, columns: n, isTurned: it.transposeB, margin });
  const c = laidOut({ rows: m, columns: n, isTurned: false, margin });
  const packed = packedElements(format ?? "bfloat16", b.length, 2);
  const values = { a: floats(a.length, 1), b: format ? packed.values : floats(b.length, 2) };
  const [before, addend] = [floats(c.length, 3), floats(c.length, 4)];
  const [A, B, S, D] = [
    device.upload(values.a, "a"),
    device.upload(format ? packed.words : values.b, "b"),
    device.upload(packed.scales, "scales"),
    device.upload(addend, "addend"),
  ];
  const run = async (on: Device, rows: number) => {
    const C = device.upload(before, "c");
    matmul(on, {
      ...{ m: rows, n, k, transposeA: it.transposeA, transposeB: it.transposeB },
      a: { buffer: A, offset: a.offset, stride: a.stride },
      b: { buffer: B, offset: b.offset, stride: b.stride, format: format ?? "float32", scales: S },
      c: { buffer: C, offset: c.offset, stride: c.stride },
      ...(joins === "C" && { accumulate: true }),
      ...(joins === "addend" && { addend: D }),
      ...(joins === "bias" && { bias: { buffer: D, offset: margin } }),
      ...(joins === "sums" && { continues: true }),
    });
    const found = await readFloats(device, C, c.length);
    device.release(C);
    return found;
  };
  const large = asGpu(device, "tiled_large");
  const found = await run(large, m);
  const expected = Float64Array.from(before);
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let q = 0; q < k; q++) sum += values.a[a.at(i, q)]! * values.b[b.at(q, j)]!;
      const at = c.at(i, j);
      const joined = { nothing: 0, addend: addend[at]!, bias: addend[margin + j]!, C: before[at]!, sums: before[at]! };
      expected[at] = sum + joined[joins];
    }
  expectClose(found, expected, MATMUL_KERNELS.any.tolerance, what);
  const same = (other: Float32Array, name: string, end = c.length) =>
    expect(firstDifference(found, other, end), `${what}, ${name}`).toBe(-1);
  same(await run(asGpu(device, "tiled"), m), "small tiles");
  // Parts along k that accumulate add to C one after another.
  if (it.isNarrow && joins !== "C") same(await run(narrowDevice(large, NARROW_BYTES), m), "narrow bindings");
  // A row has its bits in any company, few rows included.
  const fewer = 1 + (m >> 4);
  same(await run(large, fewer), `${fewer} rows`, c.offset + fewer * c.stride - margin);
  device.release(A, B, S, D);
}

/** One row by columns in whole eights, as software adapters take it, by bfloat16 and by its values in float32. */
async function runRow(device: Device, it: Case, where: string): Promise<void> {
  const { n, margin, joins } = it;
  const k = 8 * Math.ceil(it.k / 8);
  const what = `${where} ${JSON.stringify({ n, k, margin, joins })}`;
  const b = laidOut({ rows: k, columns: n, isTurned: true, margin: 8 * margin });
  const packed = packedElements("bfloat16", b.length, 2);
  const [W, V] = [packed.words, packed.values].map((data) => device.upload(data, "b")) as [Buffer, Buffer];
  const [A, D] = [device.upload(floats(k, 1), "a"), device.upload(floats(n, 3), "addend")];
  const run = async (held: { buffer: Buffer; format: "bfloat16" | "float32" }) => {
    const C = device.upload(floats(n, 4), "c");
    matmul(it.isNarrow ? narrowDevice(device, NARROW_BYTES) : device, {
      ...{ m: 1, n, k, transposeB: true, a: { buffer: A }, c: { buffer: C } },
      b: { ...held, offset: b.offset, stride: b.stride },
      ...(joins === "C" && { accumulate: true }),
      ...(joins === "addend" && { addend: D }),
      ...(joins === "bias" && { bias: { buffer: D } }),
      ...(joins === "sums" && { continues: true }),
    });
    const found = await readFloats(device, C, n);
    device.release(C);
    return found;
  };
  const found = await run({ buffer: W, format: "bfloat16" });
  const expected = await run({ buffer: V, format: "float32" });
  expect(firstDifference(found, expected), what).toBe(-1);
  device.release(W, V, A, D);
}

/**
 * Few rows by a weight held by columns, with the norm of the rows, SwiGLU of the sums, or both taken over: against float64 and
 * against the bits of the kernels that they replace.
 */
async function runFused(device: Device, it: Case, where: string): Promise<void> {
  const { format, margin, joins } = it;
  const isGated = it.transposeA || joins === "nothing";
  const isNormed = it.transposeB || !isGated;
  const [m, k, gpu] = [
    1 + (it.m % (joins === "sums" ? FEW_ROWS : 64)),
    4 * Math.ceil(it.k / 4),
    asGpu(device, "tiled_large"),
  ];
  const n = isGated ? 2 * it.n : it.n;
  const what = `${where} ${JSON.stringify({ m, n, k, format, isGated, isNormed })}`;
  const width = isGated ? it.n : n;
  const b = laidOut({ rows: k, columns: n, isTurned: true, margin: 4 * margin });
  const packed = packedElements(format ?? "bfloat16", b.length, 2);
  const [x, normWeight, bias] = [floats(m * k, 1), floats(k, 5), floats(n, 3)];
  const weight = format ? packed.values : floats(b.length, 2);
  const [X, W, D, B, S] = [x, normWeight, bias, format ? packed.words : weight, packed.scales].map((data) =>
    device.upload(data, "input"),
  ) as [Buffer, Buffer, Buffer, Buffer, Buffer];
  const norm = { weightOffset: margin > 0 ? 1 : 0, epsilon: 1e-5 };
  const stored = { buffer: B, offset: b.offset, stride: b.stride, format: format ?? "float32", scales: S } as const;
  const shape = { m, n, k, b: stored, transposeB: true, ...(!isGated && { bias: { buffer: D } }) };
  const C = device.alloc(m * n * 4, "c");
  const A = device.alloc(m * width * 4, "active");
  const N = device.alloc(m * k * 4, "normed");
  for (const part of ["rms_norm_input", "swiglu_output"] as const)
    expect(fuses(gpu, { part, m, n, k }), what).toBe(true);
  // A fused output is not cut along n.
  matmul(it.isNarrow && !isGated ? narrowDevice(gpu, NARROW_BYTES) : gpu, {
    ...shape,
    a: { buffer: X },
    c: { buffer: isGated ? A : C },
    input: isNormed ? { kind: "rms_norm", weight: W, ...norm } : undefined,
    output: isGated ? { kind: "swiglu" } : undefined,
  });
  const fused = await readFloats(device, isGated ? A : C, m * width);
  expectClose(fused, expectedOf(), { relative: 2e-5, absolute: 1e-3 }, what);
  // SwiGLU's own kernel takes whole vec4.
  if (!isGated || width % 4 === 0) expect(firstDifference(fused, await apart()), what).toBe(-1);
  device.release(X, W, D, B, S, C, A, N);

  async function apart(): Promise<Float32Array> {
    if (isNormed)
      device.dispatch(rmsNormTiled, {
        buffers: { x: X, weight: W, y: N, inverseRms: A },
        params: { ...plainRows(m, k), epsilon: norm.epsilon },
        constants: { WEIGHT_OFFSET: norm.weightOffset },
      });
    matmul(gpu, { ...shape, a: { buffer: isNormed ? N : X }, c: { buffer: C } });
    if (isGated) device.dispatch(swiglu, { buffers: { gateUp: C, out: A }, params: { rows: m, width } });
    return readFloats(device, isGated ? A : C, m * width);
  }

  function expectedOf(): Float64Array {
    const expected = new Float64Array(m * width);
    for (let i = 0; i < m; i++) {
      const row = Float64Array.from(x.subarray(i * k, (i + 1) * k));
      const r = 1 / Math.sqrt(row.reduce((sum, value) => sum + value * value, 0) / k + norm.epsilon);
      if (isNormed) for (let q = 0; q < k; q++) row[q]! *= r * (norm.weightOffset + normWeight[q]!);
      const sum = (j: number) => row.reduce((total, value, q) => total + value * weight[b.at(q, j)]!, 0);
      for (let j = 0; j < width; j++) {
        const own = sum(j);
        expected[i * width + j] = isGated ? (own / (1 + Math.exp(-own))) * sum(width + j) : own + bias[j]!;
      }
    }
    return expected;
  }
}

/** Few rows with an adapter's product taken over, after an addend or before a bias, with and without the norm of the rows. */
async function runAdapted(device: Device, it: Case, where: string): Promise<void> {
  const { format, joins, margin } = it;
  const [m, k, gpu] = [
    1 + (it.m % (it.transposeA ? FEW_ROWS : 64)),
    4 * Math.ceil(it.k / 4),
    asGpu(device, "tiled_large"),
  ];
  const n = Math.max(3, it.n);
  const rank = 4 * (1 + (it.m % 5));
  const starts = [0, Math.ceil(n / 3), n - 1].slice(0, 1 + (it.k % 3));
  const what = `${where} ${JSON.stringify({ m, n, k, rank, starts, format, joins })}`;
  const packed = packedElements(format ?? "bfloat16", n * k, 2);
  const [X, W, B, S, L, F, D, N] = [
    ...[floats(m * k, 1), floats(k, 5), format ? packed.words : floats(n * k, 2), packed.scales],
    ...[
      floats(m * rank * starts.length, 6),
      floats(n * rank, 7),
      floats(Math.max(m, n) * n, 3),
      new Float32Array(m * k),
    ],
  ].map((data) => device.upload(data, "input")) as [Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer];
  const [C, R] = [device.alloc(m * n * 4, "c"), device.alloc(m * 4, "inverse rms")];
  const norm = { weightOffset: margin > 0 ? 1 : 0, epsilon: 1e-5 };
  const addend = joins === "addend" || joins === "C" ? D : undefined;
  const bias = joins === "bias" ? { buffer: D } : undefined;
  const [isNormed, scale] = [it.transposeB, 0.3];
  const base = {
    m,
    n,
    k,
    b: { buffer: B, format: format ?? "float32", scales: S },
    transposeB: true,
    addend,
    c: { buffer: C },
  } as const;
  expect(fuses(gpu, { part: "adapter", m, n, k }), what).toBe(true);
  const input = isNormed ? ({ kind: "rms_norm", weight: W, ...norm } as const) : undefined;
  matmul(gpu, { ...base, a: { buffer: X }, bias, input, adapter: { low: L, factor: F, rank, scale, starts } });
  const fused = await readFloats(device, C, m * n);
  device.dispatch(rmsNormTiled, {
    buffers: { x: X, weight: W, y: N, inverseRms: R },
    params: { ...plainRows(m, k), epsilon: norm.epsilon },
    constants: { WEIGHT_OFFSET: norm.weightOffset },
  });
  matmul(gpu, { ...base, a: { buffer: isNormed ? N : X } });
  for (const [i, start] of starts.entries())
    matmul(gpu, {
      ...{ m, n: (starts[i + 1] ?? n) - start, k: rank, transposeB: true, alpha: scale, accumulate: true },
      a: { buffer: L, offset: i * rank, stride: rank * starts.length },
      b: { buffer: F, offset: start * rank },
      c: { buffer: C, offset: start, stride: n },
    });
  const apart = await readFloats(device, C, m * n);
  const added = floats(Math.max(m, n) * n, 3);
  if (bias) for (let at = 0; at < m * n; at++) apart[at] = Math.fround(apart[at]! + added[at % n]!);
  expect(firstDifference(fused, apart), what).toBe(-1);
  device.release(X, W, B, S, L, F, D, N, C, R);
}

/** How a matrix lies in its buffer: with a margin before it and after each row. */
function laidOut(it: { rows: number; columns: number; isTurned: boolean; margin: number }) {
  const { rows, columns, isTurned, margin } = it;
  const stride = (isTurned ? rows : columns) + margin;
  return {
    offset: margin,
    stride,
    length: margin + (isTurned ? columns : rows) * stride,
    at: (row: number, column: number) => margin + (isTurned ? column * stride + row : row * stride + column),
  };
}
