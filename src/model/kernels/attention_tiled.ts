/**
 * Attention through tiles in workgroup memory, for GPUs and for heads too wide for a software driver's compiler.
 * Bindings, params and results are those of `attention.ts` and `cache.ts`.
 */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries } from "./attention.ts";
import { attentionDecode } from "./cache.ts";

const ROWS = 16;
const CONSTANTS = { HEAD_QUADS: 16 } as const;

/** A workgroup per block of tokens and query head. */
const BY_QUERIES = {
  constants: CONSTANTS,
  grid: ({ tokens, heads }: { tokens: number; heads: number }) => folded(Math.ceil(tokens / ROWS) * heads),
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
  constants: CONSTANTS,
  grid: ({ tokens, key_heads }) => folded(Math.ceil(tokens / ROWS) * key_heads),
});

export const attentionDecodeTiled = defineKernel({
  ...attentionDecode,
  name: "decode/attention_decode_tiled",
  constants: CONSTANTS,
  grid: ({ rows, heads }) => folded(rows * heads),
});

/** Workgroup memory of the largest of these kernels: two tiles of 16 rows, two of 8, two of scores. */
export function tiledStorageBytes(headWidth: number): number {
  return 48 * (headWidth / 4 + 1) * 16 + 2 * 128 * 4;
}
