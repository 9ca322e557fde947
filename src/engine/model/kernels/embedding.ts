/** Rows of a table by token id, and the table's gradient. */
import { defineKernel } from "../../compute/kernel.ts";
import { elementReader, FORMAT } from "../../compute/packed.ts";
import { quads, THREADS, threads } from "./rows.ts";

/**
 * out[t, :] = table[tokens[t], :]. tokens [T], out [T, width]. The binding `table` holds rows [first_row, first_row +
 * row_count) of the table; tokens outside leave `out` unchanged, so that a table above the binding limit takes several
 * windows. Also gathers rows of any matrix.
 */
export const embedding = defineKernel({
  name: "layer/embedding",
  bindings: { tokens: "read u32", table: "read f32", out: "write f32" },
  params: { tokens: "u32", width: "u32", first_row: "u32", row_count: "u32" },
  constants: THREADS,
  grid: ({ tokens, width }, constants) => threads(tokens * quads(width, "width"), constants),
  reference({ tokens, table, out }, params) {
    const { width, first_row, row_count } = params;
    for (let t = 0; t < params.tokens; t++) {
      const row = tokens[t]! - first_row;
      if (row < 0 || row >= row_count) continue;
      const from = row * width;
      for (let c = 0; c < width; c++) out[t * width + c] = table[from + c]!;
    }
  },
  tolerance: { relative: 0, absolute: 0 },
});

/** {@link embedding} from a packed table; the constant FORMAT says in which format. */
export const embeddingPacked = defineKernel({
  ...embedding,
  name: "layer/embedding_packed",
  bindings: { tokens: "read u32", table: "read u32", out: "write f32", scales: "read f32" },
  constants: { ...THREADS, FORMAT: FORMAT.bfloat16 },
  reference({ tokens, table, out, scales }, params, { FORMAT: format }) {
    const { width, first_row, row_count } = params;
    const read = elementReader(format!, table, scales);
    for (let t = 0; t < params.tokens; t++) {
      const row = tokens[t]! - first_row;
      if (row < 0 || row >= row_count) continue;
      for (let c = 0; c < width; c++) out[t * width + c] = read(row * width + c);
    }
  },
});

/**
 * tableGrad[rows[u], :] += sum over i in [offsets[u], offsets[u+1]) of outGrad[positions[i], :].
 * rows [U] are distinct, offsets [U+1]; see {@link groupByToken}. Each row has one writer, so no atomics are needed.
 * Windows of the table as in {@link embedding}.
 */
export const embeddingBackward = defineKernel({
  name: "layer/embedding_backward",
  bindings: {
    rows: "read u32",
    offsets: "read u32",
    positions: "read u32",
    outGrad: "read f32",
    tableGrad: "write f32",
  },
  params: { rows: "u32", width: "u32", first_row: "u32", row_count: "u32" },
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ rows, offsets, positions, outGrad, tableGrad }, params) {
    const { width, first_row, row_count } = params;
    const sum = new Float64Array(width);
    for (let u = 0; u < params.rows; u++) {
      const row = rows[u]! - first_row;
      if (row < 0 || row >= row_count) continue;
      sum.fill(0);
      for (let i = offsets[u]!; i < offsets[u + 1]!; i++)
        for (let c = 0; c < width; c++) sum[c]! += outGrad[positions[i]! * width + c]!;
      for (let c = 0; c < width; c++) tableGrad[row * width + c]! += sum[c]!;
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

export interface TokenGroups {
  /** Distinct ids, ascending, [U]. */
  readonly rows: Uint32Array;
  /** Starts of each id's positions, [U+1]. */
  readonly offsets: Uint32Array;
  /** Positions by id, ascending within an id, [T]. */
  readonly positions: Uint32Array;
}

/** The positions of each distinct token, as the CSR that {@link embeddingBackward} walks. */
export function groupByToken(tokens: ArrayLike<number>): TokenGroups {
  const positions = Uint32Array.from({ length: tokens.length }, (_, i) => i);
  positions.sort((a, b) => tokens[a]! - tokens[b]! || a - b);
  const rows: number[] = [];
  const offsets: number[] = [];
  for (const [i, position] of positions.entries()) {
    if (i > 0 && tokens[position] === tokens[positions[i - 1]!]) continue;
    rows.push(tokens[position]!);
    offsets.push(i);
  }
  offsets.push(tokens.length);
  return { rows: Uint32Array.from(rows), offsets: Uint32Array.from(offsets), positions };
}
