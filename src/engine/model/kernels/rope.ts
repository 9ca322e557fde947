/** Rotary position embedding, in Hugging Face's half-rotation. */
import { defineKernel } from "../../compute/kernel.ts";
import { rowStart, THREADS, threads } from "./rows.ts";

/**
 * Rotates the pairs (d, d + D/2) of every row by the angle of its token's position, in place; `sign` -1 is the inverse,
 * which is the gradient. positions [T] plus `shift`; table [positions, D] from {@link ropeTable}; rows of width D lie in x
 * as in `RowLayout`, so that the q and k heads of a fused qkv take one dispatch. D is a multiple of 4.
 * @see https://arxiv.org/abs/2104.09864
 */
export const rope = defineKernel({
  name: "layer/rope",
  bindings: { positions: "read u32", table: "read f32", x: "write f32" },
  params: {
    rows: "u32",
    width: "u32",
    per_token: "u32",
    stride: "u32",
    offset: "u32",
    shift: "u32",
    sign: "f32",
  },
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads((rows * width) / 4, constants),
  reference({ positions, table, x }, params) {
    const { rows, width, per_token, shift, sign } = params;
    const half = width / 2;
    for (let row = 0; row < rows; row++) {
      const at = rowStart(row, params);
      const angles = (positions[Math.floor(row / per_token)]! + shift) * width;
      for (let d = 0; d < half; d++) {
        const cos = table[angles + d]!;
        const sin = table[angles + half + d]! * sign;
        const low = x[at + d]!;
        const high = x[at + half + d]!;
        x[at + d] = low * cos - high * sin;
        x[at + half + d] = high * cos + low * sin;
      }
    }
  },
  tolerance: { relative: 1e-6, absolute: 1e-6 },
});

/**
 * cos and sin of position * frequency, times `factor`: row p is [cos 0..D/2-1, sin 0..D/2-1]. frequencies [D/2], radians
 * per token.
 */
export function ropeTable(positions: number, frequencies: ArrayLike<number>, factor = 1): Float32Array {
  const half = frequencies.length;
  const table = new Float32Array(positions * half * 2);
  for (let p = 0; p < positions; p++)
    for (let d = 0; d < half; d++) {
      table[p * half * 2 + d] = factor * Math.cos(p * frequencies[d]!);
      table[p * half * 2 + half + d] = factor * Math.sin(p * frequencies[d]!);
    }
  return table;
}
