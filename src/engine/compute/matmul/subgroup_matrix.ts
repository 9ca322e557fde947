/**
 * Products of many rows on the matrix units of a GPU's subgroups: f16 inputs, or f32 where the GPU has these, and f32 sums. A's rows and
 * B's columns are scaled by powers of two, so that what they hold may have any magnitude; in f16, what is 2^28 times smaller than
 * the largest of its row loses bits.
 */
import { allocTogether, type Buffer, type Device, type DispatchOptions, type MatrixInputs } from "../device.ts";
import { defineKernel } from "../kernel.ts";
import { elementReader, FORMAT, type PackedFormat } from "../packed.ts";
import {
  blocks,
  blocksBytes,
  elementAt,
  halfAt,
  halved,
  halves,
  magnitudes,
  magnitudesPacked,
  powersFor,
} from "./blocks.ts";
import { multiplyReference, PARAMS, type ProductParams } from "./kernels.ts";

const TILE = 128;

const REST = { addend: "read f32", c: "write f32" } as const;
const MAGNITUDES = { row_magnitudes: "read u32", column_magnitudes: "read u32" } as const;
const PLAIN = { b: "read f32", ...REST, ...MAGNITUDES } as const;
const PACKED = { b: "read u32", ...REST, scales: "read f32", ...MAGNITUDES } as const;

const shared = {
  params: PARAMS,
  grid: ({ m, n }: ProductParams) => [Math.ceil(n / TILE), Math.ceil(m / TILE)] as const,
  work: ({ m, n, k }: ProductParams) => 2 * m * n * k,
};
/** Tolerance for values around 1: each element may be rounded to either neighbour, by at most 2^-10 of itself. */
const inHalves = { ...shared, tolerance: { relative: 2e-3, absolute: 2e-3 } };
const inFloats = { ...shared, tolerance: { relative: 2e-5, absolute: 2e-5 } };

/** C = alpha A B (+ addend), with A from `matmul/halves`. */
export const subgroupMatrix = defineKernel({
  ...inHalves,
  name: "matmul/subgroup_matrix",
  bindings: { a: "read u32", ...PLAIN },
  constants: { B_ALONG_K: 0 },
  reference: ({ a, b, ...views }, params) =>
    multiplyBlocks({ ...views, readA: (at) => halfAt(a, at), readB: (at) => b[at]!, rounded: halved }, params),
});

/** The same for a packed B. */
export const subgroupMatrixPacked = defineKernel({
  ...inHalves,
  name: "matmul/subgroup_matrix_packed",
  bindings: { a: "read u32", ...PACKED },
  constants: { B_ALONG_K: 0, FORMAT: FORMAT.bfloat16 },
  reference({ a, b, scales, ...views }, params, { FORMAT: format }) {
    const readB = elementReader(format!, b, scales);
    multiplyBlocks({ ...views, readA: (at) => halfAt(a, at), readB, rounded: halved }, params);
  },
});

/** The same by units that multiply f32, with A from `matmul/blocks`. */
export const subgroupMatrixFloats = defineKernel({
  ...inFloats,
  name: "matmul/subgroup_matrix_f32",
  bindings: { a: "read f32", ...PLAIN },
  constants: { B_ALONG_K: 0 },
  reference: ({ a, b, ...views }, params) =>
    multiplyBlocks({ ...views, readA: (at) => a[at]!, readB: (at) => b[at]!, rounded: (value) => value }, params),
});

/** The same for a packed B. */
export const subgroupMatrixFloatsPacked = defineKernel({
  ...inFloats,
  name: "matmul/subgroup_matrix_f32_packed",
  bindings: { a: "read f32", ...PACKED },
  constants: { B_ALONG_K: 0, FORMAT: FORMAT.bfloat16 },
  reference({ a, b, scales, ...views }, params, { FORMAT: format }) {
    const readB = elementReader(format!, b, scales);
    multiplyBlocks({ ...views, readA: (at) => a[at]!, readB, rounded: (value) => value }, params);
  },
});

interface BlockViews {
  readonly addend: Float32Array;
  readonly c: Float32Array;
  readonly row_magnitudes: Uint32Array;
  readonly column_magnitudes: Uint32Array;
  readA(at: number): number;
  readB(at: number): number;
  /** Returns an element of B in the inputs' type. */
  rounded(value: number, magnitude: number): number;
}

/** The product of what both matrices are in the inputs' type. Powers of two change no bit. */
function multiplyBlocks({ addend, c, readA, readB, rounded, ...views }: BlockViews, params: ProductParams): void {
  const { m, n, k, b_offset, b_k, b_column } = params;
  const rows = new Float32Array(m * k);
  for (let i = 0; i < m; i++) {
    const { inverse } = powersFor(views.row_magnitudes[i]!);
    for (let j = 0; j < k; j++) rows[i * k + j] = readA(elementAt(i, j, { k })) * inverse;
  }
  const columns = new Float32Array(k * n);
  for (let i = 0; i < k; i++)
    for (let j = 0; j < n; j++)
      columns[i * n + j] = rounded(readB(b_offset + i * b_k + j * b_column), views.column_magnitudes[j]!);
  const strides = { a_offset: 0, a_row: k, a_k: 1, b_offset: 0, b_k: n, b_column: 1 };
  multiplyReference({ a: rows, b: columns, addend, c }, { ...params, ...strides }, {});
}

/** A product whose B can be read in vec4 along the axis that it lies on. */
export interface MatrixProduct {
  readonly params: ProductParams;
  readonly buffers: { readonly a: Buffer; readonly b: Buffer; readonly addend: Buffer; readonly c: Buffer };
  /** Format of a packed B. */
  readonly format?: PackedFormat | undefined;
  readonly scales?: Buffer | undefined;
}

/** Returns the types that the device's units multiply. */
export function inputsOf({ info }: Device): MatrixInputs {
  return info.subgroupMatrix?.inputs ?? "f16";
}

/** Records the product, with scratch for A in blocks and for the largest magnitudes of rows and columns. */
export function multiplyByMatrices(
  device: Device,
  { params, buffers, format, scales = buffers.b }: MatrixProduct,
): void {
  const { m, n, k, a_offset, a_row, a_k, b_offset, b_column, b_k } = params;
  const inputs = inputsOf(device);
  const scratch = allocTogether(device, [
    { byteLength: blocksBytes(m, k, { inputs }), label: "rows in blocks" },
    { byteLength: m * 4, label: "magnitudes of rows" },
    { byteLength: n * 4, label: "magnitudes of columns" },
  ]);
  const [a, row_magnitudes, column_magnitudes] = scratch as [Buffer, Buffer, Buffer];
  const ofA = { rows: m, k, offset: a_offset, row: a_row, along_k: a_k };
  findMagnitudes(device, { buffer: buffers.a, into: row_magnitudes, params: ofA });
  const ofB = { rows: n, k, offset: b_offset, row: b_column, along_k: b_k };
  findMagnitudes(device, { buffer: buffers.b, format, scales, into: column_magnitudes, params: ofB });
  const rows = { buffers: { a: buffers.a, magnitudes: row_magnitudes }, params: { m, k, a_offset, a_row, a_k } };
  if (inputs === "f16") device.dispatch(halves, { ...rows, buffers: { ...rows.buffers, halves: a } });
  else device.dispatch(blocks, { ...rows, buffers: { ...rows.buffers, blocks: a } });
  const bound = { ...buffers, a, row_magnitudes, column_magnitudes };
  const options = { buffers: { ...bound, scales }, params, constants: { B_ALONG_K: b_k === 1 ? 1 : 0 } };
  dispatchProduct(device, { ...options, format, inputs });
  device.release(...scratch);
}

interface Product extends DispatchOptions<typeof PACKED & { a: "read f32" }, typeof PARAMS> {
  readonly format: PackedFormat | undefined;
  readonly inputs: MatrixInputs;
}

function dispatchProduct(device: Device, { format, inputs, ...plain }: Product): void {
  if (!format) {
    if (inputs === "f16") device.dispatch(subgroupMatrix, plain);
    else device.dispatch(subgroupMatrixFloats, plain);
    return;
  }
  const packed = { ...plain, constants: { ...plain.constants, FORMAT: FORMAT[format] } };
  if (inputs === "f16") device.dispatch(subgroupMatrixPacked, packed);
  else device.dispatch(subgroupMatrixFloatsPacked, packed);
}

interface Magnitudes {
  readonly buffer: Buffer;
  readonly format?: PackedFormat | undefined;
  readonly scales?: Buffer;
  readonly into: Buffer;
  readonly params: { rows: number; k: number; offset: number; row: number; along_k: number };
}

function findMagnitudes(device: Device, { buffer, format, scales = buffer, into, params }: Magnitudes): void {
  device.clear(into);
  if (format)
    device.dispatch(magnitudesPacked, {
      ...{ buffers: { words: buffer, scales, magnitudes: into }, params, constants: { FORMAT: FORMAT[format] } },
    });
  else device.dispatch(magnitudes, { buffers: { x: buffer, magnitudes: into }, params });
}
