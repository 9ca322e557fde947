/**
 * Attention through tiles in workgroup memory, for GPUs and for heads too wide for a software driver's compiler.
 * Bindings, params and results are those of `attention.ts` and `cache.ts`.
 */
import { type Constants, defineKernel, folded } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries } from "./attention.ts";
import { CHUNK_KEYS, headBlocks } from "./attention_chunks.ts";
import { attentionStep } from "./attention_step.ts";
import { attentionDecode } from "./cache.ts";
import { byCacheDtype, PAGE_TOKENS } from "./cache_storage.ts";

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

/** A workgroup per row and query heads that share a key head. */
const BY_SHARED = {
  constants: { HEAD_QUADS: CONSTANTS.HEAD_QUADS, SHARED: 1, STAGED_KEYS: 16 },
  grid: ({ rows, ...of }: { rows: number; heads: number; key_heads: number }, constants: Constants) =>
    folded(rows * headBlocks(of, constants)),
};

export const attentionDecodeTiled = byCacheDtype(
  { float32: "decode/attention_decode_tiled", bfloat16: "decode/attention_decode_tiled_bfloat16" },
  (dtype, name) => defineKernel({ ...attentionDecode[dtype], ...BY_SHARED, name }),
);

export const attentionStepTiled = byCacheDtype(
  { float32: "decode/attention_step_tiled", bfloat16: "decode/attention_step_tiled_bfloat16" },
  (dtype, name) => defineKernel({ ...attentionStep[dtype], ...BY_SHARED, name }),
);

/** Most query heads of a workgroup of a decoding step. */
const MOST_SHARED = 8;

/**
 * Constants of the kernels of a decoding step: as many of the heads that share a key head as workgroup memory has room for, at most 8, in
 * workgroups of equal numbers.
 */
export function decodeConstants(
  { heads, keyHeads, headWidth }: { readonly heads: number; readonly keyHeads: number; readonly headWidth: number },
  { maxWorkgroupStorageBytes }: { readonly maxWorkgroupStorageBytes: number },
) {
  const sharing = heads / keyHeads;
  let blocks = Math.ceil(sharing / MOST_SHARED);
  while (decodeBytes(headWidth, Math.ceil(sharing / blocks)) > maxWorkgroupStorageBytes) blocks++;
  const HEAD_QUADS = headWidth / 4;
  // A vec4 a thread, and whole ones in a tile.
  const STAGED_KEYS = Math.min(SIDE, 2 ** Math.floor(Math.log2(CHUNK_KEYS / HEAD_QUADS)));
  return { HEAD_QUADS, SHARED: Math.ceil(sharing / blocks), STAGED_KEYS };
}

/** Workgroup memory of shaders/decode/parts/attend_tiled.wgsl, with the own key and value of a step. */
function decodeBytes(width: number, shared: number): number {
  const queries = width * Math.ceil(shared / 4) * 16;
  const weights = shared * (CHUNK_KEYS + CHUNK_KEYS / 4) * 4;
  const perTile = shared * (CHUNK_KEYS / SIDE) * 8 + shared * 4;
  const [values, starts] = [CHUNK_KEYS * 16, (CHUNK_KEYS / PAGE_TOKENS) * 4];
  return queries + weights + perTile + values + starts + 2 * width * 4;
}

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
