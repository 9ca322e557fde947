/**
 * The key/value cache of sampling, one pair of buffers per layer: keys, values [pages, PAGE_TOKENS, KV D]. A row is an
 * active sequence with a line of the page table and a position. `shift` is added to every position, so that several steps
 * can be recorded from one set of rows. A line names pages for every position that the recorded steps reach.
 */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { byCacheDtype, CACHE_ELEMENT, cacheIndex, firstSeen, readCache, writeCache } from "./cache_storage.ts";
import { quads, THREADS, threads } from "./rows.ts";

/**
 * keys[places[r], :] = k of row r, likewise values. Rows are the tokens of a prefill; a place counts tokens of the whole
 * cache. k and v lie at a stride and an offset (fused qkv). `width` = KV D.
 */
export const cacheAppend = byCacheDtype(
  { float32: "decode/cache_append", bfloat16: "decode/cache_append_bfloat16" },
  (dtype, name) =>
    defineKernel({
      name,
      bindings: {
        k: "read f32",
        v: "read f32",
        places: "read u32",
        keys: `write ${CACHE_ELEMENT[dtype]}`,
        values: `write ${CACHE_ELEMENT[dtype]}`,
      },
      params: { rows: "u32", width: "u32", k_stride: "u32", k_offset: "u32", v_stride: "u32", v_offset: "u32" },
      constants: THREADS,
      grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
      reference({ k, v, places, keys, values }, { rows, width, ...at }) {
        for (let row = 0; row < rows; row++) {
          const kAt = row * at.k_stride + at.k_offset;
          const vAt = row * at.v_stride + at.v_offset;
          writeCache(keys, places[row]! * width, k.subarray(kAt, kAt + width));
          writeCache(values, places[row]! * width, v.subarray(vAt, vAt + width));
        }
      },
      tolerance: { relative: 0, absolute: 0 },
    }),
);

/**
 * k[r, :] = keys[places[r], :], likewise v, in float32: what {@link cacheAppend} kept, in the order of the rows. k, v [rows,
 * width], `width` = KV D.
 */
export const cacheGather = byCacheDtype(
  { float32: "decode/cache_gather", bfloat16: "decode/cache_gather_bfloat16" },
  (dtype, name) =>
    defineKernel({
      name,
      bindings: {
        places: "read u32",
        keys: `read ${CACHE_ELEMENT[dtype]}`,
        values: `read ${CACHE_ELEMENT[dtype]}`,
        k: "write f32",
        v: "write f32",
      },
      params: { rows: "u32", width: "u32" },
      constants: THREADS,
      grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
      reference({ places, keys, values, k, v }, { rows, width }) {
        for (let row = 0; row < rows; row++) {
          k.set(readCache(keys, places[row]! * width, width), row * width);
          v.set(readCache(values, places[row]! * width, width), row * width);
        }
      },
      tolerance: { relative: 0, absolute: 0 },
    }),
);

/**
 * Copies whole pages, so that the samples of a group share their prompt's prefill. copies [n, 2] = from page, to page. No
 * page may be both read and written. `page_quads`: size of a page in units of 16 bytes, whatever its numbers are.
 */
export const cacheCopy = defineKernel({
  name: "decode/cache_copy",
  bindings: { copies: "read u32", keys: "write u32", values: "write u32" },
  params: { copies: "u32", page_quads: "u32" },
  constants: THREADS,
  grid: ({ copies, page_quads }, constants) => threads(copies * page_quads, constants),
  reference({ copies, keys, values }, params) {
    const page = params.page_quads * 4;
    for (let i = 0; i < params.copies; i++) {
      const [from, to] = copies.subarray(i * 2, i * 2 + 2);
      for (const cache of [keys, values]) cache.copyWithin(to! * page, from! * page, (from! + 1) * page);
    }
  },
  tolerance: { relative: 0, absolute: 0 },
});

/**
 * Attention of one new query per row to its keys in the cache: the last `window` ones up to p = positions[r] + shift, from
 * position 0 on. Append first. q [rows, H, D] at a stride and an offset, out [rows, H D].
 * Constants from `headConstants`.
 */
export const attentionDecode = byCacheDtype(
  { float32: "decode/attention_decode", bfloat16: "decode/attention_decode_bfloat16" },
  (dtype, name) =>
    defineKernel({
      name,
      bindings: {
        q: "read f32",
        keys: `read ${CACHE_ELEMENT[dtype]}`,
        values: `read ${CACHE_ELEMENT[dtype]}`,
        pages: "read u32",
        positions: "read u32",
        out: "write f32",
      },
      params: {
        rows: "u32",
        heads: "u32",
        key_heads: "u32",
        q_stride: "u32",
        q_offset: "u32",
        row_pages: "u32",
        shift: "u32",
        window: "u32",
        scale: "f32",
      },
      constants: { WORKGROUP: 8, HEAD_QUADS: 2, HEADS: 1 },
      grid: ({ rows, heads }, { WORKGROUP, HEADS }) => folded(Math.ceil((rows * heads) / HEADS! / WORKGROUP!)),
      reference({ q, keys, values, pages, positions, out }, params, { HEAD_QUADS }) {
        const { rows, heads, key_heads, row_pages, shift, scale } = params;
        const width = HEAD_QUADS! * 4;
        const sum = new Float64Array(width);
        for (let row = 0; row < rows; row++) {
          const position = positions[row]! + shift;
          const first = firstSeen(position, params.window);
          const starts = Array.from(
            { length: position + 1 - first },
            (_, i) => cacheIndex({ pages, row_pages }, row, first + i) * key_heads * width,
          );
          for (let h = 0; h < heads; h++) {
            const qAt = row * params.q_stride + params.q_offset + h * width;
            const within = Math.floor((h * key_heads) / heads) * width;
            const scores = starts.map((start) => {
              const key = readCache(keys, start + within, width);
              let dot = 0;
              for (let d = 0; d < width; d++) dot += q[qAt + d]! * key[d]!;
              return dot * scale;
            });
            const max = scores.reduce((a, b) => Math.max(a, b), -Infinity);
            let total = 0;
            sum.fill(0);
            for (const [s, start] of starts.entries()) {
              const weight = Math.exp(scores[s]! - max);
              const value = readCache(values, start + within, width);
              total += weight;
              for (let d = 0; d < width; d++) sum[d]! += weight * value[d]!;
            }
            for (let d = 0; d < width; d++) out[(row * heads + h) * width + d] = sum[d]! / total;
          }
        }
      },
      tolerance: { relative: 1e-5, absolute: 1e-5 },
    }),
);
