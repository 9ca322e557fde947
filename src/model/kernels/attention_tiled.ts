/**
 * Attention through tiles in workgroup memory, for GPUs and for heads too wide for a software driver's compiler.
 * Bindings, params and results are those of `attention.ts` and `cache.ts`.
 */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries } from "./attention.ts";
import { attentionStep } from "./attention_step.ts";
import { attentionDecode } from "./cache.ts";
import { byCacheDtype } from "./cache_storage.ts";

const CONSTANTS = { HEAD_QUADS: 16, HALVES: 2 } as const;

/** Rows and columns of a tile of scores. */
const SIDE = 64;

/** A workgroup per block of (token, head of a key head) and key head. */
const BY_QUERIES = {
  constants: CONSTANTS,
  grid: ({ tokens, heads, key_heads }: { tokens: number; heads: number; key_heads: number }) =>
    folded(Math.ceil((tokens * heads) / key_heads / SIDE) * key_heads),
};

export const attentionTiled = defineKernel({ ...attention, ...BY_QUERIES, name: "attention/tiled" });

export const attentionBackwardQueriesTiled = defineKernel({
  ...attentionBackwardQueries,
  ...BY_QUERIES,
  name: "attention/backward_queries_tiled",
});

export const attentionBackwardKeysTiled = defineKernel({
  ...attentionBackwardKeys,
  name: "attention/backward_keys_tiled",
  constants: { ...CONSTANTS, HALVES: 1 },
  grid: ({ tokens, key_heads }) => folded(Math.ceil(tokens / SIDE) * key_heads),
});

/** A workgroup per row and head. */
const BY_HEADS = {
  constants: { HEAD_QUADS: CONSTANTS.HEAD_QUADS },
  grid: ({ rows, heads }: { rows: number; heads: number }) => folded(rows * heads),
};

export const attentionDecodeTiled = byCacheDtype(
  { float32: "decode/attention_decode_tiled", bfloat16: "decode/attention_decode_tiled_bfloat16" },
  (dtype, name) => defineKernel({ ...attentionDecode[dtype], ...BY_HEADS, name }),
);

export const attentionStepTiled = byCacheDtype(
  { float32: "decode/attention_step_tiled", bfloat16: "decode/attention_step_tiled_bfloat16" },
  (dtype, name) => defineKernel({ ...attentionStep[dtype], ...BY_HEADS, name }),
);

/** Workgroup memory of the kernels over packed tokens. */
export const TILED_BYTES = 16_384;

/** Widest head whose sums leave registers for a second half of a thread's rows. */
const WIDEST_HALVED = 128;

/**
 * Constants of the kernels over packed tokens. The gradients of keys and values have twice the sums, and fewer workgroups than
 * the other two: their threads have 4 rows each.
 */
export function tiledConstants({ HEAD_QUADS }: { readonly HEAD_QUADS: number }) {
  const HALVES = HEAD_QUADS * 4 <= WIDEST_HALVED ? 2 : 1;
  return { queries: { HEAD_QUADS, HALVES }, keys: { HEAD_QUADS, HALVES: 1 } };
}
