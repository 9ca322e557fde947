/**
 * A decoding step's attention split over the context, for few rows with long ones: a workgroup per chunk of keys, then a fold over
 * them. Both have the bits of `attentionStepTiled`, which folds the chunks in one workgroup.
 */
import { type Constants, defineKernel, folded } from "../../compute/kernel.ts";
import { attentionStep } from "./attention_step.ts";
import { byCacheDtype, cacheIndex, firstSeen, PAGE_TOKENS, readCache } from "./cache_storage.ts";
import { ropeAppend } from "./rope_append.ts";
import { threads } from "./rows.ts";

/** Keys of a chunk, counted from a sequence's first; `CHUNK_KEYS` in shaders/attention/parts/merge.wgsl. */
export const CHUNK_KEYS = 256;

/** Floats that a chunk leaves in addition to its sums: the weights' total and the highest score, in a vec4. */
const KNOWN = 4;

/** Chunks that the pages of a row have room for. */
export function rowChunks(row_pages: number): number {
  return Math.ceil((row_pages * PAGE_TOKENS) / CHUNK_KEYS);
}

/** Numbers that the chunks of a step leave. */
export function chunkFloats(at: { rows: number; heads: number; headWidth: number; row_pages: number }): number {
  return at.rows * at.heads * rowChunks(at.row_pages) * (at.headWidth + KNOWN);
}

/** Workgroups of the query heads that share a key head. */
export function headBlocks({ heads, key_heads }: { heads: number; key_heads: number }, { SHARED }: Constants): number {
  return key_heads * Math.ceil(heads / key_heads / SHARED!);
}

/**
 * The part of {@link attentionStep} that chunks of 256 keys do: out [rows, H, chunks, D + 4] holds D sums of values, the weights' total, and
 * the highest score in units of log2 e. Chunks that a row does not see are left as they are.
 */
export const attentionStepChunks = byCacheDtype(
  { float32: "decode/attention_step_chunks", bfloat16: "decode/attention_step_chunks_bfloat16" },
  (dtype, name) =>
    defineKernel({
      ...attentionStep[dtype],
      name,
      constants: { HEAD_QUADS: 16, SHARED: 1, STAGED_KEYS: 16 },
      grid: ({ rows, row_pages, ...of }, constants) => folded(rows * headBlocks(of, constants) * rowChunks(row_pages)),
      reference({ qkv, out, ...views }, params, constants) {
        const { rows, heads, key_heads, row_pages, scale } = params;
        const width = constants.HEAD_QUADS! * 4;
        const stride = (heads + 2 * key_heads) * width;
        const turned = qkv.slice(0, rows * stride);
        ropeAppend[dtype].reference({ ...views, qkv: turned }, { ...params, width }, constants);
        for (let row = 0; row < rows; row++) {
          const position = views.positions[row]! + params.shift;
          for (let head = 0; head < heads; head++) {
            const query = turned.subarray(row * stride + head * width, row * stride + (head + 1) * width);
            const within = Math.floor((head * key_heads) / heads) * width;
            const starts = (at: number) =>
              cacheIndex({ pages: views.pages, row_pages }, row, at) * key_heads * width + within;
            for (let key = firstSeen(position, params.window); key <= position; ) {
              const chunk = Math.floor(key / CHUNK_KEYS);
              const end = Math.min((chunk + 1) * CHUNK_KEYS, position + 1);
              const keys = Array.from({ length: end - key }, (_, i) => starts(key + i));
              const scores = keys.map((start) => scale * Math.LOG2E * dot(query, readCache(views.keys, start, width)));
              const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
              const to = ((row * heads + head) * rowChunks(row_pages) + chunk) * (width + KNOWN);
              const sum = new Float64Array(width);
              let total = 0;
              for (const [i, start] of keys.entries()) {
                const weight = 2 ** (scores[i]! - most);
                const value = readCache(views.values, start, width);
                total += weight;
                for (let d = 0; d < width; d++) sum[d]! += weight * value[d]!;
              }
              out.set(sum, to);
              out.set([total, most, 0, 0], to + width);
              key = end;
            }
          }
        }
      },
    }),
);

function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let d = 0; d < a.length; d++) sum += a[d]! * b[d]!;
  return sum;
}

/** out [rows, H D] from the chunks that {@link attentionStepChunks} leaves. */
export const attentionMerge = defineKernel({
  name: "decode/attention_merge",
  bindings: { parts: "read f32", positions: "read u32", out: "write f32" },
  params: { rows: "u32", heads: "u32", row_pages: "u32", shift: "u32", window: "u32" },
  constants: { WORKGROUP: 64, HEAD_QUADS: 16 },
  grid: ({ rows, heads }, constants) => threads(rows * heads * constants.HEAD_QUADS!, constants),
  reference({ parts, positions, out }, { rows, heads, row_pages, shift, window }, { HEAD_QUADS }) {
    const width = HEAD_QUADS! * 4;
    for (let head = 0; head < rows * heads; head++) {
      const position = positions[Math.floor(head / heads)]! + shift;
      const first = Math.floor(firstSeen(position, window) / CHUNK_KEYS);
      const count = Math.floor(position / CHUNK_KEYS) + 1 - first;
      const chunks = Array.from({ length: count }, (_, i) => {
        const at = (head * rowChunks(row_pages) + first + i) * (width + KNOWN);
        return parts.subarray(at, at + width + KNOWN);
      });
      const most = Math.max(...chunks.map((chunk) => chunk[width + 1]!));
      const factors = chunks.map((chunk) => 2 ** (chunk[width + 1]! - most));
      const sumOf = (d: number) => chunks.reduce((sum, chunk, i) => sum + chunk[d]! * factors[i]!, 0);
      const total = sumOf(width);
      for (let d = 0; d < width; d++) out[head * width + d] = sumOf(d) / total;
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});
