/** The kernels of a matrix product, a family per kind of adapter and shape, and their common reference. */
import {
  type BindingKinds,
  type Constants,
  defineKernel,
  folded,
  type Grid,
  type Kernel,
  type Values,
} from "../kernel.ts";
import { elementReader, FORMAT } from "../packed.ts";

const BINDINGS = { a: "read f32", b: "read f32", addend: "read f32", c: "write f32" } as const;
const PACKED_BINDINGS = { ...BINDINGS, b: "read u32", scales: "read f32" } as const;
const FUSED_BINDINGS = { normWeight: "read f32", low: "read f32", factor: "read f32" } as const;
/** Those of every kernel of a product. */
export const PARAMS = {
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
  addend_offset: "u32",
  addend_row: "u32",
  mode: "u32",
} as const;

/** Params of a product that takes over an adapter's: {@link AdapterProduct}. */
const FUSED_PARAMS = { ...PARAMS, rank: "u32", low_row: "u32", scale: "f32", second: "u32", third: "u32" } as const;

export type ProductParams = Values<typeof PARAMS>;
export type FusedParams = Values<typeof FUSED_PARAMS>;

/** Functions that a kernel applies to A's rows when it reads them: the shaders' constant INPUT. */
export const INPUT = { plain: 0, swiglu: 1, rms_norm: 2 } as const;

/** Functions that a kernel applies to its sums before it stores them: the shaders' constant OUTPUT. */
export const OUTPUT = { plain: 0, swiglu: 1 } as const;

/** Uses of the sums: the param `mode`. From `continue` on they start at what C holds. */
export const MODE = { write: 0, accumulate: 1, add: 2, continue: 3, continueAndAdd: 4 } as const;

/** Most rows of A that take kernels which keep few sums. */
export const FEW_ROWS = 8;

/** Parts along k are whole steps of the kernels. */
const STEP_OF_PARTS = 16;

type MatmulKernel<B extends BindingKinds> = Kernel<B, typeof PARAMS>;

export type MatmulFamily = "subgroup" | "wide" | "columns" | "few" | "rows" | TiledFamily | "any";
/** Those of GPUs. */
export type TiledFamily = "tiled" | "tiled_few" | "tiled_narrow" | "tiled_large";
/** The families that also read a packed B. */
export type PackedFamily = Extract<MatmulFamily, "subgroup" | "columns" | "few" | TiledFamily>;
/** The families of few rows on GPUs, which take over kernels before and after a product. */
export type FewTiledFamily = Extract<TiledFamily, "tiled_few" | "tiled_narrow">;

/** The part of C that a workgroup computes. */
export const TILES: Readonly<Record<MatmulFamily, { readonly columns: number; readonly rows: number }>> = {
  subgroup: { columns: 32, rows: 32 },
  wide: { columns: 64, rows: 32 },
  columns: { columns: 32, rows: 32 },
  few: { columns: 32, rows: FEW_ROWS },
  rows: { columns: 64, rows: 8 },
  tiled: { columns: 64, rows: 64 },
  tiled_few: { columns: 16, rows: FEW_ROWS },
  tiled_narrow: { columns: 32, rows: 16 },
  tiled_large: { columns: 64, rows: 128 },
  any: { columns: 8, rows: 4 },
};

/** Defaults of the shaders' constants: rows of a tile where they vary, what is read of A and what is stored. */
const CONSTANTS: Readonly<Partial<Record<MatmulFamily, Constants>>> = {
  subgroup: { INPUT: INPUT.plain, ROWS: TILES.subgroup.rows },
  columns: { ROWS: TILES.columns.rows },
  few: { ROWS: TILES.few.rows },
  tiled_few: { COLUMNS: TILES.tiled_few.columns, ROWS: TILES.tiled_few.rows, STEP: 32, OUTPUT: OUTPUT.plain },
  tiled_narrow: { OUTPUT: OUTPUT.plain },
  tiled_large: { ROWS: TILES.tiled_large.rows, PARTS: 1 },
};

/** Returns the parts that a family's kernels share, whatever B is. */
function shared(family: MatmulFamily) {
  const tile = TILES[family];
  return {
    params: PARAMS,
    constants: CONSTANTS[family],
    grid({ m, n }: ProductParams, { ROWS = tile.rows, COLUMNS = tile.columns, PARTS = 1 }: Constants): Grid {
      const [columns, rows] = [Math.ceil(n / COLUMNS), Math.ceil(m / ROWS)];
      if (PARTS > 1) return [columns, rows, PARTS];
      // Blocks of 4 rows exceed the limit within a large vocabulary; those of the other families are larger.
      if (family !== "any") return [columns, rows];
      const [y, z] = folded(rows);
      return [columns, y, z];
    },
    work: ({ m, n, k }: ProductParams) => 2 * m * n * k,
    // f32 sums of k products: the error grows with the sum of magnitudes, so there is an absolute part.
    tolerance: { relative: 2e-5, absolute: 2e-5 },
  };
}

function plain(name: string, family: MatmulFamily): MatmulKernel<typeof BINDINGS> {
  return defineKernel({
    ...shared(family),
    name,
    bindings: BINDINGS,
    reference: multiplyReference,
  });
}

function packed(name: string, family: PackedFamily): MatmulKernel<typeof PACKED_BINDINGS> {
  const { constants, ...rest } = shared(family);
  return defineKernel({
    ...rest,
    name,
    bindings: PACKED_BINDINGS,
    constants: { ...constants, FORMAT: FORMAT.bfloat16 },
    reference: multiplyPacked,
  });
}

const FUSED_CONSTANTS = { INPUT: INPUT.plain, WEIGHT_OFFSET: 0, EPSILON: 0 } as const;

function fused(name: string, family: FewTiledFamily) {
  const { constants, ...rest } = shared(family);
  return defineKernel({
    ...rest,
    name,
    params: FUSED_PARAMS,
    bindings: { ...BINDINGS, ...FUSED_BINDINGS },
    constants: { ...constants, ...FUSED_CONSTANTS },
    reference: multiplyReference,
  });
}

function fusedPacked(name: string, family: FewTiledFamily) {
  const { constants, ...rest } = shared(family);
  return defineKernel({
    ...rest,
    name,
    params: FUSED_PARAMS,
    bindings: { ...PACKED_BINDINGS, ...FUSED_BINDINGS },
    constants: { ...constants, ...FUSED_CONSTANTS, FORMAT: FORMAT.bfloat16 },
    reference: multiplyPacked,
  });
}

/** All compute the same; each shader says which adapter and shape it suits. */
export const MATMUL_KERNELS: Readonly<Record<MatmulFamily, MatmulKernel<typeof BINDINGS>>> = {
  subgroup: plain("matmul/subgroup", "subgroup"),
  wide: plain("matmul/wide", "wide"),
  columns: plain("matmul/columns", "columns"),
  few: plain("matmul/few", "few"),
  rows: plain("matmul/rows", "rows"),
  tiled: plain("matmul/tiled", "tiled"),
  tiled_few: plain("matmul/tiled_few", "tiled_few"),
  tiled_narrow: plain("matmul/tiled_narrow", "tiled_narrow"),
  tiled_large: plain("matmul/tiled_large", "tiled_large"),
  any: plain("matmul/any", "any"),
};

/** The same for a packed B; their constant FORMAT says in which format. */
export const PACKED_KERNELS: Readonly<Record<PackedFamily, MatmulKernel<typeof PACKED_BINDINGS>>> = {
  subgroup: packed("matmul/subgroup_packed", "subgroup"),
  columns: packed("matmul/columns_packed", "columns"),
  few: packed("matmul/few_packed", "few"),
  tiled: packed("matmul/tiled_packed", "tiled"),
  tiled_few: packed("matmul/tiled_few_packed", "tiled_few"),
  tiled_narrow: packed("matmul/tiled_narrow_packed", "tiled_narrow"),
  tiled_large: packed("matmul/tiled_large_packed", "tiled_large"),
};

/**
 * Products of few rows with the kernels around them: C = g(norm(A) B + scale low factor^T (+ addend)). INPUT chooses the RMSNorm of A's
 * rows over k, with WEIGHT_OFFSET, EPSILON and normWeight [k]; a rank above 0 what an adapter adds; OUTPUT the SwiGLU.
 */
export const FUSED_KERNELS = {
  tiled_few: fused("matmul/tiled_few_fused", "tiled_few"),
  tiled_narrow: fused("matmul/tiled_narrow_fused", "tiled_narrow"),
} as const satisfies Readonly<Record<FewTiledFamily, unknown>>;

/** {@link FUSED_KERNELS} for a packed B. */
export const FUSED_PACKED_KERNELS = {
  tiled_few: fusedPacked("matmul/tiled_few_fused_packed", "tiled_few"),
  tiled_narrow: fusedPacked("matmul/tiled_narrow_fused_packed", "tiled_narrow"),
} as const satisfies Readonly<Record<FewTiledFamily, unknown>>;

/**
 * One row by columns of B in bfloat16, on lanes of a software adapter: `few` with loads of 8 elements, and the same sums. k, B's offset and
 * the distance of its columns are multiples of 8.
 */
export const ROW_BFLOAT16 = defineKernel({
  ...shared("few"),
  name: "matmul/row_bfloat16",
  constants: undefined,
  bindings: { ...BINDINGS, b: "read u32" },
  reference: (views, params) =>
    multiplyPacked({ ...views, scales: new Float32Array() }, params, { FORMAT: FORMAT.bfloat16 }),
});

interface Views {
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly addend: Float32Array;
  readonly c: Float32Array;
  /** Weights of the norm, for kernels that take over those around them. */
  readonly normWeight?: Float32Array;
  readonly low?: Float32Array;
  readonly factor?: Float32Array;
}

type Params = ProductParams & Partial<FusedParams>;
type PackedViews = Omit<Views, "b"> & { readonly b: Uint32Array; readonly scales: Float32Array };

function multiplyPacked({ b, scales, ...views }: PackedViews, params: Params, constants: Constants): void {
  const { n, k, b_offset, b_k, b_column } = params;
  const read = elementReader(constants.FORMAT!, b, scales);
  const values = new Float32Array(n > 0 && k > 0 ? (k - 1) * b_k + (n - 1) * b_column + 1 : 0);
  for (let i = 0; i < values.length; i++) values[i] = read(b_offset + i);
  multiplyReference({ ...views, b: values }, { ...params, b_offset: 0 }, constants);
}

/** Elements along k of each of a product's parts but the last. */
function lengthOfParts({ k }: Pick<ProductParams, "k">, parts: number): number {
  return Math.ceil(k / (parts * STEP_OF_PARTS)) * STEP_OF_PARTS;
}

/** Parts along k, each into its own m rows of C. */
function multiplyParts(views: Views, p: Params, { PARTS: parts, ...constants }: Constants): void {
  const length = lengthOfParts(p, parts!);
  for (let part = 0; part < parts!; part++) {
    const first = Math.min(part * length, p.k);
    const [a_offset, b_offset] = [p.a_offset + first * p.a_k, p.b_offset + first * p.b_k];
    const offsets = { a_offset, b_offset, c_offset: p.c_offset + part * p.m * p.c_row };
    multiplyReference(views, { ...p, ...offsets, k: Math.min(length, p.k - first) }, constants);
  }
}

/** The common reference. */
export function multiplyReference(views: Views, p: Params, constants: Constants): void {
  if ((constants.PARTS ?? 1) > 1) {
    multiplyParts(views, p, constants);
    return;
  }
  const { b, addend, c } = views;
  const isGated = constants.OUTPUT === OUTPUT.swiglu;
  const width = isGated ? p.n / 2 : p.n;
  const row = new Float64Array(p.n);
  for (let i = 0; i < p.m; i++) {
    const inputs = inputsOf(views, p, { row: i, constants });
    const at = p.c_offset + i * p.c_row;
    if (p.mode >= MODE.continue) row.set(c.subarray(at, at + p.n));
    else row.fill(0);
    for (let k = 0; k < p.k; k++) addScaled(row, inputs[k]!, b, p.b_offset + k * p.b_k, p.b_column);
    addAdapter(row, views, { ...p, row: i });
    if (isGated) for (let j = 0; j < width; j++) row[j] = swiglu(row[j]!, row[width + j]!);
    for (let j = 0; j < width; j++) {
      const adds = p.mode === MODE.add || p.mode === MODE.continueAndAdd;
      const before = p.mode === MODE.accumulate ? c[at + j] : adds ? addend[p.addend_offset + i * p.addend_row + j] : 0;
      c[at + j] = before! + p.alpha * row[j]!;
    }
  }
}

/** Returns the contribution of a row of A: the row as it is, or what INPUT makes of it. */
function inputsOf(
  { a, normWeight }: Views,
  { k: K, a_offset, a_row, a_k }: ProductParams,
  { row, constants }: { row: number; constants: Constants },
): Float64Array {
  const from = a_offset + row * a_row;
  const inputs = new Float64Array(K);
  for (let k = 0; k < K; k++) inputs[k] = a[from + k * a_k]!;
  if (constants.INPUT === INPUT.swiglu) for (let k = 0; k < K; k++) inputs[k] = swiglu(inputs[k]!, a[from + K + k]!);
  if (constants.INPUT === INPUT.rms_norm) normalise(inputs, normWeight!, constants);
  return inputs;
}

/** sums[j] += scale * dot(low of the row and of j's matrix, factor[j]). */
function addAdapter(sums: Float64Array, { low, factor }: Views, p: Partial<FusedParams> & { row: number }): void {
  const { rank = 0, low_row = 0, scale = 0, second = 0, third = 0, row } = p;
  for (let j = 0; rank > 0 && j < sums.length; j++) {
    const at = row * low_row + (Number(j >= second) + Number(j >= third)) * rank;
    let added = 0;
    for (let r = 0; r < rank; r++) added += low![at + r]! * factor![j * rank + r]!;
    sums[j]! += scale * added;
  }
}

function swiglu(gate: number, up: number): number {
  return (gate / (1 + Math.exp(-gate))) * up;
}

function normalise(row: Float64Array, weight: Float32Array, { WEIGHT_OFFSET = 0, EPSILON = 0 }: Constants): void {
  let squares = 0;
  for (const x of row) squares += x * x;
  const r = 1 / Math.sqrt(squares / row.length + EPSILON);
  for (let k = 0; k < row.length; k++) row[k]! *= r * (WEIGHT_OFFSET + weight[k]!);
}

function addScaled(row: Float64Array, x: number, b: Float32Array, offset: number, stride: number): void {
  if (stride === 1) for (let j = 0; j < row.length; j++) row[j]! += x * b[offset + j]!;
  else for (let j = 0; j < row.length; j++) row[j]! += x * b[offset + j * stride]!;
}
