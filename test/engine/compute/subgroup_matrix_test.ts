/**
 * Products on matrix units: the kernels with emulated units against their reference, whose inputs are rounded to f16 as theirs are,
 * and against the product in float64; the shader itself on Dawn's null backend, which compiles and runs nothing.
 */
import { describe, expect, test, vi } from "vitest";
import { CountingDevice, TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { type Device, type DeviceInfo, readFloats } from "../../../src/engine/compute/device.ts";
import type { Kernel } from "../../../src/engine/compute/kernel.ts";
import { MODE } from "../../../src/engine/compute/matmul/kernels.ts";
import { fuses, matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import type { MatmulOptions, Matrix } from "../../../src/engine/compute/matmul/product.ts";
import {
  multiplyByMatrices,
  subgroupMatrix,
  subgroupMatrixFloats,
  subgroupMatrixFloatsPacked,
  subgroupMatrixPacked,
} from "../../../src/engine/compute/matmul/subgroup_matrix.ts";
import { FORMAT, type PackedFormat } from "../../../src/engine/compute/packed.ts";
import { loadShader } from "../../../src/engine/compute/shader.ts";
import { dawnFlags, openDawn } from "../../../src/engine/compute/webgpu/dawn.ts";
import { SUBGROUP_MATRIX } from "../../../src/engine/compute/webgpu/matrix_units.ts";
import { PipelineCache } from "../../../src/engine/compute/webgpu/pipeline.ts";
import { changed, narrowDevice } from "../../fixtures/changed_device.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { matrixDevice } from "../../fixtures/emulated_matrices.ts";
import { expectClose, firstDifference, floats } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

interface Case {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA?: boolean;
  readonly transposeB?: boolean;
  readonly mode?: number;
  readonly format?: PackedFormat | undefined;
}

/** Matrices lie inside larger ones: elements before, after each row, and rows after the last. */
const MARGIN = 4;
/** Both round to the nearest f16 here, so that only the order of the sums differs. */
const TOLERANCE = { relative: 2e-5, absolute: 2e-5 };

/** C, margins included. */
async function product(device: Device, it: Case): Promise<Float32Array> {
  const { m, n, k, transposeA, transposeB, format, mode = MODE.write } = it;
  const [aRow, bRow, cRow] = [(transposeA ? m : k) + MARGIN, (transposeB ? k : n) + MARGIN, n + MARGIN];
  const [aRows, bRows] = transposeA ? [k, transposeB ? n : k] : [m, transposeB ? n : k];
  const packed = packedElements(format ?? "bfloat16", MARGIN + (bRows + MARGIN) * bRow, 2);
  const within = (values: Float32Array, [columns, rows]: [number, number]) =>
    values.map((value, i) => {
      const [row, column] = [Math.floor((i - MARGIN) / (columns + MARGIN)), (i - MARGIN) % (columns + MARGIN)];
      return i >= MARGIN && row < rows && column < columns ? value : Number.NaN;
    });
  const buffers = [
    device.upload(within(floats(MARGIN + (aRows + MARGIN) * aRow, 1), [aRow - MARGIN, aRows]), "a"),
    device.upload(
      format ? packed.words : within(floats(MARGIN + (bRows + MARGIN) * bRow, 2), [bRow - MARGIN, bRows]),
      "b",
    ),
    device.upload(packed.scales, "scales"),
    device.upload(floats(MARGIN + m * cRow, 3), "c"),
    device.upload(floats(MARGIN + m * cRow, 4), "d"),
  ] as const;
  const [a, b, scales, c, addend] = buffers;
  multiplyByMatrices(device, {
    params: {
      ...{ m, n, k, alpha: 0.5, mode, a_offset: MARGIN, b_offset: MARGIN, c_offset: MARGIN, c_row: cRow },
      ...{ addend_offset: MARGIN, addend_row: cRow },
      ...(transposeA ? { a_row: 1, a_k: aRow } : { a_row: aRow, a_k: 1 }),
      ...(transposeB ? { b_k: 1, b_column: bRow } : { b_k: bRow, b_column: 1 }),
    },
    ...{ buffers: { a, b, addend, c }, format, scales },
  });
  const result = await readFloats(device, c, MARGIN + m * cRow);
  device.release(...buffers);
  return result;
}

const emulated = gpuDevice && (await matrixDevice(gpuDevice));
const emulatedFloats = gpuDevice && (await matrixDevice(gpuDevice, { inputs: "f32" }));

async function expectProduct(it: Case, device = emulated!): Promise<void> {
  const cpu = new CpuDevice();
  const info = { ...cpu.info, subgroupMatrix: device.info.subgroupMatrix };
  const expected = await product(changed(cpu, { info }), it);
  expectClose(await product(device, it), expected, TOLERANCE);
}

const ORIENTATIONS: readonly Pick<Case, "transposeA" | "transposeB">[] = [
  { transposeA: false, transposeB: false },
  { transposeA: true, transposeB: false },
  { transposeA: false, transposeB: true },
  { transposeA: true, transposeB: true },
];

describe.skipIf(!gpuDevice?.info.features.includes("shader-f16"))("a product on emulated matrix units", () => {
  describe.each(ORIENTATIONS)("%o", (orientation) => {
    // One quad, the edges of a block, a step, a subgroup's part and a tile, and beyond them.
    test.each([
      [1, 4, 4],
      [16, 32, 16],
      [17, 36, 20],
      [65, 132, 68],
      [128, 128, 64],
      [129, 68, 36],
      [260, 260, 12],
      [0, 4, 4],
    ])("%i x %i x %i", (m, n, k) => expectProduct({ m, n, k, ...orientation }));
  });

  test.each(Object.entries(MODE))("joins its sums to others: %s", async (_, mode) => {
    await expectProduct({ m: 132, n: 68, k: 20, mode, transposeB: true });
  });

  for (const format of PACKED_FORMATS)
    test.each(ORIENTATIONS)(`B in ${format}, %o`, async (orientation) => {
      await expectProduct({ m: 68, n: 132, k: 44, format, ...orientation });
    });

  describe.each(ORIENTATIONS)("in f32, %o", (orientation) => {
    test.each([
      [17, 36, 20],
      [129, 68, 36],
    ])("%i x %i x %i", (m, n, k) => expectProduct({ m, n, k, ...orientation }, emulatedFloats));

    test("B in 4 bits", () => expectProduct({ m: 68, n: 132, k: 44, format: "nf4", ...orientation }, emulatedFloats));
  });

  test("in f32, rows keep their bits", async () => {
    const [m, n, k] = [128, 64, 64];
    const [a, b] = [floats(m * k, 1), floats(n * k, 2)];
    const { subgroupMatrix: _, ...info } = emulatedFloats!.info;
    const inFloats = await multiplied(changed(emulatedFloats!, { info }), { m, n, k, a, b });
    const difference = (found: Float32Array) => Math.hypot(...found.map((x, i) => x - inFloats[i]!));
    expect(difference(await multiplied(emulatedFloats!, { m, n, k, a, b }))).toBeLessThan(1e-4);
    expect(difference(await multiplied(emulated!, { m, n, k, a, b }))).toBeGreaterThan(1e-2);
  });

  // More than one group of row tiles, the last of them not full.
  test("of 1,156 rows in tiles that are taken in groups", () => expectProduct({ m: 1156, n: 132, k: 4 }));

  test.each([false, true])("rows and columns of any magnitude, B transposed: %s", async (transposeB) => {
    const [m, n, k] = [130, 68, 72];
    const a = floats(m * k, 1).map((x, i) => x * 10 ** (((Math.floor(i / k) * 7) % 30) - 20));
    const columnOf = (i: number) => (transposeB ? Math.floor(i / k) : i % n);
    const b = floats(n * k, 2).map((x, i) => x * 10 ** (((columnOf(i) * 5) % 30) - 15));
    const found = await multiplied(emulated!, { m, n, k, a, b, transposeB });
    const bOf = (i: number, j: number) => b[transposeB ? j * k + i : i * n + j]!;
    let worst = 0;
    for (let row = 0; row < m; row++)
      for (let column = 0; column < n; column++) {
        let [sum, size] = [0, 0];
        for (let i = 0; i < k; i++) {
          const term = a[row * k + i]! * bOf(i, column);
          sum += term;
          size += Math.abs(term);
        }
        worst = Math.max(worst, Math.abs(found[row * n + column]! - sum) / size);
      }
    // Two roundings of 2^-11 each, and sums in f32.
    expect(worst).toBeLessThan(2 ** -10 * 1.01);
    expect(worst).toBeGreaterThan(2 ** -14);
  });

  test("NaN and infinity stay in their rows", async () => {
    const [m, n, k] = [128, 64, 64];
    const [a, b] = [floats(m * k, 1), floats(n * k, 2)];
    a[3 * k + 5] = Number.NaN;
    a[4 * k + 6] = Number.POSITIVE_INFINITY;
    const found = await multiplied(emulated!, { m, n, k, a, b });
    const rows = Array.from({ length: m }, (_, row) => found.subarray(row * n, (row + 1) * n));
    expect(rows[3]!.every(Number.isNaN)).toBe(true);
    expect(rows[4]!.some(Number.isFinite)).toBe(false);
    expect(rows.filter((row) => row.every(Number.isFinite))).toHaveLength(m - 2);
  });

  test("a row has the same bits among 128 rows and among 300, and in f32 below", async () => {
    const [n, k] = [68, 100];
    const [a, b] = [floats(300 * k, 1), floats(n * k, 2)];
    const of = (m: number, device = emulated!) => multiplied(device, { m, n, k, a: a.subarray(0, m * k), b });
    const many = await of(300);
    expect(firstDifference(await of(128), many.subarray(0, 128 * n))).toBe(-1);
    const few = await of(127);
    expect(firstDifference(few, many.subarray(0, 127 * n))).toBeGreaterThanOrEqual(0);
    const { subgroupMatrix: _, ...info } = emulated!.info;
    expect(firstDifference(few, (await of(300, changed(emulated!, { info }))).subarray(0, 127 * n))).toBe(-1);
  });

  test("a product whose matrices exceed a binding is cut, and scratch is released", async () => {
    // Parts of 256 and 44 rows.
    const [m, n, k] = [300, 68, 120];
    const [a, b] = [floats(m * k, 1), floats(n * k, 2)];
    const live = gpuDevice!.memory.live;
    const [cut, whole] = [
      await multiplied(narrowDevice(emulated!, 2 ** 17), { m, n, k, a, b }),
      await multiplied(emulated!, { m, n, k, a, b }),
    ];
    expect(firstDifference(cut, whole)).toBe(-1);
    expect(gpuDevice!.memory.live).toBe(live);
  });

  describe("a part with fewer than 64 left is multiplied in f32", () => {
    // Matrices of 128 or 36 x 256 fit the binding, the whole B does not: parts of 128 and 36.
    const [m, long, length, first] = [128, 256, 164, 128];
    const bound = 2 ** 17 + 2 ** 13;
    const inFloats = () => {
      const { subgroupMatrix: _, ...info } = emulated!.info;
      return changed(emulated!, { info });
    };

    test("along n", async () => {
      const it = { m, n: length, k: long, a: floats(m * long, 1), b: floats(length * long, 2), transposeB: true };
      const [cut, units, plain] = [
        await multiplied(narrowDevice(emulated!, bound), it),
        await multiplied(emulated!, it),
        await multiplied(inFloats(), it),
      ];
      const isOfUnits = (i: number) => i % length < first;
      expect(firstDifference(units, plain)).toBeGreaterThanOrEqual(0);
      const expected = units.map((value, i) => (isOfUnits(i) ? value : plain[i]!));
      expect(firstDifference(cut, expected)).toBe(-1);
      expect(firstDifference(cut, units)).toBe(first);
    });

    test("along k, and continues the sums", async () => {
      const [a, b] = [floats(m * length, 1), floats(length * long, 2)];
      const cut = await multiplied(narrowDevice(emulated!, bound), { m, n: long, k: length, a, b });
      const buffers = [emulated!.upload(a, "a"), emulated!.upload(b, "b"), emulated!.alloc(m * long * 4, "c")];
      const [A, B, C] = buffers.map((buffer) => ({ buffer })) as [Matrix, Matrix, Matrix];
      const shared = { m, n: long, c: C };
      matmul(emulated!, { ...shared, k: first, a: { ...A, stride: length }, b: B });
      const rest = { a: { ...A, offset: first, stride: length }, b: { ...B, offset: first * long } };
      matmul(inFloats(), { ...shared, k: length - first, ...rest, continues: true });
      const expected = await readFloats(emulated!, C.buffer);
      emulated!.release(...buffers);
      expect(firstDifference(cut, expected)).toBe(-1);
    });
  });
});

/** A product as a model records it. */
async function multiplied(
  device: Device,
  it: { m: number; n: number; k: number; a: Float32Array; b: Float32Array; transposeB?: boolean },
): Promise<Float32Array> {
  const { m, n, k, transposeB } = it;
  const [a, b] = [device.upload(it.a, "a"), device.upload(it.b, "b")];
  const c = device.alloc(m * n * 4, "c");
  matmul(device, { m, n, k, a: { buffer: a }, b: { buffer: b }, c: { buffer: c }, transposeB });
  const result = await readFloats(device, c, m * n);
  device.release(a, b, c);
  return result;
}

describe("which products take matrix units", () => {
  const info: DeviceInfo = { ...TYPICAL_GPU, subgroupMatrix: { isUsed: true } };
  const names = (options: Omit<MatmulOptions, "a" | "b" | "c"> & { b?: Partial<Matrix> }, about = info) => {
    const dispatch = vi.fn<(kernel: Kernel) => void>();
    const device = changed(new CountingDevice({ info: about }), { dispatch: dispatch as never });
    const buffer = device.alloc(2 ** 24, "all");
    matmul(device, { ...options, a: { buffer }, b: { buffer, ...options.b }, c: { buffer } });
    return dispatch.mock.calls.map(([{ name }]) => name);
  };
  const MATRICES = ["matmul/magnitudes", "matmul/magnitudes", "matmul/halves", "matmul/subgroup_matrix"];
  const shape = { m: 128, n: 64, k: 64 };

  test.each<[string, Partial<MatmulOptions>]>([
    ["of 128 rows", {}],
    ["of the gradient of an input", { transposeB: false }],
    ["of the gradient of a weight", { transposeA: true, m: 130, n: 68 }],
    ["that accumulates", { accumulate: true }],
    ["with rows of any length in A and C", { m: 129, k: 68, transposeB: true }],
  ])("a product %s", (_, more) => {
    expect(names({ ...shape, transposeB: true, ...more })).toEqual(MATRICES);
  });

  test("a product by a packed matrix", () => {
    const packed = MATRICES.map((name, i) => (i % 2 === 1 ? `${name}_packed` : name));
    expect(names({ ...shape, b: { format: "bfloat16" } })).toEqual(packed);
  });

  test("a product by units that multiply f32", () => {
    const about: DeviceInfo = { ...info, subgroupMatrix: { isUsed: true, inputs: "f32" } };
    const inFloats = MATRICES.with(2, "matmul/blocks");
    expect(names({ ...shape, transposeB: true }, about)).toEqual(inFloats.with(3, "matmul/subgroup_matrix_f32"));
    const packed = ["matmul/magnitudes_packed", "matmul/blocks", "matmul/subgroup_matrix_f32_packed"];
    expect(names({ ...shape, b: { format: "bfloat16" } }, about)).toEqual([MATRICES[0], ...packed]);
  });

  test("a product in parts where the blocks of its rows exceed a binding, which its rows do not", () => {
    const limits = { ...info.limits, maxBindingBytes: 256 * 64 * 4 - 4 };
    const about: DeviceInfo = { ...info, limits, subgroupMatrix: { isUsed: true, inputs: "f32" } };
    const part = ["matmul/magnitudes", "matmul/magnitudes", "matmul/blocks", "matmul/subgroup_matrix_f32"];
    expect(names({ ...shape, m: 129, transposeB: true }, about)).toEqual([...part, ...part]);
  });

  test("which take over nothing", () => {
    const gpu = (about: DeviceInfo) => new CountingDevice({ info: about });
    const { subgroupMatrix: _, ...plain } = info;
    for (const part of ["rms_norm_input", "swiglu_output", "adapter"] as const) {
      const taken = (m: number, about: DeviceInfo) => fuses(gpu(about), { part, m, n: 640, k: 64 });
      expect([taken(128, plain), taken(127, plain)]).toEqual([true, true]);
      expect([taken(128, info), taken(127, info)]).toEqual([false, true]);
      // Not one that matrix units do not take.
      expect(fuses(gpu(info), { part, m: 128, n: 640, k: 60 })).toBe(true);
    }
  });

  test.each<[string, Partial<MatmulOptions>]>([
    [
      "the norm of its rows",
      { input: { kind: "rms_norm", weight: undefined as never, weightOffset: 0, epsilon: 1e-6 } },
    ],
    ["SwiGLU of its sums", { output: { kind: "swiglu" } }],
    [
      "an adapter's product",
      { adapter: { low: undefined as never, factor: undefined as never, rank: 4, scale: 1, starts: [0] } },
    ],
  ])("not a product that takes over %s", (_, more) => {
    expect(names({ ...shape, transposeB: true, ...more })).toEqual([expect.stringMatching(/^matmul\/tiled_narrow/)]);
  });

  test.each<[string, Partial<MatmulOptions>, Partial<DeviceInfo>?]>([
    ["of 127 rows", { m: 127 }],
    ["of 60 columns, as an adapter's", { n: 60 }],
    ["of 60 along k", { k: 60 }],
    ["by a B that vec4 do not cover", { k: 66 }],
    ["by a B that vec4 do not cover along n", { n: 66, transposeB: false }],
    ["by a B that begins within a vec4", { b: { offset: 2 } as Matrix }],
    ["on a device that does not use them", {}, { subgroupMatrix: { isUsed: false } }],
    ["on a device that knows of none", {}, { subgroupMatrix: undefined }],
    [
      "whose tile of rows in f16 exceeds a binding",
      {},
      { limits: { ...info.limits, maxBindingBytes: 128 * 64 * 2 - 4 } },
    ],
    [
      "whose tile of rows in f32 exceeds a binding",
      {},
      {
        limits: { ...info.limits, maxBindingBytes: 128 * 64 * 4 - 4 },
        subgroupMatrix: { isUsed: true, inputs: "f32" },
      },
    ],
  ])("not a product %s", (_, more, about = {}) => {
    expect(names({ ...shape, transposeB: true, ...more }, { ...info, ...about }).at(-1)).not.toMatch(/subgroup_matrix/);
  });
});

const nullAdapter = async () => {
  const gpu = await openDawn(dawnFlags({ backend: "null" }, ["allow_unsafe_apis"]));
  return (await gpu?.requestAdapter().catch(() => null)) ?? undefined;
};
const isCompiled = (await nullAdapter())?.features.has(SUBGROUP_MATRIX) === true;
if (!isCompiled) console.warn("SKIPPED: compiling for matrix units, this Dawn has no null backend with them.");

describe.skipIf(!isCompiled)("the shader", () => {
  const compile = async (kernel: object, { constants = {}, edit = (code: string) => code } = {}) => {
    const requiredFeatures = ["shader-f16", "subgroups", SUBGROUP_MATRIX] as const;
    const device = await (await nullAdapter())!.requestDevice({ requiredFeatures });
    expect(device.limits.maxComputeWorkgroupStorageSize).toBe(16_384);
    try {
      const { name, ...rest } = kernel as Kernel;
      const source = edit(await loadShader(name));
      await new PipelineCache(device).get({ name, ...rest, source }, constants).compile();
    } finally {
      device.destroy();
    }
  };

  describe.each([0, 1])("with B_ALONG_K = %i", (B_ALONG_K) => {
    test("compiles for matrix units within WebGPU's least limits", () =>
      compile(subgroupMatrix, { constants: { B_ALONG_K } }));

    test.each(PACKED_FORMATS)("does so for a B in %s", (format) =>
      compile(subgroupMatrixPacked, { constants: { B_ALONG_K, FORMAT: FORMAT[format] } }),
    );

    // More workgroup memory than the null backend has. With one of the two buffers of B they compile to the end.
    test.each<{ readonly name: string }>([subgroupMatrixFloats, subgroupMatrixFloatsPacked])(
      "lacks nothing else for units that multiply f32: $name",
      async (kernel) => {
        await expect(compile(kernel, { constants: { B_ALONG_K } })).rejects.toThrow(/\(24576 bytes\)/);
        const edit = (code: string) => code.replace("array<Element, 2u * TILE>", "array<Element, TILE>");
        await compile(kernel, { constants: { B_ALONG_K }, edit });
      },
    );
  });

  test("does not compile with a mistake in its use of them", async () => {
    const edit = (code: string) => code.replace("result<f32, 16, 16>", "result<f32, 8, 16>");
    await expect(compile(subgroupMatrix, { edit })).rejects.toThrow(
      /^Cannot compile the kernel matmul\/subgroup_matrix/,
    );
  });
});
