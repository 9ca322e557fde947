/**
 * Attention through tiles in workgroup memory, for GPUs and for heads too wide for a software driver's compiler.
 * Bindings, params and results are those of `attention.ts` and `cache.ts`.
 */
import { type Constants, defineKernel, folded } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries } from "./attention.ts";
import { attentionStep } from "./attention_step.ts";
import { attentionDecode } from "./cache.ts";
import { byCacheDtype } from "./cache_storage.ts";

const CONSTANTS = { HEAD_QUADS: 16, ROWS: 16 } as const;

/** A workgroup per block of tokens and query head. */
const BY_QUERIES = {
  constants: CONSTANTS,
  grid: ({ tokens, heads }: { tokens: number; heads: number }, { ROWS }: Constants) =>
    folded(Math.ceil(tokens / ROWS!) * heads),
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
  grid: ({ tokens, key_heads }, { ROWS }) => folded(Math.ceil(tokens / ROWS!) * key_heads),
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

/** Rows of a tile that a kernel keeps, most first. */
const ROWS = [16, 8, 4] as const;
/** Rows of the two tiles that pass through. */
const LANES = 8;

/** Most rows of a kernel's tiles that fit into the adapter's workgroup memory; undefined where none do. */
export interface TileRows {
  readonly forward: number | undefined;
  readonly backward: number | undefined;
}

/** The forward kernel keeps one tile and one of scores, the backward ones up to two of each. */
export function tileRows(headWidth: number, storageBytes: number): TileRows {
  const largest = (tiles: number) => ROWS.find((rows) => tileBytes({ headWidth, rows, tiles }) <= storageBytes);
  return { forward: largest(1), backward: largest(2) };
}

function tileBytes({ headWidth, rows, tiles }: { headWidth: number; rows: number; tiles: number }): number {
  const pitch = (headWidth / 4 + 1) * 16;
  return (tiles * rows + 2 * LANES) * pitch + tiles * rows * LANES * 4;
}
