/** Which kernel a product takes on which adapter, and the parts that it is cut into, without computing any of it. */
import { describe, expect, test, vi } from "vitest";
import { CountingDevice, TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import type { DeviceInfo, DispatchOptions } from "../../../src/engine/compute/device.ts";
import type { Kernel } from "../../../src/engine/compute/kernel.ts";
import {
  type FusedPart,
  fuses,
  matmul,
  multipliesByLanes,
  prefersColumns,
  tileColumns,
} from "../../../src/engine/compute/matmul/matmul.ts";
import { bindableParts } from "../../../src/engine/compute/matmul/parts.ts";
import type { MatmulOptions } from "../../../src/engine/compute/matmul/product.ts";
import { FORMAT } from "../../../src/engine/compute/packed.ts";
import { UnsupportedError } from "../../../src/leaves/errors.ts";
import { changed } from "../../fixtures/changed_device.ts";

const INFOS: Readonly<Record<string, DeviceInfo>> = {
  "a GPU": TYPICAL_GPU,
  "a GPU of small tiles": { ...TYPICAL_GPU, tile: "tiled" },
  "a software driver": { ...TYPICAL_GPU, family: "scalar", subgroupSize: 0 },
  "8 lanes": { ...TYPICAL_GPU, family: "scalar", subgroupSize: 8 },
  "the cpu device": { ...TYPICAL_GPU, kind: "cpu", family: "scalar", subgroupSize: 8 },
};

function deviceOf(adapter: string) {
  const dispatch = vi.fn<(kernel: Kernel, options: DispatchOptions<never, never>) => void>();
  const counting = new CountingDevice({ info: INFOS[adapter] });
  return { device: changed(counting, { dispatch: dispatch as never }), dispatch };
}

type Matrices = Pick<MatmulOptions, "a" | "b" | "c">;
type More = (matrices: Matrices) => Partial<MatmulOptions>;
type Shape = readonly [m: number, n: number, k: number];

/** The last dispatch of a product of this shape. */
function dispatched(adapter: string, [m, n, k]: Shape, more: More = () => ({})) {
  const { device, dispatch } = deviceOf(adapter);
  const buffers = { a: device.alloc(2 ** 20, "a"), b: device.alloc(2 ** 20, "b"), c: device.alloc(2 ** 20, "c") };
  const matrices = { a: { buffer: buffers.a }, b: { buffer: buffers.b }, c: { buffer: buffers.c } };
  matmul(device, { m, n, k, ...matrices, ...more(matrices) });
  const [kernel, { params, constants }] = dispatch.mock.calls.at(-1)!;
  return { name: kernel.name, params, constants };
}
const [GPU, SOFTWARE, LANES, CPU] = ["a GPU", "a software driver", "8 lanes", "the cpu device"] as const;
const SMALL_TILES = "a GPU of small tiles";
const turned = () => ({ transposeB: true });
const PACKED = { ROWS: 32, INPUT: 0, FORMAT: FORMAT.bfloat16 };
const NORM = { INPUT: 2, OUTPUT: 0, WEIGHT_OFFSET: 1, EPSILON: 0.5 };
const normed: More = ({ a }) => ({ input: { kind: "rms_norm", weight: a.buffer, weightOffset: 1, epsilon: 0.5 } });

describe("the kernel of a product", () => {
  test.each<[string, Shape, string, object | undefined, More?]>([
    [LANES, [9, 36, 64], "wide", undefined],
    [LANES, [9, 36, 63], "wide", undefined, () => ({ transposeA: true })],
    [LANES, [9, 32, 64], "subgroup", { ROWS: 32, INPUT: 0 }],
    [LANES, [9, 64, 64], "subgroup", { ROWS: 32, INPUT: 0 }, () => ({ continues: true })],
    [LANES, [9, 64, 64], "subgroup", { ROWS: 32, INPUT: 1 }, () => ({ input: { kind: "swiglu" } })],
    [LANES, [9, 64, 64], "subgroup_packed", PACKED, ({ b }) => ({ b: { ...b, format: "bfloat16" } })],
    [LANES, [8, 64, 64], "subgroup", { ROWS: 8, INPUT: 0 }],
    [LANES, [8, 64, 66], "subgroup", { ROWS: 8, INPUT: 0 }],
    [LANES, [8, 64, 64], "subgroup", { ROWS: 8, INPUT: 1 }, () => ({ input: { kind: "swiglu" } })],
    // What is no multiple of 4 is read one by one.
    [LANES, [8, 66, 64], "any", undefined],
    [LANES, [8, 64, 64], "any", undefined, ({ c }) => ({ c: { ...c, offset: 2 } })],
    [LANES, [8, 64, 64], "any", undefined, ({ c }) => ({ c: { ...c, stride: 66 } })],
    [LANES, [8, 64, 64], "any", undefined, ({ b }) => ({ b: { ...b, offset: 2 } })],
    [LANES, [8, 64, 64], "any", undefined, ({ b }) => ({ b: { ...b, stride: 66 } })],
    // B by columns: k lies along both.
    [LANES, [9, 64, 64], "columns", { ROWS: 32 }, turned],
    [LANES, [9, 66, 64], "any", undefined, turned],
    [LANES, [8, 64, 64], "few", { ROWS: 8 }, turned],
    [LANES, [8, 66, 64], "few", { ROWS: 8 }, turned],
    [LANES, [5, 64, 64], "few", { ROWS: 8 }, turned],
    [LANES, [4, 64, 64], "few", { ROWS: 4 }, turned],
    [LANES, [3, 64, 64], "few", { ROWS: 4 }, turned],
    [LANES, [2, 64, 64], "few", { ROWS: 2 }, turned],
    [LANES, [1, 64, 64], "few", { ROWS: 1 }, turned],
    [LANES, [8, 64, 66], "any", undefined, turned],
    [LANES, [8, 64, 64], "any", undefined, ({ a }) => ({ transposeB: true, a: { ...a, offset: 2 } })],
    [LANES, [8, 64, 64], "any", undefined, ({ a }) => ({ transposeB: true, a: { ...a, stride: 66 } })],
    [LANES, [8, 64, 64], "any", undefined, ({ b }) => ({ transposeB: true, b: { ...b, offset: 2 } })],
    [LANES, [8, 64, 64], "any", undefined, ({ b }) => ({ transposeB: true, b: { ...b, stride: 66 } })],
    [LANES, [8, 64, 64], "any", undefined, () => ({ transposeA: true, transposeB: true })],
    [SOFTWARE, [33, 64, 64], "rows", undefined],
    [SOFTWARE, [33, 66, 64], "any", undefined],
    [SOFTWARE, [8, 64, 64], "any", undefined, turned],
    [GPU, [9, 66, 66], "tiled", undefined],
    [GPU, [8, 66, 64], "tiled_few", { COLUMNS: 8, ROWS: 8, STEP: 32 }, turned],
    [GPU, [2, 16 * 255, 64], "tiled_few", { COLUMNS: 8, ROWS: 8, STEP: 32 }, turned],
    [GPU, [2, 16 * 255 + 1, 64], "tiled_few", { COLUMNS: 16, ROWS: 8, STEP: 32 }, turned],
    [GPU, [1, 16 * 255, 64], "tiled_few", { COLUMNS: 8, ROWS: 1, STEP: 64 }, turned],
    [GPU, [1, 16 * 255 + 1, 64], "tiled_few", { COLUMNS: 16, ROWS: 1, STEP: 32 }, turned],
    [GPU, [8, 64, 66], "tiled", undefined, turned],
    [GPU, [9, 66, 64], "tiled_narrow", { OUTPUT: 0 }, turned],
    [GPU, [64, 64 * 255, 64], "tiled_narrow", { OUTPUT: 0 }, turned],
    [GPU, [9, 66, 64], "tiled_narrow", { OUTPUT: 1 }, () => ({ transposeB: true, output: { kind: "swiglu" } })],
    [GPU, [2, 66, 64], "tiled_few", { OUTPUT: 1 }, () => ({ transposeB: true, output: { kind: "swiglu" } })],
    [GPU, [2, 66, 64], "tiled_few_fused", NORM, (at) => ({ transposeB: true, ...normed(at) })],
    [GPU, [9, 66, 64], "tiled_narrow_fused", NORM, (at) => ({ transposeB: true, ...normed(at) })],
    [GPU, [65, 64 * 127 + 64, 64], "tiled_large", { ROWS: 64 }, turned],
    // Whole vec4 along the axis that each matrix lies on; tiles are halved where they would be few.
    [GPU, [64, 64 * 255 + 4, 64], "tiled_large", { ROWS: 128 }, turned],
    [GPU, [8, 64, 64], "tiled_large", { ROWS: 64 }],
    [GPU, [128, 64 * 255, 64], "tiled_large", { ROWS: 64 }],
    [GPU, [128, 64 * 255 + 4, 64], "tiled_large", { ROWS: 128 }],
    [GPU, [129, 64 * 127 + 4, 64], "tiled_large", { ROWS: 128 }],
    [GPU, [9, 64, 66], "tiled", undefined],
    [GPU, [12, 64, 66], "tiled_large", { ROWS: 64 }, () => ({ transposeA: true })],
    [GPU, [10, 64, 64], "tiled", undefined, () => ({ transposeA: true })],
    [GPU, [64, 64 * 256 + 2, 64], "tiled", undefined, turned],
    [GPU, [9, 64, 64], "tiled", undefined, ({ a }) => ({ a: { ...a, offset: 2 } })],
    [GPU, [9, 64, 64], "tiled", undefined, ({ a }) => ({ a: { ...a, stride: 66 } })],
    [GPU, [9, 64, 64], "tiled", undefined, ({ b }) => ({ b: { ...b, offset: 2 } })],
    [GPU, [9, 64, 64], "tiled", undefined, ({ b }) => ({ b: { ...b, stride: 66 } })],
    [GPU, [9, 64, 64], "tiled", undefined, ({ c }) => ({ c: { ...c, offset: 2 } })],
    [GPU, [9, 64, 64], "tiled", undefined, ({ c }) => ({ c: { ...c, stride: 66 } })],
    [SMALL_TILES, [9, 64, 64], "tiled", undefined],
    [SMALL_TILES, [9, 64, 64], "tiled", undefined, turned],
    [CPU, [3, 5, 7], "subgroup", { ROWS: 8, INPUT: 0 }],
  ])("on %s of %j is %s %o", (adapter, shape, family, constants, more) => {
    expect(dispatched(adapter, shape, more)).toMatchObject({ name: `matmul/${family}`, constants });
  });

  test("reads its matrices by offsets and strides", () => {
    const plain = dispatched(GPU, [2, 5, 7]);
    expect(plain.params).toEqual({
      ...{ m: 2, n: 5, k: 7, alpha: 1, mode: 0 },
      ...{
        a_offset: 0,
        a_row: 7,
        a_k: 1,
        b_offset: 0,
        b_k: 5,
        b_column: 1,
        c_offset: 0,
        c_row: 5,
        addend_offset: 0,
        addend_row: 5,
      },
    });
    const inside = dispatched(GPU, [2, 5, 7], ({ a, b, c }) => ({
      ...{ a: { ...a, offset: 1 }, b: { ...b, offset: 2 }, c: { ...c, offset: 3, stride: 11 } },
      ...{ transposeA: true, transposeB: true, alpha: 0.5 },
    }));
    expect(inside.params).toEqual({
      ...{ m: 2, n: 5, k: 7, alpha: 0.5, mode: 0 },
      ...{
        a_offset: 1,
        a_row: 1,
        a_k: 2,
        b_offset: 2,
        b_k: 1,
        b_column: 7,
        c_offset: 3,
        c_row: 11,
        addend_offset: 3,
        addend_row: 11,
      },
    });
  });

  test.each<[Partial<MatmulOptions>, boolean, number]>([
    [{}, false, 0],
    [{ accumulate: true }, false, 1],
    [{}, true, 2],
    [{ continues: true }, false, 3],
    [{ continues: true }, true, 4],
  ])("joins its sums to others by a mode: %o, with an addend %s: %i", (more, adds, mode) => {
    const options: More = ({ a }) => ({ ...more, addend: adds ? a.buffer : undefined });
    expect(dispatched(GPU, [2, 5, 7], options).params).toMatchObject({ mode });
  });

  test.each<[string, Shape, FusedPart, boolean]>([
    [GPU, [1, 6, 4], "swiglu_output", true],
    [GPU, [8, 6, 4], "rms_norm_input", true],
    [GPU, [64, 64 * 255, 64], "rms_norm_input", true],
    [GPU, [64, 64 * 255, 64], "swiglu_output", true],
    [GPU, [64, 64 * 255 + 4, 64], "rms_norm_input", false],
    [GPU, [8, 6, 6], "swiglu_output", false],
    [GPU, [8, 6, 4], "swiglu_input", false],
    [SMALL_TILES, [8, 6, 4], "rms_norm_input", true],
    [SMALL_TILES, [9, 6, 4], "rms_norm_input", false],
    [SOFTWARE, [8, 8, 4], "swiglu_input", false],
    [LANES, [8, 8, 4], "swiglu_input", true],
    [LANES, [33, 8, 4], "swiglu_input", true],
    [LANES, [8, 256, 512], "swiglu_input", false],
    [LANES, [8, 8, 4], "swiglu_output", false],
    [LANES, [8, 8, 4], "rms_norm_input", false],
    [CPU, [8, 8, 4], "swiglu_input", false],
    [GPU, [64, 64 * 255, 64], "adapter", true],
    [LANES, [8, 8, 4], "adapter", false],
    [CPU, [8, 8, 4], "rms_norm_input", false],
  ])("on %s %o fuses %s: %s", (adapter, [m, n, k], part, isFused) => {
    expect(fuses(deviceOf(adapter).device, { part, m, n, k })).toBe(isFused);
  });

  test("only software adapters with eight lanes multiply by them", () => {
    const found = [GPU, SOFTWARE, LANES, CPU].map((adapter) => multipliesByLanes(deviceOf(adapter).device));
    expect(found).toEqual([false, false, true, false]);
  });

  test.each<[string, Shape, More]>([
    [GPU, [2, 8, 4], () => ({ transposeB: true, input: { kind: "swiglu" } })],
    [GPU, [2, 8, 4], () => ({ output: { kind: "swiglu" } })],
    [LANES, [2, 6, 4], () => ({ input: { kind: "swiglu" } })],
    [LANES, [2, 8, 4], () => ({ output: { kind: "swiglu" } })],
    [LANES, [2, 8, 4], normed],
    [GPU, [2, 8, 4], normed],
  ])("what the kernel does not take over is an error: %s, %o", (adapter, [m, n, k], more) => {
    const kind = more === normed ? "rms_norm" : "swiglu";
    expect(() => dispatched(adapter, [m, n, k], more)).toThrow(
      `Cannot fuse ${kind} into a product: this device or its shape does not allow it (${m} x ${n} x ${k}). Ask fuses first.`,
    );
  });
});

test.each<[string, Shape, boolean]>([
  [LANES, [8, 256, 512], true],
  [LANES, [9, 256, 512], false],
  [LANES, [8, 255, 512], false],
  [LANES, [8, 512, 514], false],
  [GPU, [8, 256, 512], false],
])("B is wanted by columns on %s for %j: %s", (adapter, [m, n, k], wanted) => {
  expect(prefersColumns(deviceOf(adapter).device, { m, n, k })).toBe(wanted);
});

test.each([
  [GPU, 64],
  [SOFTWARE, 64],
  [LANES, 32],
])("columns of a tile on %s: %i", (adapter, columns) => {
  expect(tileColumns(deviceOf(adapter).device)).toBe(columns);
});

describe("the parts of a product", () => {
  // 8,192 floats.
  const LIMIT = 2 ** 15;
  const device = new CountingDevice();
  const product = ([m, n, k]: Shape, more: Partial<MatmulOptions> = {}): MatmulOptions => ({
    ...{ m, n, k, a: { buffer: device.alloc(m * k * 4, "a") } },
    ...{ b: { buffer: device.alloc(k * n * 4, "b") }, c: { buffer: device.alloc(m * n * 4, "c") } },
    ...more,
  });
  /** The first element of a matrix in its whole buffer. */
  const start = ({ buffer, offset = 0 }: MatmulOptions["a"]) => buffer.byteOffset / 4 + offset;

  test("that fits is itself", () => {
    const whole = product([32, 256, 32]);
    expect(whole.c.buffer.byteLength).toBe(LIMIT);
    expect(bindableParts(whole, LIMIT)[0]).toBe(whole);
  });

  test.each<[string, Shape, Partial<MatmulOptions>, "m" | "n" | "k", number[], [a: number, b: number, c: number]]>([
    // Whole tiles of 64 rows where that many fit; elements from a part to the next, by matrix.
    ["rows of C", [300, 50, 4], {}, "m", [128, 128, 44], [4, 0, 50]],
    ["wide rows of C", [100, 200, 4], {}, "m", [40, 40, 20], [4, 0, 200]],
    ["rows of A", [300, 4, 50], {}, "m", [128, 128, 44], [50, 0, 4]],
    ["columns of A, turned", [50, 4, 300], { transposeA: true }, "k", [128, 128, 44], [50, 4, 0]],
    ["rows of B", [4, 50, 300], {}, "k", [128, 128, 44], [1, 50, 0]],
    ["columns of B, turned", [4, 300, 50], { transposeB: true }, "n", [128, 128, 44], [0, 50, 1]],
  ])("%s of %j", (_, shape, more, axis, sizes, [a, b, c]) => {
    const parts = bindableParts(product(shape, more), LIMIT);
    expect(parts.map((part) => part[axis])).toEqual(sizes);
    let from = 0;
    for (const part of parts) {
      expect([part.a, part.b, part.c].map(start)).toEqual([from * a, from * b, from * c]);
      for (const { buffer } of [part.a, part.b, part.c]) expect(buffer.byteLength).toBeLessThanOrEqual(LIMIT);
      from += part[axis];
    }
  });

  test("binds no more scales than there are, where a matrix lies in a longer buffer", () => {
    const b = { buffer: device.alloc(LIMIT, "b"), format: "int8", scales: device.alloc(4 * 4, "scales") } as const;
    const parts = bindableParts(product([300, 4, 50], { b }), LIMIT);
    expect(parts.map((part) => part.b.scales?.byteLength)).toEqual([16, 16, 16]);
  });

  const D = device.alloc(800, "d");
  test.each<[string, Partial<MatmulOptions>, object[]]>([
    ["continue the sums", {}, [{ continues: false }, { continues: true }, { continues: true }]],
    ["add to sums that are continued", { continues: true }, Array(3).fill({ continues: true, addend: undefined })],
    [
      "add the addend last",
      { addend: D },
      [{ addend: undefined }, { addend: undefined }, { continues: true, addend: D }],
    ],
    [
      "with an alpha add the addend first, and then to C",
      { addend: D, alpha: 2 },
      [
        { accumulate: false, addend: D },
        { accumulate: true, addend: undefined },
        { accumulate: true, addend: undefined },
      ],
    ],
    ["accumulate all", { accumulate: true }, Array(3).fill({ accumulate: true, addend: undefined })],
  ])("along k %s", (_, more, expected) => {
    const parts = bindableParts(product([4, 50, 300], more), LIMIT);
    expect(
      parts.map(({ continues = false, accumulate = false, addend }) => ({ continues, accumulate, addend })),
    ).toMatchObject(expected);
  });

  test("a row that no binding holds, and an input that would be cut along k, are refused", () => {
    // A slice may begin up to 63 elements before its row.
    const parts = bindableParts(product([1, 8192 - 64, 3]), LIMIT);
    expect(parts.map(({ k }) => k)).toEqual([1, 1, 1]);
    const wide = () => bindableParts(product([1, 8192 - 63, 3]), LIMIT);
    expect(wide).toThrow(UnsupportedError);
    expect(wide).toThrow(
      expect.objectContaining({ part: "device", capability: "maxStorageBufferBindingSize" }) as Error,
    );
    const fused = () => bindableParts(product([4, 50, 300], { input: { kind: "swiglu" } }), LIMIT);
    expect(fused).toThrow("Cannot fuse swiglu into a product: one binding does not hold its k (300). Multiply without");
  });
});
