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
  addend_offset: "u32",
  addend_row: "u32",
  mode: "u32",
} as const;

export type ProductParams = Values<typeof PARAMS>;

/** What a kernel does to A's rows when it reads them: the shaders' constant INPUT. */
export const INPUT = { plain: 0, swiglu: 1 } as const;

/** What becomes of the sums: the param `mode`. From `continue` on they start at what C holds. */
export const MODE = { write: 0, accumulate: 1, add: 2, continue: 3, continueAndAdd: 4 } as const;

/** At most this many rows of A take kernels that keep few sums. */
export const FEW_ROWS = 8;

type MatmulKernel<B extends BindingKinds> = Kernel<B, typeof PARAMS>;

export type MatmulFamily = "subgroup" | "columns" | "few" | "rows" | TiledFamily | "any";
/** Those of GPUs. */
export type TiledFamily = "tiled" | "tiled_few" | "tiled_narrow" | "tiled_large";
/** The families that also read a packed B. */
export type PackedFamily = Extract<MatmulFamily, "subgroup" | "columns" | "few" | TiledFamily>;

/** The part of C that a workgroup computes. */
export const TILES: Readonly<Record<MatmulFamily, { readonly columns: number; readonly rows: number }>> = {
  subgroup: { columns: 32, rows: 32 },
  columns: { columns: 32, rows: 32 },
  few: { columns: 32, rows: FEW_ROWS },
  rows: { columns: 64, rows: 8 },
  tiled: { columns: 64, rows: 64 },
  tiled_few: { columns: 16, rows: FEW_ROWS },
  tiled_narrow: { columns: 32, rows: 16 },
  tiled_large: { columns: 64, rows: 128 },
  any: { columns: 8, rows: 4 },
};

/** Defaults of the shaders' constants: rows of a tile where they vary, and what is read of A. */
const CONSTANTS: Readonly<Partial<Record<MatmulFamily, Constants>>> = {
  subgroup: { INPUT: INPUT.plain, ROWS: TILES.subgroup.rows },
  columns: { ROWS: TILES.columns.rows },
  few: { ROWS: TILES.few.rows },
  tiled_few: { COLUMNS: TILES.tiled_few.columns, ROWS: TILES.tiled_few.rows, STEP: 32, INPUT: INPUT.plain },
  tiled_large: { ROWS: TILES.tiled_large.rows },
};

/** What a family's kernels share, whatever B is. */
function shared(family: MatmulFamily) {
  const tile = TILES[family];
  return {
    params: PARAMS,
    constants: CONSTANTS[family],
    grid({ m, n }: ProductParams, { ROWS = tile.rows, COLUMNS = tile.columns }: Constants): Grid {
      const [columns, rows] = [Math.ceil(n / COLUMNS), Math.ceil(m / ROWS)];
      // Blocks of 4 rows exceed the limit within a large vocabulary; those of the other families are larger.
      if (family !== "any") return [columns, rows];
      const [y, z] = folded(rows);
      return [columns, y, z];
    },
    work: ({ m, n, k }: ProductParams) => 2 * m * n * k,
    // f32 sums of k products: the error grows with the sum of magnitudes, hence the absolute part.
    tolerance: { relative: 2e-5, absolute: 2e-5 },
  };
}

function plain(name: string, family: MatmulFamily): MatmulKernel<typeof BINDINGS> {
  return defineKernel({
    ...shared(family),
    name,
    bindings: BINDINGS,
    reference: multiply,
  });
}

function packed(name: string, family: PackedFamily): MatmulKernel<typeof PACKED_BINDINGS> {
  const { constants, ...rest } = shared(family);
  return defineKernel({
    ...rest,
    name,
    bindings: PACKED_BINDINGS,
    constants: { ...constants, FORMAT: FORMAT.bfloat16 },
    reference({ b, scales, ...views }, params, constants) {
      const { n, k, b_offset, b_k, b_column } = params;
      const read = elementReader(constants.FORMAT!, b, scales);
      const values = new Float32Array(n > 0 && k > 0 ? (k - 1) * b_k + (n - 1) * b_column + 1 : 0);
      for (let i = 0; i < values.length; i++) values[i] = read(b_offset + i);
      multiply({ ...views, b: values }, { ...params, b_offset: 0 }, constants);
    },
  });
}

/** All compute the same; each shader says which adapter and shape it suits. */
export const MATMUL_KERNELS: Readonly<Record<MatmulFamily, MatmulKernel<typeof BINDINGS>>> = {
  subgroup: plain("matmul/subgroup", "subgroup"),
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

interface Views {
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly addend: Float32Array;
  readonly c: Float32Array;
}

function multiply({ a, b, addend, c }: Views, p: ProductParams, { INPUT: input = INPUT.plain }: Constants): void {
  const row = new Float64Array(p.n);
  const inputs = new Float64Array(p.k);
  for (let i = 0; i < p.m; i++) {
    const from = p.a_offset + i * p.a_row;
    for (let k = 0; k < p.k; k++) inputs[k] = a[from + k * p.a_k]!;
    if (input === INPUT.swiglu)
      for (let k = 0; k < p.k; k++) inputs[k]! *= a[from + p.k + k]! / (1 + Math.exp(-inputs[k]!));
    const at = p.c_offset + i * p.c_row;
    if (p.mode >= MODE.continue) row.set(c.subarray(at, at + p.n));
    else row.fill(0);
    for (let k = 0; k < p.k; k++) addScaled(row, inputs[k]!, b, p.b_offset + k * p.b_k, p.b_column);
    for (let j = 0; j < p.n; j++) {
      const adds = p.mode === MODE.add || p.mode === MODE.continueAndAdd;
      const before = p.mode === MODE.accumulate ? c[at + j] : adds ? addend[p.addend_offset + i * p.addend_row + j] : 0;
      c[at + j] = before! + p.alpha * row[j]!;
    }
  }
}

function addScaled(row: Float64Array, x: number, b: Float32Array, offset: number, stride: number): void {
  if (stride === 1) for (let j = 0; j < row.length; j++) row[j]! += x * b[offset + j]!;
  else for (let j = 0; j < row.length; j++) row[j]! += x * b[offset + j * stride]!;
}
