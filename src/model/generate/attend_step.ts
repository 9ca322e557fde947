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
import type { Layer } from "../layers.ts";
import { attentionScale } from "../qkv_layout.ts";
import type { Transformer } from "../transformer.ts";
import { cacheBuffers, type StepInput } from "./step_input.ts";

/** Fewer workgroups than this leave most of a GPU idle. */
const BUSY_WORKGROUPS = 128;
/**
 * Least number of chunks for a second dispatch. It saves too little where fewer of them run one after another: both
 * take a few microseconds.
 */
const LEAST_CHUNKS = 5;
/** Most bytes of what chunks leave. */
const MOST_BYTES = 2 ** 25;

type StepAttention = StepInput & { readonly layer: Layer; readonly qkv: Buffer; readonly out: Buffer };

/** out [rows, H D] from qkv [rows, (H + 2 KV) D], which is not turned, in one dispatch or, for few rows with long contexts, two. Records only. */
export function attendStep(model: Transformer, kernel: typeof attentionStep, at: StepAttention): void {
  const { split } = model.attention;
  if (split && isWorthSplitting(model, at)) attendInChunks(model, split, at);
  else dispatchStep(model, kernel, at);
}

function isWorthSplitting({ attention, config }: Transformer, { rows: { count, rowPages } }: StepAttention): boolean {
  const { heads, kvHeads: key_heads, headDim: headWidth } = config;
  const workgroups = count * headBlocks({ heads, key_heads }, attention.decodeConstants);
  const bytes = 4 * chunkFloats({ rows: count, heads, headWidth, row_pages: rowPages });
  return rowChunks(rowPages) >= LEAST_CHUNKS && workgroups < BUSY_WORKGROUPS && bytes <= MOST_BYTES;
}

function attendInChunks(model: Transformer, kernel: typeof attentionStepChunks, at: StepAttention): void {
  const { config, device } = model;
  const { layer, rows, shift, scratch, out } = at;
  const { heads, headDim: headWidth } = config;
  const of = { rows: rows.count, heads, row_pages: rows.rowPages };
  const parts = scratch.floats(chunkFloats({ ...of, headWidth }), "attention by chunks");
  dispatchStep(model, kernel, { ...at, out: parts });
  device.dispatch(attentionMerge, {
    buffers: { parts, positions: rows.positions, out },
    params: { ...of, shift, window: layer.window },
    constants: { HEAD_QUADS: headWidth / 4 },
  });
  scratch.free(parts);
}

function dispatchStep(
  { config, attention, device, ropes }: Transformer,
  kernel: typeof attentionStep,
  { cache, layer, rows, shift, qkv, out }: StepAttention,
): void {
  device.dispatch(kernel[cache.dtype], {
    buffers: { ...cacheBuffers({ cache, layer: layer.index, rows }), qkv, angles: ropes.table(layer.index), out },
    params: {
      rows: rows.count,
      heads: config.heads,
      key_heads: config.kvHeads,
      row_pages: rows.rowPages,
      shift,
      window: layer.window,
      rotates: layer.rotates ? 1 : 0,
      scale: attentionScale(config),
    },
    constants: attention.decodeConstants,
  });
}
