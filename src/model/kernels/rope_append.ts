/** Rotary positions and the cache in one dispatch, because dispatches dominate a decoding step. */
import { defineKernel } from "../../compute/kernel.ts";
import { THREADS, threads } from "./rows.ts";

/**
 * For each row of qkv [rows, (H + 2 KV) D] at position p = positions[r] + shift: q is rotated in place, k is rotated and
 * copied with v into keys, values [slots, max_length, KV D] at [slots[r], p]. Positions beyond the cache are dropped.
 * angles from `ropeTable`. `width` = D, even.
 */
export const ropeAppend = defineKernel({
  name: "decode/rope_append",
  bindings: {
    slots: "read u32",
    positions: "read u32",
    angles: "read f32",
    qkv: "write f32",
    keys: "write f32",
    values: "write f32",
  },
  params: { rows: "u32", heads: "u32", key_heads: "u32", width: "u32", max_length: "u32", shift: "u32" },
  constants: THREADS,
  grid: ({ rows, heads, key_heads, width }, constants) =>
    threads((rows * (heads + 2 * key_heads) * width) / 2, constants),
  reference({ slots, positions, angles, qkv, keys, values }, params) {
    const { rows, heads, key_heads, width, max_length, shift } = params;
    const half = width / 2;
    const perRow = heads + 2 * key_heads;
    for (let row = 0; row < rows; row++) {
      const position = positions[row]! + shift;
      for (let head = 0; head < perRow; head++) {
        const at = (row * perRow + head) * width;
        if (head < heads + key_heads)
          for (let d = 0; d < half; d++) {
            const [cos, sin] = [angles[position * width + d], angles[position * width + half + d]];
            const [low, high] = [qkv[at + d], qkv[at + half + d]];
            const inQ = head < heads;
            const to = inQ ? at + d : cacheAt({ row, position, head: head - heads }) + d;
            if (!inQ && position >= max_length) continue;
            const target = inQ ? qkv : keys;
            target[to] = low! * cos! - high! * sin!;
            target[to + half] = high! * cos! + low! * sin!;
          }
        else if (position < max_length)
          values.set(qkv.subarray(at, at + width), cacheAt({ row, position, head: head - heads - key_heads }));
      }
    }
    function cacheAt(it: { row: number; position: number; head: number }): number {
      return ((slots[it.row]! * max_length + it.position) * key_heads + it.head) * width;
    }
  },
  tolerance: { relative: 1e-6, absolute: 1e-6 },
});
