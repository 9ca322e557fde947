/**
 * Products of many rows on the matrix units of a GPU's subgroups: f16 inputs, f32 sums. A's rows and B's columns are scaled by powers
 * of two, so that what they hold may have any magnitude; what is 2^28 times smaller than the largest of its row loses bits.
 */
import { allocTogether, type Buffer, type Device } from "../device.ts";
import { type Constants, defineKernel } from "../kernel.ts";
import { elementReader, FORMAT, type PackedFormat } from "../packed.ts";
import { halved, halves, halvesBytes, magnitudes, magnitudesPacked, powersFor, readHalves } from "./halves.ts";
import { multiply, PARAMS, type ProductParams } from "./kernels.ts";

const TILE = 128;

const BINDINGS = { a: "read u32", b: "read f32", addend: "read f32", c: "write f32" } as const;
const MAGNITUDES = { row_magnitudes: "read u32", column_magnitudes: "read u32" } as const;

const shared = {
  params: PARAMS,
  grid: ({ m, n }: ProductParams) => [Math.ceil(n / TILE), Math.ceil(m / TILE)] as const,
  work: ({ m, n, k }: ProductParams) => 2 * m * n * k,
  // Of values around 1: each element may be rounded to either neighbour, by at most 2^-10 of itself.
  tolerance: { relative: 2e-3, absolute: 2e-3 },
};

/** C = alpha A B (+ addend), with A from `matmul/halves`. */
export const subgroupMatrix = defineKernel({
  ...shared,
  name: "matmul/subgroup_matrix",
  bindings: { ...BINDINGS, ...MAGNITUDES },
  constants: { B_ALONG_K: 0 },
  reference: ({ b, ...views }, params) => multiplyHalves({ ...views, read: (at) => b[at]! }, params),
});

/** The same for a packed B. */
export const subgroupMatrixPacked = defineKernel({
  ...shared,
  name: "matmul/subgroup_matrix_packed",
  bindings: { ...BINDINGS, b: "read u32", scales: "read f32", ...MAGNITUDES },
  constants: { B_ALONG_K: 0, FORMAT: FORMAT.bfloat16 },
  reference: ({ b, scales, ...views }, params, { FORMAT: format }) =>
    multiplyHalves({ ...views, read: elementReader(format!, b, scales) }, params),
});

interface HalfViews {
  readonly a: Uint32Array;
  readonly addend: Float32Array;
  readonly c: Float32Array;
  readonly row_magnitudes: Uint32Array;
  readonly column_magnitudes: Uint32Array;
  read(at: number): number;
}

/** The product of what both matrices are in f16. Powers of two change no bit. */
function multiplyHalves({ a, addend, c, read, ...views }: HalfViews, params: ProductParams): void {
  const { m, n, k, b_offset, b_k, b_column } = params;
  const rows = new Float32Array(m * k);
  for (let row = 0; row < m; row++) {
    const { inverse } = powersFor(views.row_magnitudes[row]!);
    for (let column = 0; column < k; column++) rows[row * k + column] = readHalves(a, { row, column, k }) * inverse;
  }
  const columns = new Float32Array(k * n);
  for (let i = 0; i < k; i++)
    for (let j = 0; j < n; j++)
      columns[i * n + j] = halved(read(b_offset + i * b_k + j * b_column), views.column_magnitudes[j]!);
  const strides = { a_offset: 0, a_row: k, a_k: 1, b_offset: 0, b_k: n, b_column: 1 };
  multiply({ a: rows, b: columns, addend, c }, { ...params, ...strides }, {});
}

/** A product whose B can be read in vec4 along the axis that it lies on. */
export interface MatrixProduct {
  readonly params: ProductParams;
  readonly buffers: { readonly a: Buffer; readonly b: Buffer; readonly addend: Buffer; readonly c: Buffer };
  /** Of a packed B. */
  readonly format?: PackedFormat | undefined;
  readonly scales?: Buffer | undefined;
}

/** Records the product, with scratch for A in f16: half of its bytes in f32, and what fills it up. */
export function multiplyByMatrices(device: Device, { params, buffers, format, scales }: MatrixProduct): void {
  const { m, n, k } = params;
  const scratch = allocTogether(device, [
    { byteLength: halvesBytes(m, k), label: "rows in f16" },
    { byteLength: m * 4, label: "magnitudes of rows" },
    { byteLength: n * 4, label: "magnitudes of columns" },
  ]);
  const [a, row_magnitudes, column_magnitudes] = scratch as [Buffer, Buffer, Buffer];
  device.clear(row_magnitudes);
  device.clear(column_magnitudes);
  const { a_offset, a_row, a_k, b_offset: offset, b_column: row, b_k: along_k } = params;
  device.dispatch(magnitudes, {
    buffers: { x: buffers.a, magnitudes: row_magnitudes },
    params: { rows: m, k, offset: a_offset, row: a_row, along_k: a_k },
  });
  device.dispatch(halves, {
    buffers: { a: buffers.a, magnitudes: row_magnitudes, halves: a },
    params: { m, k, a_offset, a_row, a_k },
  });
  const ofB = { rows: n, k, offset, row, along_k };
  const bound = { ...buffers, a, row_magnitudes, column_magnitudes };
  const constants: Constants = { B_ALONG_K: along_k === 1 ? 1 : 0 };
  if (format) {
    const packed = { scales: scales ?? buffers.b };
    device.dispatch(magnitudesPacked, {
      buffers: { words: buffers.b, ...packed, magnitudes: column_magnitudes },
      params: ofB,
      constants: { FORMAT: FORMAT[format] },
    });
    device.dispatch(subgroupMatrixPacked, {
      buffers: { ...bound, ...packed },
      params,
      constants: { ...constants, FORMAT: FORMAT[format] },
    });
  } else {
    device.dispatch(magnitudes, { buffers: { x: buffers.b, magnitudes: column_magnitudes }, params: ofB });
    device.dispatch(subgroupMatrix, { buffers: bound, params, constants });
  }
  device.release(...scratch);
}
