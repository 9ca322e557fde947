/** Rotary positions and the cache in one dispatch, because dispatches dominate a decoding step. */
import { defineKernel } from "../../compute/kernel.ts";
import { byCacheDtype, CACHE_ELEMENT, cacheIndex, writeCache } from "./cache_storage.ts";
import { quads, THREADS, threads } from "./rows.ts";

/**
 * Rotates and keeps each row of qkv [rows, (H + 2 KV) D] at position p = positions[r] + shift: q is rotated in place, k
 * is rotated and kept with v in keys, values [pages, PAGE_TOKENS, KV D] at the row's place for p. angles from
 * `ropeTable`; where `rotates` is 0 they are not used and nothing is rotated. `width` = D.
 */
export const ropeAppend = byCacheDtype(
  { float32: "decode/rope_append", bfloat16: "decode/rope_append_bfloat16" },
  (dtype, name) =>
    defineKernel({
      name,
      bindings: {
        pages: "read u32",
        positions: "read u32",
        angles: "read f32",
        qkv: "write f32",
        keys: `write ${CACHE_ELEMENT[dtype]}`,
        values: `write ${CACHE_ELEMENT[dtype]}`,
      },
      params: {
        rows: "u32",
        heads: "u32",
        key_heads: "u32",
        width: "u32",
        row_pages: "u32",
        shift: "u32",
        rotates: "u32",
      },
      constants: THREADS,
      grid: ({ rows, heads, key_heads, width }, constants) =>
        threads(rows * (heads + 2 * key_heads) * quads(width, "width"), constants),
      reference({ pages, positions, angles, qkv, keys, values }, params) {
        const { rows, heads, key_heads, width, row_pages, shift, rotates } = params;
        const half = width / 2;
        const perRow = heads + 2 * key_heads;
        for (let row = 0; row < rows; row++) {
          const position = positions[row]! + shift;
          const place = cacheIndex({ pages, row_pages }, row, position) * key_heads;
          for (let head = 0; head < perRow; head++) {
            const at = (row * perRow + head) * width;
            const isValue = head >= heads + key_heads;
            // k is rotated in a copy: qkv keeps it.
            const x = head < heads ? qkv.subarray(at, at + width) : qkv.slice(at, at + width);
            for (let d = 0; d < half && rotates === 1 && !isValue; d++) {
              const [cos, sin] = [angles[position * width + d]!, angles[position * width + half + d]!];
              const [low, high] = [x[d]!, x[half + d]!];
              x[d] = low * cos - high * sin;
              x[half + d] = high * cos + low * sin;
            }
            if (head >= heads) writeCache(isValue ? values : keys, (place + ((head - heads) % key_heads)) * width, x);
          }
        }
      },
      tolerance: { relative: 1e-6, absolute: 1e-6 },
    }),
);
