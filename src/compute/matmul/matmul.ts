/**
 * C = alpha A B (+ addend) in the orientations a transformer needs, by the kernel that suits the adapter.
 *
 * Measured (LOG.md): software drivers issue each storage load lane by lane and pay for every barrier, so their kernels
 * hold large register tiles and share loads by subgroup broadcast; GPUs stage tiles in workgroup memory.
 */
import type { Buffer, Device } from "../device.ts";
import { type Constants, defineKernel, type Grid, type Kernel, type Values } from "../kernel.ts";
import { bindableParts } from "./parts.ts";

const BINDINGS = { a: "read f32", b: "read f32", addend: "read f32", c: "write f32" } as const;
const PARAMS = {
  m: "u32",
  n: "u32",
  k: "u32",
  a_offset: "u32",
  a_row: "u32",
  a_k: "u32",
  b_offset: "u32",
  b_k: "u32",
  b_column: "u32",
  c_offset: "u32",
  c_row: "u32",
  alpha: "f32",
  mode: "u32",
} as const;

type Params = Values<typeof PARAMS>;

/** What is done to A's rows on their way in: the shaders' constant INPUT. */
const INPUT = { plain: 0, swiglu: 1 } as const;

/** Up to so many rows of A are few: they take kernels that keep few sums. */
const FEW_ROWS = 8;
/** Least elements of B for which it gains more than a dispatch costs. */
const MIN_FEW_ELEMENTS = 2 ** 17;

const WRITE = 0;
const ACCUMULATE = 1;
const ADD = 2;
const CONTINUE = 3;
const CONTINUE_AND_ADD = 4;

type MatmulKernel = Kernel<typeof BINDINGS, typeof PARAMS>;

/** @param constants.ROWS of a tile, where the shader has it as a constant; else `tile.rows`. */
function variant(
  name: string,
  { tile, constants }: { tile: { columns: number; rows: number }; constants?: Constants },
): MatmulKernel {
  return defineKernel({
    name,
    bindings: BINDINGS,
    params: PARAMS,
    constants,
    grid: ({ m, n }, { ROWS = tile.rows }): Grid => [Math.ceil(n / tile.columns), Math.ceil(m / ROWS)],
    reference: multiply,
    // f32 sums of k products: the error grows with the sum of magnitudes, hence the absolute part.
    tolerance: { relative: 2e-5, absolute: 2e-5 },
  });
}

export type MatmulFamily = "subgroup" | "few" | "rows" | "tiled" | "any";

/** What a workgroup computes at most. */
const TILES: Readonly<Record<MatmulFamily, { readonly columns: number; readonly rows: number }>> = {
  subgroup: { columns: 32, rows: 32 },
  few: { columns: 32, rows: FEW_ROWS },
  rows: { columns: 64, rows: 8 },
  tiled: { columns: 64, rows: 64 },
  any: { columns: 8, rows: 4 },
};

/** Each computes the same; see the shaders for whom. */
export const MATMUL_KERNELS: Readonly<Record<MatmulFamily, MatmulKernel>> = {
  subgroup: variant("matmul/subgroup", {
    tile: TILES.subgroup,
    constants: { INPUT: INPUT.plain, ROWS: TILES.subgroup.rows },
  }),
  few: variant("matmul/few", { tile: TILES.few, constants: { ROWS: TILES.few.rows } }),
  rows: variant("matmul/rows", { tile: TILES.rows }),
  tiled: variant("matmul/tiled", { tile: TILES.tiled }),
  any: variant("matmul/any", { tile: TILES.any }),
};

interface Views {
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly addend: Float32Array;
  readonly c: Float32Array;
}

function multiply({ a, b, addend, c }: Views, p: Params, { INPUT: input = INPUT.plain }: Constants): void {
  const row = new Float64Array(p.n);
  const inputs = new Float64Array(p.k);
  for (let i = 0; i < p.m; i++) {
    const from = p.a_offset + i * p.a_row;
    for (let k = 0; k < p.k; k++) inputs[k] = a[from + k * p.a_k]!;
    if (input === INPUT.swiglu)
      for (let k = 0; k < p.k; k++) inputs[k]! *= a[from + p.k + k]! / (1 + Math.exp(-inputs[k]!));
    const at = p.c_offset + i * p.c_row;
    if (p.mode >= CONTINUE) row.set(c.subarray(at, at + p.n));
    else row.fill(0);
    for (let k = 0; k < p.k; k++) addScaled(row, inputs[k]!, b, p.b_offset + k * p.b_k, p.b_column);
    for (let j = 0; j < p.n; j++) {
      const adds = p.mode === ADD || p.mode === CONTINUE_AND_ADD;
      const before = p.mode === ACCUMULATE ? c[at + j] : adds ? addend[at + j] : 0;
      c[at + j] = before! + p.alpha * row[j]!;
    }
  }
}

function addScaled(row: Float64Array, x: number, b: Float32Array, offset: number, stride: number): void {
  if (stride === 1) for (let j = 0; j < row.length; j++) row[j]! += x * b[offset + j]!;
  else for (let j = 0; j < row.length; j++) row[j]! += x * b[offset + j * stride]!;
}

/** A matrix inside a buffer. Element (r, c) lies at `offset + r * stride + c`, in f32 elements. */
export interface Matrix {
  readonly buffer: Buffer;
  /** Default 0. */
  readonly offset?: number;
  /** Elements from a row to the next. Default: the row's length. */
  readonly stride?: number | undefined;
}

export interface MatmulOptions {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** [m, k], or [k, m] with `transposeA`. */
  readonly a: Matrix;
  /** [k, n], or [n, k] with `transposeB` (slow for many rows on software adapters: hold a transposed copy for those). */
  readonly b: Matrix;
  /** [m, n]. */
  readonly c: Matrix;
  readonly transposeA?: boolean | undefined;
  readonly transposeB?: boolean | undefined;
  /** Default 1. */
  readonly alpha?: number;
  /** Adds to what C holds. */
  readonly accumulate?: boolean;
  /** C = addend + product; laid out as C. Must not share C's allocation. */
  readonly addend?: Buffer | undefined;
  /** Sums go on from what C holds, as if k had not been cut there. For an alpha of 1. */
  readonly continues?: boolean;
  /** Done to A's rows on their way in, where {@link fusesInput} allows it. */
  readonly input?: SwigluInput | undefined;
}

/** Rows of A hold a gate and an upper half of k elements each, joined as silu(gate) up. */
export interface SwigluInput {
  readonly kind: "swiglu";
}

/** True where products take an `input`: fewer dispatches, for the small products of decoding. */
export function fusesInput(device: Device): boolean {
  return device.info.kind === "webgpu" && matmulFamily(device) === "subgroup";
}

/**
 * Records one matrix product. Sums run over k in f32, from the first to the last, whatever m and n are and whichever
 * kernel they choose: a row of C has the same bits in any company.
 * Cost 2mnk floating-point operations. A zero m or n does nothing; a zero k gives zeros (or the addend).
 * Matrices larger than one binding covers are worked through in parts, {@link bindableParts}.
 */
export function matmul(device: Device, options: MatmulOptions): void {
  for (const part of bindableParts(options, device.info.limits.maxBindingBytes)) multiplyBound(device, part);
}

function multiplyBound(device: Device, options: MatmulOptions): void {
  const { m, n, k, a, b, c } = options;
  const aStride = a.stride ?? (options.transposeA ? m : k);
  const bStride = b.stride ?? (options.transposeB ? k : n);
  const params: Params = {
    m,
    n,
    k,
    a_offset: a.offset ?? 0,
    a_row: options.transposeA ? 1 : aStride,
    a_k: options.transposeA ? aStride : 1,
    b_offset: b.offset ?? 0,
    b_k: options.transposeB ? 1 : bStride,
    b_column: options.transposeB ? bStride : 1,
    c_offset: c.offset ?? 0,
    c_row: c.stride ?? n,
    alpha: options.alpha ?? 1,
    mode: modeOf(options),
  };
  const family = familyFor(device, params);
  if (options.input && family !== "subgroup")
    throw new RangeError(
      `Cannot fuse ${options.input.kind} into a product of ${m} x ${n} x ${k} on this device`,
    );
  device.dispatch(MATMUL_KERNELS[family], {
    buffers: { a: a.buffer, b: b.buffer, addend: options.addend ?? b.buffer, c: c.buffer },
    params,
    constants: CONSTANTS[family]?.(options),
  });
}

function modeOf({ accumulate, addend, continues }: MatmulOptions): number {
  if (continues) return addend ? CONTINUE_AND_ADD : CONTINUE;
  return accumulate ? ACCUMULATE : addend ? ADD : WRITE;
}

/** Products of few rows are bound by the reading of B, and those of many by arithmetic: few keep no sums that they lack. */
const CONSTANTS: Readonly<Partial<Record<MatmulFamily, (options: MatmulOptions) => Constants>>> = {
  subgroup: ({ m, input }) => ({
    ROWS: m <= FEW_ROWS ? FEW_ROWS : TILES.subgroup.rows,
    INPUT: INPUT[input?.kind ?? "plain"],
  }),
  few: ({ m }) => ({ ROWS: [1, 2, 4].find((rows) => rows >= m) ?? FEW_ROWS }),
};

/**
 * True where a product runs faster with B held by columns (`transposeB`) than by rows, given both: few rows of a wide
 * model on a software adapter.
 */
export function prefersColumns(device: Device, { m, n, k }: { m: number; n: number; k: number }): boolean {
  return fusesInput(device) && m <= FEW_ROWS && k % 4 === 0 && n * k >= MIN_FEW_ELEMENTS;
}

/** The family for large well-shaped products on this device. */
export function matmulFamily(device: Device): MatmulFamily {
  if (device.info.family === "tiled") return "tiled";
  return device.info.subgroupSize === 8 ? "subgroup" : "rows";
}

/** Columns that a product is rounded up to: what narrow ones cost. */
export function tileColumns(device: Device): number {
  return TILES[matmulFamily(device)].columns;
}

function familyFor(device: Device, p: Params): MatmulFamily {
  const family = matmulFamily(device);
  if (family === "tiled" || device.info.kind === "cpu") return family;
  const inFours = (...numbers: readonly number[]) => numbers.every((x) => x % 4 === 0);
  if (p.b_column === 1 && inFours(p.n, p.b_offset, p.b_k, p.c_offset, p.c_row)) return family;
  const isAlongK = p.a_k === 1 && p.b_k === 1 && inFours(p.k, p.a_offset, p.a_row, p.b_offset, p.b_column);
  return family === "subgroup" && isAlongK && p.m <= FEW_ROWS ? "few" : "any";
}
