/**
 * Attention for software drivers whose subgroups are 8 lanes wide: lanes load 8 neighbouring keys (or queries) and
 * share them by shuffles. Bindings, params and results are those of `attention.ts`. HEADS is the number of heads per thread
 * that share a key head, 1 or 2; it must divide H / KV.
 */
import { type Constants, defineKernel, folded } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries } from "./attention.ts";

const LANES = 8;
const CONSTANTS = { HEAD_QUADS: 2, HEADS: 2 } as const;

const perBundle = ({ tokens, heads }: { tokens: number; heads: number }, { HEADS }: Constants) =>
  folded(Math.ceil(tokens / LANES) * (heads / HEADS!));

export const attentionSubgroup = defineKernel({
  ...attention,
  name: "attention/subgroup",
  constants: CONSTANTS,
  grid: perBundle,
});

export const attentionBackwardQueriesSubgroup = defineKernel({
  ...attentionBackwardQueries,
  name: "attention/backward_queries_subgroup",
  constants: CONSTANTS,
  grid: perBundle,
});

export const attentionBackwardKeysSubgroup = defineKernel({
  ...attentionBackwardKeys,
  name: "attention/backward_keys_subgroup",
  constants: CONSTANTS,
  grid: ({ tokens, key_heads }) => folded(Math.ceil(tokens / LANES) * key_heads),
});
