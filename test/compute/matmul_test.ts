import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/compute/cpu.ts";
import { type Device, readFloats } from "../../src/compute/device.ts";
import { fusesInput, MATMUL_KERNELS, type MatmulFamily, matmul } from "../../src/compute/matmul.ts";
import { narrowDevice } from "../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../fixtures/devices.ts";
import { expectClose, floats } from "../fixtures/numbers.ts";

const TOLERANCE = MATMUL_KERNELS.any.tolerance;

/** Straight from the definition, in float64. */
function product(
  a: (i: number, k: number) => number,
  b: (k: number, j: number) => number,
  [m, n, k]: number[],
) {
  const c = new Float64Array(m * n);
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) for (let q = 0; q < k; q++) c[i * n + j] += a(i, q) * b(q, j);
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
          (i, q) => (transposeA ? a[q * m + i] : a[i * k + q]),
          (q, j) => (transposeB ? b[j * k + q] : b[q * n + j]),
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
        (i, q) => 0.5 * (transposeA ? a[q * m + i] : a[i * k + q]),
        (q, j) => (transposeB ? b[j * k + q] : b[q * n + j]),
        [m, n, k],
      ).map((x, i) => x + before[i]);
      expectClose(await readFloats(device, C), expected, TOLERANCE, "accumulated");
      expectClose(await readFloats(device, E), expected, TOLERANCE, "added");
      device.release(A, B, C, D, E);
    });
  });

  test("a part of a large matrix is bound, and no more", async () => {
    const [m, n, k, columns] = [5, 8, 6, 40];
    const [a, b] = [floats(m * k, 3), floats(1000 * columns, 4)];
    const [A, B, C] = [device.upload(a, "a"), device.upload(b, "b"), device.alloc(m * n * 4, "c")];
    const offset = 900 * columns + 12;
    matmul(narrowDevice(device, 2048), {
      ...{ m, n, k, a: { buffer: A }, c: { buffer: C } },
      b: { buffer: B, offset, stride: columns },
    });
    const expected = product(
      (i, q) => a[i * k + q],
      (q, j) => b[offset + q * columns + j],
      [m, n, k],
    );
    expectClose(await readFloats(device, C), expected, TOLERANCE);
    device.release(A, B, C);
  });

  for (const m of fusesInput(device) ? [1, 8, 9, 33] : [])
    test(`norm and SwiGLU ride along with ${m} rows`, async () => {
      const [n, k, epsilon] = [36, 20, 1e-3];
      const [x, gateUp, w, b] = [floats(m * k, 1), floats(m * 2 * k, 2), floats(k, 3), floats(k * n, 4)];
      const [X, G, W, B] = [x, gateUp, w, b].map((data) => device.upload(data, "input"));
      const [C, D] = [device.alloc(m * n * 4, "c"), device.alloc(m * n * 4, "d")];
      const shape = { m, n, k, b: { buffer: B } };
      const input = { kind: "rms-norm", weight: W, epsilon } as const;
      matmul(device, { ...shape, a: { buffer: X }, c: { buffer: C }, input });
      const swiglu = { kind: "swiglu" } as const;
      matmul(device, { ...shape, a: { buffer: G, stride: 2 * k }, c: { buffer: D }, input: swiglu });
      const rms = Array.from({ length: m }, (_, i) =>
        Math.sqrt(x.subarray(i * k, (i + 1) * k).reduce((sum, each) => sum + each * each, 0) / k + epsilon),
      );
      const silu = (value: number) => value / (1 + Math.exp(-value));
      const normed = product(
        (i, q) => (x[i * k + q] / rms[i]) * w[q],
        (q, j) => b[q * n + j],
        [m, n, k],
      );
      const gated = product(
        (i, q) => silu(gateUp[i * 2 * k + q]) * gateUp[i * 2 * k + k + q],
        (q, j) => b[q * n + j],
        [m, n, k],
      );
      expectClose(await readFloats(device, C), normed, TOLERANCE, "norm");
      expectClose(await readFloats(device, D), gated, TOLERANCE, "SwiGLU");
      device.release(X, G, W, B, C, D);
    });

  test("a row larger than a binding is refused", () => {
    const buffer = device.alloc(4096 * 4, "row");
    const C = device.alloc(16, "c");
    const options = { m: 1, n: 1, k: 4096, a: { buffer }, b: { buffer }, c: { buffer: C } };
    expect(() => matmul(narrowDevice(device, 4096), options)).toThrow(
      /one binding of this device is smaller than one of its rows: 4096 values, 4096 bytes/,
    );
    device.release(buffer, C);
  });

  test("works inside wider matrices and leaves their other columns alone", async () => {
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
      (i, q) => a[8 + i * 12 + q],
      (q, j) => b[4 + q * 16 + j],
      [m, n, k],
    );
    const expected = new Float32Array(m * 20).fill(7);
    for (let i = 0; i < m; i++) for (let j = 0; j < n; j++) expected[12 + i * 20 + j] = inner[i * n + j];
    expectClose(await readFloats(device, C), expected, TOLERANCE);
    device.release(A, B, C);
  });
});

describe.skipIf(!gpuDevice)("every matmul family against the reference", () => {
  const cpu = new CpuDevice();
  const runnable = (Object.keys(MATMUL_KERNELS) as MatmulFamily[]).filter(
    (family) => !["subgroup", "few"].includes(family) || gpuDevice!.info.subgroupSize === 8,
  );
  for (const family of runnable)
    for (const [m, n, k] of [
      [1, 4, 1],
      [70, 132, 37],
      [100, 64, 200],
    ].map(([m, n, k]) => (family === "few" ? [m, n, Math.ceil(k / 4) * 4] : [m, n, k])))
      test(`${family} ${m} x ${n} x ${k}`, async () => {
        const isByColumns = family === "few";
        const [a, b] = [floats(m * k, 8), floats(k * n, 9)];
        const run = async (device: Device) => {
          const [A, B, C] = [device.upload(a, "a"), device.upload(b, "b"), device.alloc(m * n * 4, "c")];
          const params = {
            m,
            n,
            k,
            a_offset: 0,
            a_row: k,
            a_k: 1,
            b_offset: 0,
            b_k: isByColumns ? 1 : n,
            b_column: isByColumns ? k : 1,
            c_offset: 0,
            c_row: n,
            alpha: 1,
            mode: 0,
            epsilon: 0,
          };
          device.dispatch(MATMUL_KERNELS[family], { buffers: { a: A, b: B, addend: B, c: C }, params });
          return readFloats(device, C);
        };
        expectClose(await run(gpuDevice!), await run(cpu), TOLERANCE);
        expect(gpuDevice!.memory.live).toBeGreaterThan(0);
      });
});
