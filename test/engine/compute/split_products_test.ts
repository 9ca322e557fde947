/** Products with sums along k in parts: the kernel of the parts, their fold, and which products are cut. */
import { describe, expect, test, vi } from "vitest";
import { CountingDevice } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import type { Kernel } from "../../../src/engine/compute/kernel.ts";
import { MATMUL_KERNELS, MODE } from "../../../src/engine/compute/matmul/kernels.ts";
import { matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import type { MatmulOptions } from "../../../src/engine/compute/matmul/product.ts";
import { fold } from "../../../src/engine/compute/matmul/split.ts";
import { FORMAT, type PackedFormat } from "../../../src/engine/compute/packed.ts";
import { changed } from "../../fixtures/changed_device.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { expectClose, firstDifference, floats } from "../../fixtures/numbers.ts";
import { packedElements } from "../../fixtures/packed.ts";

const TOLERANCE = MATMUL_KERNELS.tiled_large.tolerance;
/** Of sums of thousands in f32. */
const LONG_SUMS = { relative: 2e-5, absolute: 2e-4 };
const [M, N] = [36, 68];

const tiled = gpuDevice && changed(gpuDevice, { info: { ...gpuDevice.info, family: "tiled" } });

async function onBoth(run: (device: Device) => Promise<Float32Array>) {
  return { found: await run(gpuDevice!), expected: await run(new CpuDevice()) };
}

describe.skipIf(!gpuDevice)("sums in parts", () => {
  // With parts that are whole, not full and empty, the last of which write zeros.
  test.each([
    [64, 2],
    [20, 3],
    [52, 3],
    [4, 2],
  ])("of %i along k in %i", async (k, parts) => {
    const { found, expected } = await onBoth(async (device) => {
      const [A, B] = [device.upload(floats(M * k, 1), "a"), device.upload(floats(k * N, 2), "b")];
      const C = device.upload(floats(parts * M * N, 3), "c");
      device.dispatch(MATMUL_KERNELS.tiled_large, {
        buffers: { a: A, b: B, addend: B, c: C },
        params: {
          ...{ m: M, n: N, k, alpha: 1, mode: MODE.write, a_offset: 0, a_row: 1, a_k: M, b_offset: 0, b_k: N },
          ...{ b_column: 1, c_offset: 0, c_row: N, addend_offset: 0, addend_row: N },
        },
        constants: { ROWS: 64, PARTS: parts },
      });
      const sums = await readFloats(device, C);
      device.release(A, B, C);
      return sums;
    });
    expectClose(found, expected, TOLERANCE);
  });

  test.each([
    [0, 4, 2, 0],
    [1, 4, 1, 0],
    [1, 4, 3, 1],
    [17, 260, 8, 1],
  ])("are added, %i x %i from %i, accumulated %i", async (rows, width, parts, accumulate) => {
    const { found, expected } = await onBoth(async (device) => {
      const row = width + 4;
      const [sums, c] = [
        device.upload(floats(Math.max(parts * rows * width, 4), 5), "sums"),
        device.upload(floats(4 + rows * row, 6), "c"),
      ];
      const params = { rows, width, parts, c_offset: 4, c_row: row, alpha: -0.5, accumulate };
      device.dispatch(fold, { buffers: { sums, c }, params });
      const result = await readFloats(device, c);
      device.release(sums, c);
      return result;
    });
    expectClose(found, expected, fold.tolerance);
  });
});

interface Product extends Partial<MatmulOptions> {
  readonly k: number;
  readonly packed?: PackedFormat;
}

/** C, which held numbers before. */
async function product(device: Device, { k, packed, ...more }: Product): Promise<Float32Array> {
  const { words, scales } = packedElements(packed ?? "bfloat16", k * N, 2);
  const [A, B, S, C] = [
    device.upload(floats(M * k, 1), "a"),
    device.upload(packed ? words : floats(k * N, 2), "b"),
    device.upload(scales, "scales"),
    device.upload(floats(M * N, 3), "c"),
  ];
  const b = { buffer: B, ...(packed && { format: packed, scales: S }) };
  matmul(device, { m: M, n: N, k, a: { buffer: A }, b, c: { buffer: C }, ...more });
  const result = await readFloats(device, C);
  device.release(A, B, S, C);
  return result;
}

describe.skipIf(!tiled)("a product that may be split", () => {
  test.each<[string, Product]>([
    ["as it is", { k: 4100 }],
    ["with A transposed, of an odd length", { k: 4101, transposeA: true }],
    ["scaled and accumulated", { k: 4100, alpha: 0.5, accumulate: true }],
    ["by bfloat16", { k: 4100, packed: "bfloat16" }],
    ["by nf4", { k: 4160, packed: "nf4" }],
  ])("%s, is close to the reference", async (_, it) => {
    const dispatch = vi.fn<Device["dispatch"]>((kernel, options) => gpuDevice!.dispatch(kernel, options));
    const found = await product(changed(tiled!, { dispatch: dispatch as never }), { ...it, splits: true });
    expect(dispatch.mock.calls.map(([kernel]) => kernel.name).at(-1)).toBe("matmul/fold");
    expectClose(found, await product(new CpuDevice(), it), LONG_SUMS);
  });

  test("has the bits of its parts, added in order", async () => {
    const [k, length] = [4100, 1040];
    const expected = new Float32Array(M * N);
    for (let from = 0; from < k; from += length) {
      const [A, B] = [tiled!.upload(floats(M * k, 1), "a"), tiled!.upload(floats(k * N, 2), "b")];
      const a = { buffer: A, offset: from, stride: k };
      const b = { buffer: B, offset: from * N };
      const sums = await product(tiled!, { k: Math.min(length, k - from), a, b });
      for (const [i, sum] of sums.entries()) expected[i]! += sum;
      tiled!.release(A, B);
    }
    expect(firstDifference(await product(tiled!, { k, splits: true }), expected)).toBe(-1);
  });
});

describe("is cut into parts along k:", () => {
  type Shape = Pick<MatmulOptions, "m" | "n" | "k">;
  function dispatches({ m, n, k }: Shape, more: Partial<MatmulOptions> = {}) {
    const dispatch = vi.fn<(kernel: Kernel, options: { constants?: object }) => void>();
    const device = changed(new CountingDevice(), { dispatch: dispatch as never });
    const [a, b, c] = [m * k, n * k, m * n].map((length) => ({ buffer: device.alloc(length * 4, "matrix") }));
    const { live } = device.memory;
    matmul(device, { m, n, k, a: a!, b: b!, c: c!, splits: true, ...more });
    expect(device.memory.live).toBe(live);
    return dispatch.mock.calls.map(([{ name }, { constants }]) => ({ name, constants }));
  }
  const whole = (ROWS: number) => [{ name: "matmul/tiled_large", constants: { ROWS } }];
  const split = (PARTS: number) => [
    { name: "matmul/tiled_large", constants: { ROWS: 128, PARTS } },
    { name: "matmul/fold", constants: undefined },
  ];
  const head = { m: 1024, n: 896, k: 151_936 };

  test.each<[string, Shape, Partial<MatmulOptions>, object[]]>([
    ["the gradient of an output matrix's inputs", head, {}, split(8)],
    ["into C that it adds to", head, { accumulate: true, alpha: 2 }, split(8)],
    ["of two parts at least", { m: 128, n: 64, k: 2048 }, {}, split(2)],
    ["the gradient of an adapter's factor by 8,192 tokens", { m: 16, n: 896, k: 8192 }, { transposeA: true }, split(8)],
    ["of no more than fill a GPU", { m: 2048, n: 896, k: 151_936 }, {}, split(5)],
    ["not of a short k", { m: 128, n: 64, k: 2044 }, { transposeA: true }, whole(64)],
    ["not where C has many tiles", { m: 2048, n: 1024, k: 151_936 }, {}, whole(128)],
    ["not where it may not", head, { splits: false }, whole(64)],
    ["not where sums continue", head, { continues: true }, whole(64)],
  ])("%s", (_, shape, more, expected) => {
    expect(dispatches(shape, more)).toEqual(expected);
  });

  test("by a packed B too", () => {
    const { m, n, k } = head;
    const device = new CountingDevice();
    const words = device.alloc(n * k * 2, "words");
    const [first] = dispatches({ m, n, k }, { b: { buffer: words, format: "bfloat16" } });
    expect(first).toEqual({
      name: "matmul/tiled_large_packed",
      constants: { ROWS: 128, PARTS: 8, FORMAT: FORMAT.bfloat16 },
    });
  });
});
