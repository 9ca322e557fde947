/** Whether a GPU's matrix units multiply as they should: random matrices, by them and in f32. */
import { UnsupportedError } from "../../../leaves/errors.ts";
import { mulberry32 } from "../../../leaves/random.ts";
import { allocTogether, type Buffer, type Device, type MatrixInputs, readFloats } from "../device.ts";
import { MATMUL_KERNELS, MODE, type ProductParams } from "./kernels.ts";
import { inputsOf, multiplyByMatrices } from "./subgroup_matrix.ts";

/** More than a tile, and no whole number of blocks in any direction. */
const SIZE = { m: 140, n: 148, k: 100 } as const;

/**
 * Largest difference, in units of the norms of a row of A and a column of B. Rounding to f16 gives about 2e-4 for this size; sums in
 * f16, or a block in the wrong place, far more.
 */
export const MOST_DIFFERENCE: Readonly<Record<MatrixInputs, number>> = { f16: 1e-3, f32: 1e-5 };

/**
 * The largest difference between both products, for B along n and along k. Takes two small products each.
 * @throws UnsupportedError above {@link MOST_DIFFERENCE}, and for NaN
 */
export async function checkMatrices(device: Device): Promise<number> {
  let largest = 0;
  for (const transposeB of [false, true]) {
    const difference = await differenceOf(device, transposeB);
    if (!(difference <= MOST_DIFFERENCE[inputsOf(device)])) throw tooFar(device, difference);
    largest = Math.max(largest, difference);
  }
  return largest;
}

function tooFar(device: Device, difference: number): UnsupportedError {
  const { m, n, k } = SIZE;
  const most = MOST_DIFFERENCE[inputsOf(device)];
  return new UnsupportedError(
    `Cannot multiply by subgroup matrices on ${device.info.description}: a product of ${m} x ${n} x ${k} differs from that in float32 by ${difference.toPrecision(3)} of its rows' and columns' norms, and at most ${most} is rounding. Update the driver, or leave device.products at auto.`,
    { part: "compute", capability: "device.products" },
  );
}

async function differenceOf(device: Device, transposeB: boolean): Promise<number> {
  const { m, n, k } = SIZE;
  const a = randomRows({ rows: m, columns: k, seed: 1 });
  const b = randomRows(transposeB ? { rows: n, columns: k, seed: 2 } : { rows: k, columns: n, seed: 2 });
  const bytes = [a.length, b.length, m * n, m * n].map((length, i) => ({
    byteLength: length * 4,
    label: `checked ${i}`,
  }));
  const buffers = allocTogether(device, bytes);
  const [A, B, units, plain] = buffers as [Buffer, Buffer, Buffer, Buffer];
  device.write(A, a);
  device.write(B, b);
  const params: ProductParams = {
    ...{ m, n, k, a_offset: 0, a_row: k, a_k: 1, b_offset: 0, c_offset: 0, c_row: n },
    ...(transposeB ? { b_k: 1, b_column: k } : { b_k: n, b_column: 1 }),
    ...{ alpha: 1, addend_offset: 0, addend_row: n, mode: MODE.write },
  };
  const operands = { a: A, b: B, addend: B };
  multiplyByMatrices(device, { params, buffers: { ...operands, c: units } });
  device.dispatch(MATMUL_KERNELS.tiled, { buffers: { ...operands, c: plain }, params });
  try {
    const found = await readFloats(device, units, m * n);
    return largestDifference(found, await readFloats(device, plain, m * n), {
      rows: norms(a, { count: m, stride: k, step: 1 }),
      columns: norms(b, { count: n, stride: params.b_column, step: params.b_k }),
    });
  } finally {
    device.release(...buffers);
  }
}

/** Rows of different magnitude, as activations and gradients have them. */
function randomRows({ rows, columns, seed }: { rows: number; columns: number; seed: number }): Float32Array {
  const next = mulberry32(seed);
  const scales = Float64Array.from({ length: rows }, () => 2 ** ((next() - 0.5) * 24));
  return Float32Array.from({ length: rows * columns }, (_, i) => (next() * 2 - 1) * scales[Math.floor(i / columns)]!);
}

function norms(values: Float32Array, { count, stride, step }: { count: number; stride: number; step: number }) {
  return Float64Array.from({ length: count }, (_, i) => {
    let sum = 0;
    for (let k = 0; k < SIZE.k; k++) sum += values[i * stride + k * step]! ** 2;
    return Math.sqrt(sum);
  });
}

/** NaN where any difference is. */
function largestDifference(
  found: Float32Array,
  expected: Float32Array,
  { rows, columns }: { rows: Float64Array; columns: Float64Array },
): number {
  let largest = 0;
  for (let i = 0; i < found.length; i++) {
    const scale = rows[Math.floor(i / columns.length)]! * columns[i % columns.length]!;
    const difference = Math.abs(found[i]! - expected[i]!) / scale;
    if (!(difference <= largest)) largest = difference;
    if (Number.isNaN(difference)) break;
  }
  return largest;
}
