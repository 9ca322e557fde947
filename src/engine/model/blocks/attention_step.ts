/** A decoding step's attention: q and k are turned, k and v kept in the cache, each row attends to its keys. */
import type { Buffer } from "../../compute/device.ts";
import {
  attentionMerge,
  type attentionStepChunks,
  chunkFloats,
  headBlocks,
  rowChunks,
} from "../kernels/attention_chunks.ts";
import type { attentionStep } from "../kernels/attention_step.ts";
import { ropeAppend } from "../kernels/rope_append.ts";
import { type AttentionBlock, attentionKernels } from "./attention_block.ts";
import type { BlockContext, CachedRows, DecodedRows, LayerCache } from "./block.ts";
import { kernelWindow, qkvWidth } from "./qkv_layout.ts";

/** Fewer workgroups than this leave most of a GPU idle. */
const BUSY_WORKGROUPS = 128;
/** Least number of chunks, one after another, for which a second dispatch saves more than its own few microseconds. */
const LEAST_CHUNKS = 5;
/** Most bytes of what chunks leave. */
const MOST_BYTES = 2 ** 25;

type StepOf = Pick<DecodedRows<AttentionBlock>, "block" | "rows" | "cache" | "shift" | "scratch">;
type AttendedStep = StepOf & { readonly qkv: Buffer; readonly out: Buffer };

/** Attention of each row, [rows, H D], from its qkv [rows, (H + 2 KV) D], which is not turned. Records only. */
export function attendCached(context: BlockContext, at: StepOf, qkv: Buffer): Buffer {
  const { block, rows, scratch } = at;
  const out = scratch.floats(rows.count * block.heads * block.headDim, "attention output");
  const { step } = attentionKernels(context.device.info, block);
  if (step && !rows.sharesSequences) attendStep(context, step, { ...at, qkv, out });
  else {
    rotateAndAppend(context, at, qkv);
    attendPages(context, at, { qkv, out });
  }
  return out;
}

/** The same in one dispatch or, for few rows with long contexts, two. Records only. */
export function attendStep(context: BlockContext, kernel: typeof attentionStep, at: AttendedStep): void {
  const { split } = attentionKernels(context.device.info, at.block);
  if (split && isWorthSplitting(context, at)) attendInChunks(context, split, at);
  else dispatchStep(context, kernel, at);
}

function isWorthSplitting({ device }: BlockContext, { block, rows: { count, rowPages } }: StepOf): boolean {
  const { heads, kvHeads: key_heads, headDim: headWidth } = block;
  const workgroups = count * headBlocks({ heads, key_heads }, attentionKernels(device.info, block).decodeConstants);
  const bytes = 4 * chunkFloats({ rows: count, heads, headWidth, row_pages: rowPages });
  return rowChunks(rowPages) >= LEAST_CHUNKS && workgroups < BUSY_WORKGROUPS && bytes <= MOST_BYTES;
}

function attendInChunks(context: BlockContext, kernel: typeof attentionStepChunks, at: AttendedStep): void {
  const { block, rows, shift, scratch, out } = at;
  const { heads, headDim: headWidth } = block;
  const of = { rows: rows.count, heads, row_pages: rows.rowPages };
  const parts = scratch.floats(chunkFloats({ ...of, headWidth }), "attention by chunks");
  dispatchStep(context, kernel, { ...at, out: parts });
  context.device.dispatch(attentionMerge, {
    buffers: { parts, positions: rows.positions, out },
    params: { ...of, shift, window: kernelWindow(block) },
    constants: { HEAD_QUADS: headWidth / 4 },
  });
  scratch.free(parts);
}

function dispatchStep(
  { device, ropes }: BlockContext,
  kernel: typeof attentionStep,
  { cache, block, rows, shift, qkv, out }: AttendedStep,
): void {
  device.dispatch(kernel[cache!.dtype], {
    buffers: { ...cacheBuffers(cache!, rows), qkv, angles: ropes.table(block), out },
    params: {
      rows: rows.count,
      heads: block.heads,
      key_heads: block.kvHeads,
      row_pages: rows.rowPages,
      shift,
      window: kernelWindow(block),
      rotates: block.rope ? 1 : 0,
      scale: block.scale,
    },
    constants: attentionKernels(device.info, block).decodeConstants,
  });
}

/** Rotates q and k by position, and writes k and v into the cache. */
function rotateAndAppend({ device, ropes }: BlockContext, { cache, block, rows, shift }: StepOf, qkv: Buffer): void {
  device.dispatch(ropeAppend[cache!.dtype], {
    buffers: { ...cacheBuffers(cache!, rows), angles: ropes.table(block), qkv },
    params: {
      rows: rows.count,
      heads: block.heads,
      key_heads: block.kvHeads,
      width: block.headDim,
      row_pages: rows.rowPages,
      shift,
      rotates: block.rope ? 1 : 0,
    },
  });
}

/** Attention of each row's query to its keys in the cache. */
function attendPages(
  { device }: BlockContext,
  { cache, block, rows, shift }: StepOf,
  io: { qkv: Buffer; out: Buffer },
): void {
  const kernels = attentionKernels(device.info, block);
  device.dispatch(kernels.decode[cache!.dtype], {
    buffers: { ...cacheBuffers(cache!, rows), q: io.qkv, out: io.out },
    params: {
      rows: rows.count,
      heads: block.heads,
      key_heads: block.kvHeads,
      q_stride: qkvWidth(block),
      q_offset: 0,
      row_pages: rows.rowPages,
      shift,
      window: kernelWindow(block),
      scale: block.scale,
    },
    constants: kernels.decodeConstants,
  });
}

function cacheBuffers({ keys, values }: LayerCache, { pages, positions }: CachedRows) {
  return { pages, positions, keys, values };
}
