import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import {
  INPUT,
  MATMUL_KERNELS,
  type MatmulFamily,
  MODE,
  PACKED_KERNELS,
  type PackedFamily,
} from "../../../src/engine/compute/matmul/kernels.ts";
import { matmul, multipliesByLanes } from "../../../src/engine/compute/matmul/matmul.ts";
import type { MatmulOptions } from "../../../src/engine/compute/matmul/product.ts";
import { FORMAT, type PackedFormat } from "../../../src/engine/compute/packed.ts";
import { swiglu } from "../../../src/engine/model/kernels/swiglu.ts";
import { narrowDevice } from "../../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../../fixtures/devices.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

const TOLERANCE = MATMUL_KERNELS.any.tolerance;

const bitsOf = (values: Float32Array) => new Uint32Array(values.buffer, values.byteOffset, values.length);

/** The definition, in float64. */
function product(a: (i: number, k: number) => number, b: (k: number, j: number) => number, [m, n, k]: number[]) {
  const c = new Float64Array(m! * n!);
  for (let i = 0; i < m!; i++)
    for (let j = 0; j < n!; j++) for (let q = 0; q < k!; q++) c[i * n! + j]! += a(i, q) * b(q, j);
  return c;
}

const SHAPES = [
  [1, 1, 1],
  [1, 4, 3],
  [3, 5, 7],
  [8, 32, 16],
  [9, 36, 9],
  [16, 32, 5],
  [17, 64, 12],
  [1, 33, 20],
  [3, 70, 12],
  [6, 36, 64],
  [33, 36, 9],
  [65, 68, 33],
  [64, 172, 64],
  [129, 64, 1],
  [31, 30, 29],
] as const;

overDevices("matmul", (device) => {
  for (const [m, n, k] of SHAPES)
    for (const [transposeA, transposeB] of [
      [false, false],
      [true, false],
      [false, true],
    ])
      test(`${m} x ${n} x ${k}${transposeA ? ", A transposed" : ""}${transposeB ? ", B transposed" : ""}`, async () => {
        const a = floats(m * k, 1);
        const b = floats(k * n, 2);
        const c = device.alloc(m * n * 4, "c");
        const [A, B] = [device.upload(a, "a"), device.upload(b, "b")];
        matmul(device, {
          m,
          n,
          k,
          a: { buffer: A },
          b: { buffer: B },
          c: { buffer: c },
          transposeA,
          transposeB,
        });
        const expected = product(
          (i, q) => (transposeA ? a[q * m + i]! : a[i * k + q]!),
          (q, j) => (transposeB ? b[j * k + q]! : b[q * n + j]!),
          [m, n, k],
        );
        expectClose(await readFloats(device, c), expected, TOLERANCE);
        device.release(A, B, c);
      });

  describe.each([
    [false, false],
    [true, false],
    [false, true],
  ])("A transposed %s, B transposed %s:", (transposeA, transposeB) => {
    test.each([
      ["", [5, 8, 6], Number.POSITIVE_INFINITY],
      [", of few rows in fours", [5, 8, 8], Number.POSITIVE_INFINITY],
      // Rows of C and of A, and the inner axis or the columns of B, each in several parts.
      [", in parts that fit a binding", [203, 132, 144], 2 ** 15],
    ] as const)("scales, accumulates and adds%s", async (_, [m, n, k], maxBindingBytes) => {
      const [a, b, before] = [floats(m * k, 3), floats(k * n, 4), floats(m * n, 5)];
      const [A, B, D] = [device.upload(a, "a"), device.upload(b, "b"), device.upload(before, "d")];
      const [C, E] = [device.upload(before, "c"), device.alloc(m * n * 4, "e")];
      const shape = { m, n, k, a: { buffer: A }, b: { buffer: B }, transposeA, transposeB, alpha: 0.5 };
      const narrow = narrowDevice(device, maxBindingBytes);
      matmul(narrow, { ...shape, c: { buffer: C }, accumulate: true });
      matmul(narrow, { ...shape, c: { buffer: E }, addend: D });
      const expected = product(
        (i, q) => 0.5 * (transposeA ? a[q * m + i]! : a[i * k + q]!),
        (q, j) => (transposeB ? b[j * k + q]! : b[q * n + j]!),
        [m, n, k],
      ).map((x, i) => x + before[i]!);
      expectClose(await readFloats(device, C), expected, TOLERANCE, "accumulated");
      expectClose(await readFloats(device, E), expected, TOLERANCE, "added");
      device.release(A, B, C, D, E);
    });
  });

  test("only the needed part of a large matrix is bound", async () => {
    const [m, n, k, columns] = [5, 8, 6, 40];
    const [a, b] = [floats(m * k, 3), floats(1000 * columns, 4)];
    const [A, B, C] = [device.upload(a, "a"), device.upload(b, "b"), device.alloc(m * n * 4, "c")];
    const offset = 900 * columns + 12;
    matmul(narrowDevice(device, 2048), {
      ...{ m, n, k, a: { buffer: A }, c: { buffer: C } },
      b: { buffer: B, offset, stride: columns },
    });
    const expected = product(
      (i, q) => a[i * k + q]!,
      (q, j) => b[offset + q * columns + j]!,
      [m, n, k],
    );
    expectClose(await readFloats(device, C), expected, TOLERANCE);
    device.release(A, B, C);
  });

  for (const m of multipliesByLanes(device) ? [1, 8, 9, 33] : [])
    test(`SwiGLU fused with ${m} rows gives the bits of its own kernel`, async () => {
      const [n, k] = [36, 20];
      const [gateUp, b] = [floats(m * 2 * k, 2, 4), floats(k * n, 4)];
      const [G, B] = [gateUp, b].map((data) => device.upload(data, "input"));
      const [C, D, A] = [m * n, m * n, m * k].map((length) => device.alloc(length * 4, "output"));
      const shape = { m, n, k, b: { buffer: B! } };
      const input = { kind: "swiglu" } as const;
      matmul(device, { ...shape, a: { buffer: G!, stride: 2 * k }, c: { buffer: C! }, input });
      device.dispatch(swiglu, { buffers: { gateUp: G!, out: A! }, params: { rows: m, width: k } });
      matmul(device, { ...shape, a: { buffer: A! }, c: { buffer: D! } });
      const silu = (value: number) => value / (1 + Math.exp(-value));
      const gated = product(
        (i, q) => silu(gateUp[i * 2 * k + q]!) * gateUp[i * 2 * k + k + q]!,
        (q, j) => b[q * n + j]!,
        [m, n, k],
      );
      const fused = await readFloats(device, C!, m * n);
      expectClose(fused, gated, TOLERANCE);
      expect(bitsOf(fused)).toEqual(bitsOf(await readFloats(device, D!, m * n)));
      device.release(G!, B!, C!, D!, A!);
    });

  // [m, n] with few rows and many, in vec4s and not; bindings of 4 kB cut along m, n and k.
  test.each([
    [1, 36],
    [8, 33],
    [33, 64],
    [65, 35],
  ])("a bias has the bits of its own addition, except on the cpu, which rounds once: [%i, %i]", async (m, n) => {
    const k = 36;
    const [A, B, V] = [floats(m * k, 1), floats(k * n, 2), floats(4 + n, 3)].map((data) => device.upload(data, "in"));
    const bias = { buffer: V!, offset: 4 };
    const run = async (on: Device, transposeB: boolean, more: Partial<MatmulOptions>) => {
      const C = device.alloc(m * n * 4, "out");
      matmul(on, { m, n, k, a: { buffer: A! }, b: { buffer: B! }, c: { buffer: C }, transposeB, ...more });
      const found = await readFloats(device, C, m * n);
      device.release(C);
      return found;
    };
    for (const transposeB of [false, true]) {
      const added = (await run(device, transposeB, {})).map((sum, at) => sum + floats(4 + n, 3)[4 + (at % n)]!);
      for (const on of [device, narrowDevice(device, 2 ** 12)]) {
        const found = await run(on, transposeB, { bias });
        expectClose(found, added, TOLERANCE);
        if (device.info.kind === "webgpu") expect(bitsOf(found)).toEqual(bitsOf(added));
      }
    }
    device.release(A!, B!, V!);
  });

  // [n, k] and what a binding covers: narrow, wide enough for the kernel of few rows, one column in no vec4.
  test.each([
    [36, 64, 2 ** 12],
    [256, 516, 2 ** 15],
    [33, 20, 2 ** 11],
  ])("a row of C has the same bits in any number of rows, orientation and parts: [%i, %i]", async (n, k, limit) => {
    const most = 70;
    const [a, b, d] = [floats(most * k, 1), floats(n * k, 2), floats(most * n, 3)];
    const turned = Float32Array.from({ length: n * k }, (_, i) => b[(i % k) * n + Math.floor(i / k)]!);
    const [A, B, T, D] = [a, b, turned, d].map((data) => device.upload(data, "input"));
    const bits = async (m: number, it: { transposeB: boolean; addend?: boolean; limit?: number }) => {
      const C = device.upload(floats(m * n, 4), "c");
      matmul(it.limit ? narrowDevice(device, it.limit) : device, {
        ...{ m, n, k, a: { buffer: A! }, b: { buffer: it.transposeB ? T! : B! }, c: { buffer: C } },
        transposeB: it.transposeB,
        addend: it.addend ? D! : undefined,
      });
      const found = bitsOf(await readFloats(device, C, m * n));
      device.release(C);
      return found;
    };
    for (const addend of [false, true]) {
      const whole = await bits(most, { transposeB: false, addend });
      for (const m of [1, 2, 3, 7, 8, 9, 31, 32, 33, 64])
        for (const transposeB of [false, true])
          expect(await bits(m, { transposeB, addend }), `${m} rows`).toEqual(whole.slice(0, m * n));
      // `cpu` rounds to f32 where k is cut.
      if (device.info.kind === "webgpu")
        for (const transposeB of [false, true]) expect(await bits(most, { transposeB, addend, limit })).toEqual(whole);
    }
    device.release(A!, B!, T!, D!);
  });

  // Blocks of 4 rows where columns are no multiple of 4: the last count needs one more than 65,535 of them.
  test.each([0, 262_140, 262_141, 2 * 262_140 + 1])("%i rows of three columns", async (m) => {
    const [n, k] = [3, 2];
    const [a, b] = [floats(m * k, 1), floats(k * n, 2)];
    const [A, B, C] = [device.upload(a, "a"), device.upload(b, "b"), device.upload(new Float32Array(m * n + 1), "c")];
    matmul(device, { m, n, k, a: { buffer: A }, b: { buffer: B }, c: { buffer: C } });
    const expected = product(
      (i, q) => a[i * k + q]!,
      (q, j) => b[q * n + j]!,
      [m, n, k],
    );
    const found = await readFloats(device, C);
    expectClose(found.subarray(0, m * n), expected, TOLERANCE);
    expect(found[m * n]).toBe(0);
    device.release(A, B, C);
  });

  test("a row larger than a binding is an error", () => {
    const buffer = device.alloc(4096 * 4, "row");
    const C = device.alloc(16, "c");
    const options = { m: 1, n: 1, k: 4096, a: { buffer }, b: { buffer }, c: { buffer: C } };
    expect(() => matmul(narrowDevice(device, 4096), options)).toThrow(
      /one of its rows \(4096 values\) exceeds what one binding of this device holds \(4096 bytes\)/,
    );
    device.release(buffer, C);
  });

  test("works inside wider matrices and leaves their other columns unchanged", async () => {
    const [m, n, k] = [9, 8, 4];
    const [a, b] = [floats(m * 12, 6), floats(k * 16, 7)];
    const [A, B, C] = [
      device.upload(a, "a"),
      device.upload(b, "b"),
      device.upload(new Float32Array(m * 20).fill(7), "c"),
    ];
    matmul(device, {
      m,
      n,
      k,
      a: { buffer: A, offset: 8, stride: 12 },
      b: { buffer: B, offset: 4, stride: 16 },
      c: { buffer: C, offset: 12, stride: 20 },
    });
    const inner = product(
      (i, q) => a[8 + i * 12 + q]!,
      (q, j) => b[4 + q * 16 + j]!,
      [m, n, k],
    );
    const expected = new Float32Array(m * 20).fill(7);
    for (let i = 0; i < m; i++) for (let j = 0; j < n; j++) expected[12 + i * 20 + j] = inner[i * n + j]!;
    expectClose(await readFloats(device, C), expected, TOLERANCE);
    device.release(A, B, C);
  });
});

overDevices("what becomes of the sums", (device) => {
  const [m, n, k] = [5, 3, 7];
  const alpha = 0.5;
  // Element by element: what C becomes of the sum of products, of what it held, and of the addend.
  test.each<[keyof typeof MODE, (sum: number, before: number, addend: number) => number]>([
    ["write", (sum) => alpha * sum],
    ["accumulate", (sum, before) => before + alpha * sum],
    ["add", (sum, _, addend) => addend + alpha * sum],
    ["continue", (sum, before) => alpha * (before + sum)],
    ["continueAndAdd", (sum, before, addend) => addend + alpha * (before + sum)],
  ])("%s", async (mode, becomes) => {
    const [a, b, before, addend] = [floats(m * k, 1), floats(k * n, 2), floats(2 + m * 4, 3), floats(2 + m * 4, 4)];
    const [A, B, C, D] = [a, b, before, addend].map((data) => device.upload(data, "input"));
    device.dispatch(MATMUL_KERNELS.any, {
      buffers: { a: A!, b: B!, addend: D!, c: C! },
      params: {
        ...{ m, n, k, a_offset: 0, a_row: k, a_k: 1, b_offset: 0, b_k: n, b_column: 1 },
        // C and the addend have rows of 4 elements, of which the last is not theirs.
        ...{ c_offset: 2, c_row: 4, addend_offset: 2, addend_row: 4, alpha, mode: MODE[mode] },
      },
    });
    const sums = product(
      (i, q) => a[i * k + q]!,
      (q, j) => b[q * n + j]!,
      [m, n, k],
    );
    const expected = before.map((value, at) => {
      const [row, column] = [Math.floor((at - 2) / 4), (at - 2) % 4];
      if (at < 2 || column === 3) return value;
      return becomes(sums[row * n + column]!, value, addend[at]!);
    });
    expectClose(await readFloats(device, C!), expected, TOLERANCE);
    device.release(A!, B!, C!, D!);
  });
});

test("the reference takes silu(gate) up of A's rows, where it is told to", async () => {
  const cpu = new CpuDevice();
  const [m, n, k] = [2, 3, 2];
  // Gate and up, two each, in rows 5 elements apart.
  const a = Float32Array.of(1, -2, 3, 4, 99, 0, 5, -6, 0.5, 99);
  const b = Float32Array.of(1, 2, 3, 4, 5, 6);
  const [A, B, C] = [cpu.upload(a, "a"), cpu.upload(b, "b"), cpu.alloc(m * n * 4, "c")];
  cpu.dispatch(MATMUL_KERNELS.subgroup, {
    buffers: { a: A, b: B, addend: B, c: C },
    params: {
      ...{ m, n, k, a_offset: 0, a_row: 5, a_k: 1, b_offset: 0, b_k: n, b_column: 1 },
      ...{ c_offset: 0, c_row: n, alpha: 1, addend_offset: 0, addend_row: n, mode: MODE.write },
    },
    constants: { INPUT: INPUT.swiglu },
  });
  // silu(1) 3, silu(-2) 4; silu(0) (-6), silu(5) 0.5.
  const active = [2.193175735, -0.953623377, 0, 2.483267877];
  const expected = [0, 1].flatMap((i) => [0, 1, 2].map((j) => active[2 * i]! * b[j]! + active[2 * i + 1]! * b[n + j]!));
  expectClose(await readFloats(cpu, C, m * n), expected, TOLERANCE);
});

describe.skipIf(!gpuDevice)("every matmul family against the reference", () => {
  const cpu = new CpuDevice();
  const ofEightLanes: readonly MatmulFamily[] = ["subgroup", "wide", "columns", "few"];
  const byColumns: readonly MatmulFamily[] = ["columns", "few", "tiled_few", "tiled_narrow"];
  const runnable = (Object.keys(MATMUL_KERNELS) as MatmulFamily[]).filter(
    (family) => !ofEightLanes.includes(family) || gpuDevice!.info.subgroupSize === 8,
  );
  for (const family of runnable)
    for (const [m, n, depth] of [
      [1, 4, 1],
      [70, 132, 37],
      [100, 64, 200],
    ] as const) {
      const isByColumns = byColumns.includes(family);
      const k = isByColumns || family === "tiled_large" ? Math.ceil(depth / 4) * 4 : depth;
      const params = {
        ...{ m, n, k, a_offset: 0, a_row: k, a_k: 1, b_offset: 0, c_offset: 0, c_row: n, alpha: 1, mode: 0 },
        ...{ addend_offset: 0, addend_row: n },
        b_k: isByColumns ? 1 : n,
        b_column: isByColumns ? k : 1,
      };
      const run = async (device: Device, format?: PackedFormat) => {
        const [A, C] = [device.upload(floats(m * k, 8), "a"), device.alloc(m * n * 4, "c")];
        const { words, scales } = packedElements(format ?? "bfloat16", k * n, 9);
        const B = device.upload(format ? words : floats(k * n, 9), "b");
        const S = device.upload(scales, "scales");
        const buffers = { a: A, b: B, addend: B, c: C };
        if (format)
          device.dispatch(PACKED_KERNELS[family as PackedFamily], {
            buffers: { ...buffers, scales: S },
            params,
            constants: { FORMAT: FORMAT[format] },
          });
        else device.dispatch(MATMUL_KERNELS[family], { buffers, params });
        return readFloats(device, C);
      };
      const formats = family in PACKED_KERNELS ? (["float32", ...PACKED_FORMATS] as const) : (["float32"] as const);
      test.each(formats)(`${family} ${m} x ${n} x ${k}, B in %s`, async (format) => {
        const packed = format === "float32" ? undefined : format;
        expectClose(await run(gpuDevice!, packed), await run(cpu, packed), TOLERANCE);
        expect(gpuDevice!.memory.live).toBeGreaterThan(0);
      });
    }
});
