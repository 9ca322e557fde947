/**
 * The key/value cache of sampling, one pair of buffers per layer: keys, values [slots, max_length, KV D]. A row is an
 * active sequence with a slot and a position. `shift` is added to every position, so that several steps can be recorded
 * from one set of rows.
 */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { quads, THREADS, threads } from "./rows.ts";

/**
 * keys[slots[r], positions[r] + shift, :] = k of row r, likewise values. Rows are the tokens of a prefill or the
 * active sequences of a step; k and v lie at a stride and an offset (fused qkv). `width` = KV D.
 */
export const cacheAppend = defineKernel({
  name: "decode/cache_append",
  bindings: {
    k: "read f32",
    v: "read f32",
    slots: "read u32",
    positions: "read u32",
    keys: "write f32",
    values: "write f32",
  },
  params: {
    rows: "u32",
    width: "u32",
    k_stride: "u32",
    k_offset: "u32",
    v_stride: "u32",
    v_offset: "u32",
    max_length: "u32",
    shift: "u32",
  },
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ k, v, slots, positions, keys, values }, params) {
    const { rows, width, max_length, shift } = params;
    for (let row = 0; row < rows; row++) {
      const position = positions[row]! + shift;
      if (position >= max_length) continue;
      const to = (slots[row]! * max_length + position) * width;
      const kAt = row * params.k_stride + params.k_offset;
      const vAt = row * params.v_stride + params.v_offset;
      keys.set(k.subarray(kAt, kAt + width), to);
      values.set(v.subarray(vAt, vAt + width), to);
    }
  },
  tolerance: { relative: 0, absolute: 0 },
});

/**
 * Copies the first positions of one slot to another, so that the samples of a group share their prompt's prefill.
 * copies [n, 3] = from slot, to slot, number of positions. No slot may be both read and written. `longest` >= every number.
 */
export const cacheCopy = defineKernel({
  name: "decode/cache_copy",
  bindings: { copies: "read u32", keys: "write f32", values: "write f32" },
  params: { copies: "u32", longest: "u32", width: "u32", max_length: "u32" },
  constants: THREADS,
  grid: ({ copies, longest, width }, constants) => threads(copies * longest * quads(width, "width"), constants),
  reference({ copies, keys, values }, params) {
    const slot = params.max_length * params.width;
    for (let i = 0; i < params.copies; i++) {
      const [from, to, length] = copies.subarray(i * 3, i * 3 + 3);
      for (const cache of [keys, values])
        cache.copyWithin(to! * slot, from! * slot, from! * slot + length! * params.width);
    }
  },
  tolerance: { relative: 0, absolute: 0 },
});

/**
 * Attention of one new query per row to its slot of the cache, positions 0 .. positions[r] + shift. Append first.
 * q [rows, H, D] at a stride and an offset, out [rows, H D]. Constants from `headConstants`.
 */
export const attentionDecode = defineKernel({
  name: "decode/attention_decode",
  bindings: {
    q: "read f32",
    keys: "read f32",
    values: "read f32",
    slots: "read u32",
    positions: "read u32",
    out: "write f32",
  },
  params: {
    rows: "u32",
    heads: "u32",
    key_heads: "u32",
    q_stride: "u32",
    q_offset: "u32",
    max_length: "u32",
    shift: "u32",
    scale: "f32",
  },
  constants: { WORKGROUP: 8, HEAD_QUADS: 2, HEADS: 1 },
  grid: ({ rows, heads }, { WORKGROUP, HEADS }) => folded(Math.ceil((rows * heads) / HEADS! / WORKGROUP!)),
  reference({ q, keys, values, slots, positions, out }, params, { HEAD_QUADS }) {
    const { rows, heads, key_heads, max_length, shift, scale } = params;
    const width = HEAD_QUADS! * 4;
    const weights = new Float64Array(max_length);
    const sum = new Float64Array(width);
    for (let row = 0; row < rows; row++)
      for (let h = 0; h < heads; h++) {
        const qAt = row * params.q_stride + params.q_offset + h * width;
        const shared = Math.floor((h * key_heads) / heads) * width;
        const cacheAt = slots[row]! * max_length * key_heads * width + shared;
        const length = Math.min(positions[row]! + shift + 1, max_length);
        let max = -Infinity;
        for (let s = 0; s < length; s++) {
          let dot = 0;
          for (let d = 0; d < width; d++) dot += q[qAt + d]! * keys[cacheAt + s * key_heads * width + d]!;
          weights[s] = dot * scale;
          if (weights[s]! > max) max = weights[s]!;
        }
        let total = 0;
        sum.fill(0);
        for (let s = 0; s < length; s++) {
          const weight = Math.exp(weights[s]! - max);
          total += weight;
          for (let d = 0; d < width; d++) sum[d]! += weight * values[cacheAt + s * key_heads * width + d]!;
        }
        for (let d = 0; d < width; d++) out[(row * heads + h) * width + d] = sum[d]! / total;
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});
