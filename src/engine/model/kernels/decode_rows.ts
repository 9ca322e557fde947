/** Everything between the attention of one layer and that of the next in one dispatch, because dispatches dominate decoding. */
import { defineKernel } from "../../compute/kernel.ts";

/** Rows per workgroup. */
export const CHAIN_ROWS = 32;

/** The stages by number: a dispatch runs [first, last). */
export const STAGE = { output: 0, gateUp: 1, down: 2, qkv: 3, end: 4 } as const;

/**
 * Decodes each of `rows` rows from `first_row` on: with `embeds`, x = the row of `vectors` at `embed_at` by its token.
 * Then x += attended O^T, x += swiglu(norm(x) GateUp^T) Down^T, qkv = norm'(x) QKV^T. `matrices` holds the transposed
 * weights, [in, out] each, at `*_at` vec4s; `vectors` the norms' weights at `*norm_at` elements. `state` holds x [rows,
 * hidden], attended [rows, attended], normed [rows, hidden] and wide [rows, 2 inner] at their `*_at` elements; the last
 * two are scratch space. hidden, attended, inner and qkv are multiples of 4.
 */
export const decodeRows = defineKernel({
  name: "decode/decode_rows",
  bindings: { matrices: "read f32", vectors: "read f32", tokens: "read u32", state: "write f32", qkv: "write f32" },
  params: {
    rows: "u32",
    hidden: "u32",
    inner: "u32",
    attended: "u32",
    qkv: "u32",
    o_at: "u32",
    gate_up_at: "u32",
    down_at: "u32",
    qkv_at: "u32",
    norm_at: "u32",
    next_norm_at: "u32",
    x_at: "u32",
    attended_at: "u32",
    normed_at: "u32",
    wide_at: "u32",
    first: "u32",
    last: "u32",
    epsilon: "f32",
    embeds: "u32",
    embed_at: "u32",
    first_row: "u32",
  },
  grid: ({ rows }) => [Math.ceil(rows / CHAIN_ROWS)],
  reference({ matrices, vectors, tokens, state, qkv }, p) {
    const { hidden: C, inner: F, epsilon } = p;
    for (let row = p.first_row; row < p.first_row + p.rows; row++) {
      const part = (at: number, width: number) => state.subarray(at + row * width, at + (row + 1) * width);
      const [x, normed, wide] = [part(p.x_at, C), part(p.normed_at, C), part(p.wide_at, 2 * F)];
      if (p.embeds === 1) x.set(vectors.subarray(p.embed_at + tokens[row]! * C).subarray(0, C));
      if (runs(p, STAGE.output)) product(x, { by: part(p.attended_at, p.attended), matrices, at: p.o_at, add: true });
      if (runs(p, STAGE.gateUp)) {
        normalise(normed, { x, vectors, at: p.norm_at, epsilon });
        product(wide, { by: normed, matrices, at: p.gate_up_at });
      }
      if (runs(p, STAGE.down)) {
        for (let f = 0; f < F; f++) wide[f]! *= wide[F + f]! / (1 + Math.exp(-wide[f]!));
        product(x, { by: wide.subarray(0, F), matrices, at: p.down_at, add: true });
      }
      if (runs(p, STAGE.qkv)) {
        normalise(normed, { x, vectors, at: p.next_norm_at, epsilon });
        product(qkv.subarray(row * p.qkv, (row + 1) * p.qkv), { by: normed, matrices, at: p.qkv_at });
      }
    }
  },
  // Products of f32 sums, summed again.
  tolerance: { relative: 1e-4, absolute: 1e-4 },
});

function runs({ first, last }: { first: number; last: number }, stage: number): boolean {
  return first <= stage && stage < last;
}

function normalise(
  normed: Float32Array,
  { x, vectors, at, epsilon }: { x: Float32Array; vectors: Float32Array; at: number; epsilon: number },
): void {
  const squares = x.reduce((sum, value) => sum + value * value, 0);
  const scale = 1 / Math.sqrt(squares / x.length + epsilon);
  for (let c = 0; c < x.length; c++) normed[c] = x[c]! * scale * vectors[at + c]!;
}

function product(
  to: Float32Array,
  operands: { by: Float32Array; matrices: Float32Array; at: number; add?: boolean },
): void {
  const sums = new Float64Array(to.length);
  for (let k = 0; k < operands.by.length; k++)
    for (let j = 0; j < sums.length; j++)
      sums[j]! += operands.by[k]! * operands.matrices[4 * operands.at + k * to.length + j]!;
  for (let j = 0; j < sums.length; j++) to[j] = sums[j]! + (operands.add ? to[j]! : 0);
}
