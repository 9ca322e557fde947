/** The kernels of products for many rows, for few tiles and for few rows: the bits of `matmul/tiled`, in every orientation, format and mode. */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { MATMUL_KERNELS, MODE, PACKED_KERNELS, type TiledFamily } from "../../../src/engine/compute/matmul/kernels.ts";
import { FORMAT, type PackedFormat } from "../../../src/engine/compute/packed.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { expectClose, firstDifference, floats } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

const TOLERANCE = MATMUL_KERNELS.tiled_large.tolerance;

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

/** C, margins included, by one kernel. */
async function product(device: Device, it: Case, { family = "tiled_large", constants = {} }: By) {
  const { m, n, k, transposeA, transposeB, format, mode = MODE.write } = it;
  const [aRow, bRow, cRow] = [(transposeA ? m : k) + MARGIN, (transposeB ? k : n) + MARGIN, n + MARGIN];
  const [aLength, bLength] = [transposeA ? k : m, transposeB ? n : k].map(
    (rows, i) => MARGIN + (rows + MARGIN) * [aRow, bRow][i]!,
  ) as [number, number];
  const packed = packedElements(format ?? "bfloat16", bLength, 2);
  const [A, B, S, C, D] = [
    device.upload(inside(floats(aLength, 1), { columns: aRow - MARGIN, rows: transposeA ? k : m }), "a"),
    device.upload(
      format ? packed.words : inside(floats(bLength, 2), { columns: bRow - MARGIN, rows: transposeB ? n : k }),
      "b",
    ),
    device.upload(packed.scales, "scales"),
    device.upload(floats(MARGIN + m * cRow, 3), "c"),
    device.upload(floats(MARGIN + m * cRow, 4), "d"),
  ];
  const params = {
    ...{ m, n, k, alpha: 0.5, mode, a_offset: MARGIN, b_offset: MARGIN, c_offset: MARGIN, c_row: cRow },
    ...{ addend_offset: MARGIN, addend_row: cRow },
    ...(transposeA ? { a_row: 1, a_k: aRow } : { a_row: aRow, a_k: 1 }),
    ...(transposeB ? { b_k: 1, b_column: bRow } : { b_k: bRow, b_column: 1 }),
  };
  const buffers = { a: A, b: B, addend: D, c: C };
  if (format)
    device.dispatch(PACKED_KERNELS[family], {
      buffers: { ...buffers, scales: S },
      params,
      constants: { ...constants, FORMAT: FORMAT[format] },
    });
  else device.dispatch(MATMUL_KERNELS[family], { buffers, params, constants });
  const result = await readFloats(device, C, MARGIN + m * cRow);
  device.release(A, B, S, C, D);
  return result;
}

/** The same matrix with NaN around it, which no kernel may multiply by. */
function inside(values: Float32Array, { columns, rows }: { columns: number; rows: number }): Float32Array {
  return values.map((value, i) => {
    const [row, column] = [Math.floor((i - MARGIN) / (columns + MARGIN)), (i - MARGIN) % (columns + MARGIN)];
    return i >= MARGIN && row < rows && column < columns ? value : Number.NaN;
  });
}

/** Every kernel that takes these matrices, against the reference and against the bits of `matmul/tiled`. */
async function expectProduct(it: Case): Promise<void> {
  const cpu = new CpuDevice();
  const reference = await product(cpu, it, {});
  const tiled = await product(gpuDevice!, it, { family: "tiled" });
  for (const by of kernelsFor(it)) {
    const found = await product(gpuDevice!, it, by);
    expectClose(found, reference, TOLERANCE, JSON.stringify(by));
    expect(firstDifference(found, tiled), JSON.stringify(by)).toBe(-1);
  }
}

interface By {
  readonly family?: TiledFamily;
  readonly constants?: Readonly<Record<string, number>>;
}

const ALONG_K: readonly By[] = [
  { family: "tiled_narrow" },
  { family: "tiled_few" },
  { family: "tiled_few", constants: { COLUMNS: 8 } },
  { family: "tiled_few", constants: { COLUMNS: 8, ROWS: 1, STEP: 64 } },
  { family: "tiled_few", constants: { ROWS: 1 } },
];

function kernelsFor({ k, transposeA, transposeB }: Case): By[] {
  const isAlongK = !transposeA && transposeB && k % 4 === 0;
  return [{ constants: { ROWS: 128 } }, { constants: { ROWS: 64 } }, ...(isAlongK ? ALONG_K : [])];
}

const ORIENTATIONS: readonly Pick<Case, "transposeA" | "transposeB">[] = [
  { transposeA: false, transposeB: false },
  { transposeA: true, transposeB: false },
  { transposeA: false, transposeB: true },
  { transposeA: true, transposeB: true },
];

// Mesa's driver in Node computes them; whatever adapter is there must.
describe.skipIf(!gpuDevice)("a product by tiles", () => {
  describe.each(ORIENTATIONS)("%o", (orientation) => {
    // One quad, the edge of a thread, of each tile and of a step, and one quad beyond.
    test.each([
      [4, 4, 4],
      [60, 60, 8],
      [64, 64, 16],
      [68, 68, 12],
      [128, 32, 20],
      [132, 36, 32],
      [260, 132, 36],
      [16, 32, 64],
      [20, 36, 68],
      [256, 128, 0],
    ])("%i x %i x %i", (m, n, k) => expectProduct({ m, n, k, ...orientation }));
  });

  // Along m and n whole vec4 are read at any k, along k at any m.
  test.each([1, 3, 7, 17, 31])("of %i along k, both operands across it", (k) =>
    expectProduct({ m: 36, n: 68, k, transposeA: true }),
  );
  test.each([1, 5, 63, 65, 127, 129])("of %i rows", (m) => expectProduct({ m, n: 36, k: 24, transposeB: true }));

  test.each(Object.entries(MODE))("joins its sums to others: %s", async (_, mode) => {
    await expectProduct({ m: 132, n: 68, k: 20, mode, transposeB: true });
  });

  for (const format of PACKED_FORMATS)
    test.each(ORIENTATIONS)(`B in ${format}, %o`, async (orientation) => {
      await expectProduct({ m: 68, n: 132, k: 44, format, ...orientation });
    });

  // More than one group of row tiles, the last of them not full.
  test.each([512, 516, 1156])("of %i rows in tiles that are taken in groups", (m) => expectProduct({ m, n: 68, k: 4 }));

  // Sums of -0 become 0 where zeros are added to them.
  test.each([4, 8, 12, 16, 20])("-0 after %i products keeps the sign that matmul/tiled gives it", async (k) => {
    const device = gpuDevice!;
    const [m, n] = [4, 4];
    const [A, B] = [
      device.upload(new Float32Array(m * k).fill(-0), "a"),
      device.upload(new Float32Array(k * n).fill(1), "b"),
    ];
    const strides = { a_offset: 0, a_row: k, a_k: 1, b_offset: 0, b_k: 1, b_column: k, c_offset: 0, c_row: n };
    const found: Float32Array[] = [];
    for (const family of ["tiled", "tiled_large", "tiled_narrow", "tiled_few"] as const) {
      const C = device.upload(new Float32Array(m * n).fill(-0), "c");
      device.dispatch(MATMUL_KERNELS[family], {
        buffers: { a: A, b: B, addend: B, c: C },
        params: { m, n, k, alpha: 1, mode: MODE.continue, ...strides, addend_offset: 0, addend_row: n },
      });
      found.push(await readFloats(device, C, m * n));
      device.release(C);
    }
    expect(found.slice(1)).toEqual([found[0], found[0], found[0]]);
    device.release(A, B);
  });
});
