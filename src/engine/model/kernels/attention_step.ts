/** Rotary positions, the cache and the attention of a decoding step in one dispatch. */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { attentionDecode } from "./cache.ts";
import { byCacheDtype, CACHE_ELEMENT } from "./cache_storage.ts";
import { ropeAppend } from "./rope_append.ts";

/** Wider heads take the kernels of attention_tiled.ts. */
export const WIDEST_STEP = 32;
/** Widths that are not a multiple of it take two kernels. */
export const STEP_MULTIPLE = 8;

/**
 * Equals `ropeAppend` followed by `attentionDecode`, but does not write qkv [rows, (H + 2 KV) D]. Constants as for
 * `attentionDecode`.
 */
export const attentionStep = byCacheDtype(
  { float32: "decode/attention_step", bfloat16: "decode/attention_step_bfloat16" },
  (dtype, name) =>
    defineKernel({
      name,
      bindings: {
        qkv: "read f32",
        angles: "read f32",
        pages: "read u32",
        positions: "read u32",
        keys: `write ${CACHE_ELEMENT[dtype]}`,
        values: `write ${CACHE_ELEMENT[dtype]}`,
        out: "write f32",
      },
      params: {
        rows: "u32",
        heads: "u32",
        key_heads: "u32",
        row_pages: "u32",
        shift: "u32",
        window: "u32",
        rotates: "u32",
        scale: "f32",
      },
      constants: { WORKGROUP: 8, HEAD_QUADS: 2, HEADS: 1 },
      grid: ({ rows, heads }, { WORKGROUP, HEADS }) => folded(Math.ceil((rows * heads) / HEADS! / WORKGROUP!)),
      reference({ qkv, ...views }, params, constants) {
        const width = constants.HEAD_QUADS! * 4;
        const q_stride = (params.heads + 2 * params.key_heads) * width;
        const turned = qkv.slice(0, params.rows * q_stride);
        ropeAppend[dtype].reference({ ...views, qkv: turned }, { ...params, width }, constants);
        attentionDecode[dtype].reference({ ...views, q: turned }, { ...params, q_stride, q_offset: 0 }, constants);
      },
      tolerance: { relative: 1e-5, absolute: 1e-5 },
    }),
);
