/**
 * Workgroups of a dispatch, counted by hand: one too few leaves results out, many too many do nothing and take time. The
 * figures are of work that fills the last workgroup in part.
 */
import { expect, test } from "vitest";
import type { Grid } from "../../../../src/engine/compute/kernel.ts";
import { adamw, clipFactor, squareSum } from "../../../../src/engine/model/kernels/adamw.ts";
import {
  attention,
  attentionBackwardKeys,
  attentionBackwardQueries,
} from "../../../../src/engine/model/kernels/attention.ts";
import { attentionMerge, attentionStepChunks } from "../../../../src/engine/model/kernels/attention_chunks.ts";
import { attentionStep } from "../../../../src/engine/model/kernels/attention_step.ts";
import {
  attentionBackwardKeysSubgroup,
  attentionBackwardQueriesSubgroup,
  attentionSubgroup,
} from "../../../../src/engine/model/kernels/attention_subgroup.ts";
import {
  attentionBackwardKeysTiled,
  attentionBackwardQueriesTiled,
  attentionDecodeTiled,
  attentionStepTiled,
  attentionTiled,
} from "../../../../src/engine/model/kernels/attention_tiled.ts";
import { attentionDecode, cacheAppend, cacheCopy, cacheGather } from "../../../../src/engine/model/kernels/cache.ts";
import { columnPartials, columnSum } from "../../../../src/engine/model/kernels/column_sum.ts";
import { decodeRows } from "../../../../src/engine/model/kernels/decode_rows.ts";
import { addScaled, scaleInPlace, scaleRows, transpose } from "../../../../src/engine/model/kernels/elementwise.ts";
import { embedding, embeddingBackward, embeddingPacked } from "../../../../src/engine/model/kernels/embedding.ts";
import { gatherTokens } from "../../../../src/engine/model/kernels/gather_tokens.ts";
import { GATED } from "../../../../src/engine/model/kernels/geglu.ts";
import {
  chooseGreedyHits,
  chooseLogprobBackward,
  logprob,
  logprobSegments,
  logprobTiled,
} from "../../../../src/engine/model/kernels/logprob.ts";
import {
  chooseRmsNorm,
  chooseRmsNormBackward,
  rmsNorm,
  rmsNormBackward,
  rmsNormWeightPartials,
} from "../../../../src/engine/model/kernels/norm.ts";
import { rope } from "../../../../src/engine/model/kernels/rope.ts";
import { ropeAppend } from "../../../../src/engine/model/kernels/rope_append.ts";
import { sample } from "../../../../src/engine/model/kernels/sample.ts";
import {
  sampleHistogram,
  sampleKept,
  sampleSegments,
  sampleTiled,
} from "../../../../src/engine/model/kernels/sample_tiled.ts";

/** What of a kernel says how many workgroups it needs. */
interface Sized {
  readonly name: string;
  readonly constants?: Readonly<Record<string, number>> | undefined;
  grid(params: never, constants: Readonly<Record<string, number>>): Grid;
}

function gridOf({ grid, constants = {} }: Sized, params: Readonly<Record<string, number>>, changed = {}) {
  const [x, y = 1, z = 1] = grid(params as never, { ...constants, ...changed });
  return [x, y, z];
}

const SOFTWARE = { family: "scalar" } as const;
const GPU = { family: "tiled" } as const;
/** 33 tokens of 3 query heads and one key head. */
const HEADS = { tokens: 33, rows: 33, heads: 3, key_heads: 1, width: 12 };

test.each<[Sized, Record<string, number>, number[], Record<string, number>?]>([
  // A thread for each vec4 of a row, 64 in a workgroup.
  [embedding, { tokens: 33, width: 8 }, [2]],
  [embeddingPacked, { tokens: 33, width: 8 }, [2]],
  [embeddingBackward, { rows: 33, width: 8 }, [2]],
  [addScaled, { rows: 33, width: 8 }, [2]],
  [scaleInPlace, { length: 260 }, [2]],
  [scaleRows, { rows: 33, width: 8 }, [2]],
  [GATED.silu.forward, { rows: 33, width: 8 }, [2]],
  [GATED.silu.backward, { rows: 33, width: 8 }, [2]],
  [columnSum, { rows: 1000, width: 260 }, [2]],
  [adamw, { first: 4, count: 260 }, [2]],
  [cacheAppend.float32, { rows: 33, width: 8 }, [2]],
  [cacheGather.float32, { rows: 33, width: 8 }, [2]],
  [gatherTokens, { rows: 65 }, [2]],
  [cacheCopy, { copies: 3, page_quads: 32 }, [2]],
  // A thread for two pairs of a head; q, k and v in the step that keeps k and v.
  [rope, { rows: 33, width: 8 }, [2]],
  [ropeAppend.float32, { rows: 5, heads: 3, key_heads: 1, width: 12 }, [2]],
  // A thread for four elements of a column.
  [transpose, { rows: 9, columns: 22 }, [2]],
  // A thread for a row.
  [rmsNorm, { rows: 65, width: 8 }, [2]],
  [rmsNormBackward, { rows: 65, width: 8 }, [2]],
  [chooseRmsNorm(GPU, { width: 252 }), { rows: 65, width: 252 }, [2]],
  [chooseRmsNorm(SOFTWARE, { width: 256 }), { rows: 65, width: 256 }, [2]],
  [chooseRmsNorm(GPU, { width: 256 }), { rows: 65, width: 256 }, [65]],
  [chooseRmsNormBackward(GPU, { width: 252 }), { rows: 65, width: 252 }, [2]],
  [chooseRmsNormBackward(SOFTWARE, { width: 256 }), { rows: 65, width: 256 }, [2]],
  [chooseRmsNormBackward(GPU, { width: 256 }), { rows: 65, width: 256 }, [65]],
  [logprob, { rows: 9 }, [2]],
  [chooseGreedyHits(SOFTWARE), { rows: 9 }, [2]],
  [chooseGreedyHits(GPU), { rows: 9 }, [9]],
  [sample, { rows: 9 }, [2]],
  [decodeRows, { rows: 33 }, [2]],
  // 64 blocks of rows, whatever their number.
  [rmsNormWeightPartials, { rows: 1, width: 12 }, [3]],
  [columnPartials, { rows: 1, width: 12 }, [3]],
  [squareSum, { count: 4 }, [64]],
  [clipFactor, { count: 1000 }, [1]],
  // A workgroup for a row; 64 vec4s of a gradient's row in a thread.
  [logprobTiled, { rows: 9 }, [9]],
  [sampleTiled, { rows: 9 }, [9]],
  // A workgroup for 2,048 logits of a row.
  [logprobSegments, { rows: 9, vocabulary: 4097 }, [27]],
  [sampleSegments, { rows: 9, vocabulary: 4096 }, [18]],
  [sampleHistogram, { rows: 9, vocabulary: 2047 }, [9]],
  [sampleKept, { rows: 1, vocabulary: 151_936 }, [75]],
  [chooseLogprobBackward(SOFTWARE), { rows: 3, stride: 516 }, [6]],
  [chooseLogprobBackward(GPU), { rows: 3, stride: 4100 }, [6]],
  // 8 tokens of a head; 8 queries of a step, or pairs of them.
  [attention, HEADS, [15]],
  [attentionBackwardQueries, HEADS, [15]],
  [attentionBackwardKeys, HEADS, [5]],
  [attentionSubgroup, { ...HEADS, heads: 4 }, [10], { HEADS: 2 }],
  [attentionBackwardQueriesSubgroup, { ...HEADS, heads: 4 }, [10], { HEADS: 2 }],
  [attentionBackwardKeysSubgroup, HEADS, [5]],
  // 387 rows of 3 heads that share a key head, 64 in a workgroup.
  [attentionTiled, { tokens: 129, heads: 6, key_heads: 2 }, [14]],
  [attentionBackwardQueriesTiled, { tokens: 129, heads: 6, key_heads: 2 }, [14]],
  [attentionBackwardKeysTiled, { tokens: 129, heads: 6, key_heads: 2 }, [6]],
  [attentionDecode.float32, { rows: 11, heads: 3 }, [5]],
  [attentionDecode.float32, { rows: 11, heads: 4 }, [3], { HEADS: 2 }],
  [attentionStep.float32, { rows: 11, heads: 4, key_heads: 2 }, [3], { HEADS: 2 }],
  // 9 heads of each key head in workgroups of 5; chunks of 256 keys in 33 pages of 16.
  [attentionDecodeTiled.float32, { rows: 11, heads: 18, key_heads: 2 }, [44], { SHARED: 5 }],
  [attentionStepTiled.float32, { rows: 11, heads: 18, key_heads: 2 }, [44], { SHARED: 5 }],
  [attentionStepChunks.float32, { rows: 11, heads: 18, key_heads: 2, row_pages: 33 }, [132], { SHARED: 5 }],
  [attentionMerge, { rows: 11, heads: 18, row_pages: 33 }, [50]],
])("$0.name of $1 has $2 workgroups", (kernel, params, expected, constants) => {
  expect(gridOf(kernel, params, constants)).toEqual([...expected, 1, 1].slice(0, 3));
});

test.each<[Sized, Record<string, number>]>([
  [embedding, { tokens: 1, width: 6 }],
  [embeddingBackward, { rows: 1, width: 6 }],
  [addScaled, { rows: 1, width: 6 }],
  [scaleInPlace, { length: 6 }],
  [scaleRows, { rows: 1, width: 6 }],
  [GATED.silu.forward, { rows: 1, width: 6 }],
  [GATED.gelu_pytorch_tanh.backward, { rows: 1, width: 6 }],
  [rmsNorm, { rows: 1, width: 6 }],
  [rmsNormBackward, { rows: 1, width: 6 }],
  [rmsNormWeightPartials, { rows: 1, width: 6 }],
  [columnSum, { rows: 1, width: 6 }],
  [columnPartials, { rows: 1, width: 6 }],
  [chooseRmsNorm(GPU, { width: 258 }), { rows: 1, width: 6 }],
  [chooseRmsNormBackward(GPU, { width: 258 }), { rows: 1, width: 6 }],
  [squareSum, { count: 6 }],
  [adamw, { first: 0, count: 6 }],
  [adamw, { first: 6, count: 4 }],
  [cacheAppend.bfloat16, { rows: 1, width: 6 }],
  [cacheGather.float32, { rows: 1, width: 6 }],
  [ropeAppend.bfloat16, { rows: 1, heads: 1, key_heads: 1, width: 6 }],
  [chooseLogprobBackward(GPU), { rows: 1, stride: 6 }],
])("$0.name reads vec4s, and refuses $1", (kernel, params) => {
  expect(() => gridOf(kernel, params)).toThrow(/Cannot run a kernel over \w+ not in fours: 6/);
});
