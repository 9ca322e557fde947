/**
 * C = alpha A B (+ addend) in the orientations a transformer needs, by the kernel that suits the adapter.
 *
 * Measured (docs/log/2026-11-20-matmul-on-lavapipe.md): software drivers issue each storage load lane by lane and pay for
 * every barrier, so their kernels hold large register tiles and share loads by subgroup broadcast; GPUs stage tiles in
 * workgroup memory.
 */
import type { Device } from "../device.ts";
import type { Constants } from "../kernel.ts";
import { FORMAT, hasScales, type PackedFormat } from "../packed.ts";
import { blocksBytes } from "./blocks.ts";
import {
  FEW_ROWS,
  type FewTiledFamily,
  FUSED_KERNELS,
  FUSED_PACKED_KERNELS,
  type FusedParams,
  INPUT,
  MATMUL_KERNELS,
  type MatmulFamily,
  MODE,
  OUTPUT,
  PACKED_KERNELS,
  type PackedFamily,
  type ProductParams,
  ROW_BFLOAT16,
  TILES,
} from "./kernels.ts";
import { bindableParts, cutRowsOfC } from "./parts.ts";
import { type MatmulOptions, packedFormat, widthOfA, widthOfC } from "./product.ts";
import { multiplyInParts, partsAlongK } from "./split.ts";
import { inputsOf, multiplyByMatrices } from "./subgroup_matrix.ts";
import { multiplyUnpacked } from "./unpack.ts";

/** True on software adapters whose products share what they read among the lanes of a subgroup. */
export function multipliesByLanes(device: Device): boolean {
  return device.info.kind === "webgpu" && matmulFamily(device) === "subgroup";
}

/** A kernel before or after a product that the product may take over. */
export type FusedPart = "swiglu_input" | "rms_norm_input" | "swiglu_output" | "adapter";

/**
 * True where the product of a weight [n, k] by m rows takes over such a kernel and is faster by it: in decoding, where that
 * saves a dispatch. Lanes of software adapters read SwiGLU's input; GPUs take over the rest for few rows;
 * products on matrix units take over nothing.
 */
export function fuses(device: Device, { part, m, n, k }: FusedShape): boolean {
  if (device.info.kind !== "webgpu") return false;
  const shape = heldByColumns({ m, n, k });
  if (part !== "swiglu_input") return isFewTiled(familyFor(device, shape)) && !takesMatrices(device, shape);
  return multipliesByLanes(device) && !prefersColumns(device, { m, n, k });
}

export interface FusedShape {
  readonly part: FusedPart;
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

function heldByColumns({ m, n, k }: { m: number; n: number; k: number }): ProductShape {
  const offsets = { a_offset: 0, b_offset: 0, c_offset: 0, addend_offset: 0 };
  return { m, n, k, ...offsets, a_row: k, a_k: 1, b_k: 1, b_column: k, c_row: n };
}

/**
 * Records one matrix product. Sums run over k in f32, first to last, for every m, n and kernel: a row of C has the same
 * bits whatever other rows are computed with it. On matrix units (`device.products=subgroup_matrix`) that holds from 128 rows on:
 * fewer rows are multiplied in f32.
 * Costs 2mnk floating-point operations. A zero m or n does nothing; a zero k gives zeros (or the addend).
 * Matrices larger than one binding are computed in parts, {@link bindableParts}.
 */
export function matmul(device: Device, options: MatmulOptions): void {
  checkFormats(options);
  for (const part of bindableParts(options, device.info.limits.maxBindingBytes)) {
    if (isOnUnits(device, part, { rows: options.m })) multiplyOnUnits(device, part);
    else multiplyBound(device, part);
  }
}

function checkFormats({ a, b, c }: MatmulOptions): void {
  for (const matrix of [a, c])
    if (packedFormat(matrix))
      throw new RangeError(
        `Cannot multiply: ${matrix.buffer.label} is ${matrix.format}, and only B may be packed. Unpack it.`,
      );
  if (b.format && hasScales(b.format) && !b.scales)
    throw new RangeError(`Cannot multiply by ${b.buffer.label}: ${b.format} needs scales. Pass \`scales\`.`);
}

/** @param rows of the whole product: a part with few of them multiplies as the others do */
function isOnUnits(device: Device, part: MatmulOptions, { rows }: { rows: number }): boolean {
  if (!device.info.subgroupMatrix?.isUsed || isFused(part)) return false;
  return takesMatrices(device, { ...paramsOf(part), m: rows });
}

function multiplyOnUnits(device: Device, options: MatmulOptions): void {
  const { b } = options;
  for (const part of cutRowsOfC(options, rowsInBlocks(device, options.k)))
    multiplyByMatrices(device, {
      params: paramsOf(part),
      buffers: boundBuffers(part),
      format: packedFormat(b),
      scales: b.scales,
    });
}

function multiplyBound(device: Device, options: MatmulOptions): void {
  const { b, input, adapter } = options;
  const params = paramsOf(options);
  const format = packedFormat(b);
  const family = widened(familyFor(device, params), options);
  if (format && !isPackedFamily(family)) {
    multiplyUnpacked(device, options, { format, multiply: (part) => multiplyBound(device, part) });
    return;
  }
  checkFused(options, family);
  const buffers = boundBuffers(options);
  const parts = family === "tiled_large" && isSplit(options, params) ? partsAlongK(device, params) : 1;
  if (parts > 1) {
    multiplyInParts(device, { params, buffers, format, parts });
    return;
  }
  const constants = CONSTANTS[family]?.(options);
  const packedConstants = format && { ...constants, FORMAT: FORMAT[format] };
  if (isFewTiled(family) && (input || adapter)) {
    const fused = {
      buffers: Object.assign(buffers, fusedBuffers(options)),
      params: Object.assign(params, adapterParams(options)),
      constants: { ...constants, ...packedConstants, ...normConstants(input) },
    };
    if (format) device.dispatch(FUSED_PACKED_KERNELS[family], fused);
    else device.dispatch(FUSED_KERNELS[family], fused);
    return;
  }
  if (family === "few" && isRowOfEights(params, format)) device.dispatch(ROW_BFLOAT16, { buffers, params });
  else if (format && isPackedFamily(family))
    device.dispatch(PACKED_KERNELS[family], { buffers, params, constants: packedConstants });
  else device.dispatch(MATMUL_KERNELS[family], { buffers, params, constants });
}

/** True where {@link ROW_BFLOAT16} multiplies what `few` would. */
function isRowOfEights({ m, k, b_offset, b_column }: ProductParams, format: PackedFormat | undefined): boolean {
  return m === 1 && format === "bfloat16" && [k, b_offset, b_column].every((x) => x % 8 === 0);
}

/** True where sums may be in parts and C has few tiles. */
function isSplit({ splits, output }: MatmulOptions, { m, n, mode }: ProductParams): boolean {
  if (!splits || output || (mode !== MODE.write && mode !== MODE.accumulate)) return false;
  return tilesOf(m, n, TILES.tiled_large.rows) < MIN_TILES;
}

/** Lanes hold twice the columns in a plain product of many rows. */
function widened(family: MatmulFamily, { m, n, b, input, continues }: MatmulOptions): MatmulFamily {
  const isWide = family === "subgroup" && m > FEW_ROWS && n > TILES.subgroup.columns;
  return isWide && !packedFormat(b) && !input && !continues ? "wide" : family;
}

/**
 * Returns the buffers of any kernel: those that one does not bind are not read. Spreads of so many members take a
 * microsecond each.
 */
function boundBuffers({ a, b, c, addend, bias }: MatmulOptions) {
  const scales = b.scales ?? b.buffer;
  return { a: a.buffer, b: b.buffer, scales, addend: addend ?? bias?.buffer ?? b.buffer, c: c.buffer };
}

function isFused({ input, output, adapter }: MatmulOptions): boolean {
  return input !== undefined || output !== undefined || adapter !== undefined;
}

function checkFused(options: MatmulOptions, family: MatmulFamily): void {
  if (!isFused(options)) return;
  const { m, n, k, input, output, adapter } = options;
  const isOfLanes = input?.kind === "swiglu";
  if (isOfLanes ? family === "subgroup" && !output && !adapter : isFewTiled(family)) return;
  throw new RangeError(
    `Cannot fuse ${(input ?? output)?.kind ?? "an adapter"} into a product: this device or its shape does not allow it (${m} x ${n} x ${k}). Ask fuses first.`,
  );
}

function fusedBuffers({ a, input, adapter }: MatmulOptions) {
  return {
    normWeight: input?.kind === "rms_norm" ? input.weight : a.buffer,
    low: adapter?.low ?? a.buffer,
    factor: adapter?.factor ?? a.buffer,
  };
}

function adapterParams({ n, adapter }: MatmulOptions): Omit<FusedParams, keyof ProductParams> {
  if (!adapter) return { rank: 0, low_row: 0, scale: 0, second: n, third: n };
  const { rank, scale, starts } = adapter;
  const [, second = n, third = n] = starts;
  return { rank, low_row: rank * starts.length, scale, second, third };
}

function normConstants(input: MatmulOptions["input"]): Constants {
  if (input?.kind !== "rms_norm") return { INPUT: INPUT.plain };
  return { INPUT: INPUT.rms_norm, WEIGHT_OFFSET: input.weightOffset, EPSILON: input.epsilon };
}

function isFewTiled(family: MatmulFamily): family is FewTiledFamily {
  return family === "tiled_few" || family === "tiled_narrow";
}

function isPackedFamily(family: MatmulFamily): family is PackedFamily {
  return family in PACKED_KERNELS;
}

function paramsOf(options: MatmulOptions): ProductParams {
  const { m, n, k, a, b, c, bias } = options;
  const aStride = a.stride ?? (options.transposeA ? m : widthOfA(options));
  const bStride = b.stride ?? (options.transposeB ? k : n);
  const [cOffset, cRow] = [c.offset ?? 0, c.stride ?? widthOfC(options)];
  return {
    m,
    n,
    k,
    a_offset: a.offset ?? 0,
    a_row: options.transposeA ? 1 : aStride,
    a_k: options.transposeA ? aStride : 1,
    b_offset: b.offset ?? 0,
    b_k: options.transposeB ? 1 : bStride,
    b_column: options.transposeB ? bStride : 1,
    c_offset: cOffset,
    c_row: cRow,
    alpha: options.alpha ?? 1,
    addend_offset: bias ? (bias.offset ?? 0) : cOffset,
    addend_row: bias ? 0 : cRow,
    mode: modeOf(options),
  };
}

function modeOf({ accumulate, addend, bias, continues }: MatmulOptions): number {
  const adds = addend !== undefined || bias !== undefined;
  if (continues) return adds ? MODE.continueAndAdd : MODE.continue;
  return accumulate ? MODE.accumulate : adds ? MODE.add : MODE.write;
}

/** A product of few rows is bound by reading B, one of many by arithmetic: with few rows a kernel keeps fewer sums. */
const CONSTANTS: Readonly<Partial<Record<MatmulFamily, (options: MatmulOptions) => Constants>>> = {
  subgroup: ({ m, input }) => ({ ROWS: rowsOfBlock(m), INPUT: inputOf(input) }),
  columns: ({ m }) => ({ ROWS: rowsOfBlock(m) }),
  few: ({ m }) => ({ ROWS: [1, 2, 4].find((rows) => rows >= m) ?? FEW_ROWS }),
  tiled_few: ({ m, n, output }) => ({ ...blockOfFew(m, n), OUTPUT: outputOf(output) }),
  tiled_narrow: ({ output }) => ({ OUTPUT: outputOf(output) }),
  tiled_large: ({ m, n }) => ({ ROWS: rowsOfTile(m, n) }),
};

function inputOf(input: MatmulOptions["input"]): number {
  return input?.kind === "swiglu" ? INPUT.swiglu : INPUT.plain;
}

function outputOf(output: MatmulOptions["output"]): number {
  return OUTPUT[output?.kind ?? "plain"];
}

/** Fewer tiles than these leave parts of a large GPU without work. */
const MIN_TILES = 256;

function rowsOfTile(m: number, n: number): number {
  const { rows } = TILES.tiled_large;
  return tilesOf(m, n, rows) < MIN_TILES ? rows / 2 : rows;
}

/** Runs along k are longer where few rows leave room for them. */
function blockOfFew(m: number, n: number): Constants {
  const { columns, rows } = TILES.tiled_few;
  const isNarrow = Math.ceil(n / columns) < MIN_TILES;
  return {
    COLUMNS: isNarrow ? columns / 2 : columns,
    ROWS: m === 1 ? 1 : rows,
    STEP: isNarrow && m === 1 ? 64 : 32,
  };
}

function tilesOf(m: number, n: number, rows: number): number {
  return Math.ceil(m / rows) * Math.ceil(n / TILES.tiled_large.columns);
}

function rowsOfBlock(m: number): number {
  return m <= FEW_ROWS ? FEW_ROWS : TILES.subgroup.rows;
}

/** Least elements of B for which columns gain more than a dispatch costs. */
const MIN_FEW_ELEMENTS = 2 ** 17;

/**
 * True where a product runs faster with B held by columns (`transposeB`) than by rows: few rows of a wide model on a
 * software adapter.
 */
export function prefersColumns(device: Device, { m, n, k }: { m: number; n: number; k: number }): boolean {
  return multipliesByLanes(device) && m <= FEW_ROWS && k % 4 === 0 && n * k >= MIN_FEW_ELEMENTS;
}

/** The family for large well-shaped products on this device. */
export function matmulFamily(device: Device): MatmulFamily {
  if (device.info.family === "tiled") return device.info.tile ?? "tiled_large";
  return device.info.subgroupSize === 8 ? "subgroup" : "rows";
}

/** The multiple that a product's columns are rounded up to: a narrower product costs as much. */
export function tileColumns(device: Device): number {
  return TILES[matmulFamily(device)].columns;
}

/** Parts of a product's shape that decide which kernel it takes. */
type ProductShape = Omit<ProductParams, "alpha" | "addend_row" | "mode">;

/** Smaller products gain less from matrix units than their scales and tiles of 128 x 128 cost. */
const LEAST_OF_MATRICES = { m: 128, n: 64, k: 64 } as const;

/** True where a product uses the matrix units of the device: of many rows, by a B that lies in whole vec4. */
function takesMatrices(device: Device, p: ProductShape): boolean {
  const { info } = device;
  const { m, n, k } = LEAST_OF_MATRICES;
  if (!info.subgroupMatrix?.isUsed || p.m < m || p.n < n || p.k < k) return false;
  return isBInFours(p) && rowsInBlocks(device, p.k) > 0;
}

/** Rows whose blocks one binding holds, in whole tiles. */
function rowsInBlocks(device: Device, k: number): number {
  const { m: rows } = LEAST_OF_MATRICES;
  return rows * Math.floor(device.info.limits.maxBindingBytes / blocksBytes(rows, k, { inputs: inputsOf(device) }));
}

function isBInFours(p: ProductShape): boolean {
  return p.b_column === 1 ? inFours(p.n, p.b_k, p.b_offset) : p.b_k === 1 && inFours(p.k, p.b_column, p.b_offset);
}

function inFours(...numbers: readonly number[]): boolean {
  return numbers.every((x) => x % 4 === 0);
}

function familyFor(device: Device, p: ProductShape): MatmulFamily {
  const family = matmulFamily(device);
  if (device.info.kind === "cpu") return family;
  const isAlongK = p.a_k === 1 && p.b_k === 1 && inFours(p.k, p.a_offset, p.a_row, p.b_offset, p.b_column);
  const isOfFours = inFours(p.n, p.c_offset, p.c_row, p.addend_offset);
  if (device.info.family === "tiled") {
    if (isAlongK && p.m <= FEW_ROWS) return "tiled_few";
    const isNarrow = tilesOf(p.m, p.n, TILES.tiled_large.rows / 2) < MIN_TILES;
    if (isAlongK && isNarrow && family === "tiled_large") return "tiled_narrow";
    // Whole vec4 along whichever axis an operand lies on.
    const a = p.a_k === 1 ? inFours(p.k, p.a_row) : p.a_row === 1 && inFours(p.m, p.a_k);
    return a && isBInFours(p) && isOfFours && inFours(p.a_offset) ? family : "tiled";
  }
  if (p.b_column === 1 && isOfFours && inFours(p.b_offset, p.b_k)) return family;
  if (family !== "subgroup" || !isAlongK) return "any";
  if (p.m <= FEW_ROWS) return "few";
  return isOfFours ? "columns" : "any";
}
