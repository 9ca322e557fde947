/** The layout of q, k and v in a row of the fused projection, [H D | KV D | KV D], as parameters of the kernels that walk it. */
import type { Buffer } from "../../compute/device.ts";
import { WHOLE_SEQUENCE } from "../kernels/attention.ts";

/** The heads of an attention block. */
export interface HeadCounts {
  /** H. */
  readonly heads: number;
  /** KV. */
  readonly kvHeads: number;
  /** D. */
  readonly headDim: number;
}

/** Elements of a row. */
export function qkvWidth({ heads, kvHeads, headDim }: HeadCounts): number {
  return (heads + 2 * kvHeads) * headDim;
}

/** Offsets of k and v in a row. */
export function keyValueOffsets({ heads, kvHeads, headDim }: HeadCounts): { k: number; v: number } {
  return { k: heads * headDim, v: (heads + kvHeads) * headDim };
}

export function qkvBuffers(qkv: Buffer): { q: Buffer; k: Buffer; v: Buffer } {
  return { q: qkv, k: qkv, v: qkv };
}

/** The window of a block as kernels take it. */
export function kernelWindow({ window }: { readonly window: number }): number {
  return Math.min(window, WHOLE_SEQUENCE);
}

/** @param block.window tokens that attention sees, the token itself included; @param block.scale factor of q k */
export function attentionParams(
  block: HeadCounts & { readonly window: number; readonly scale: number },
  { tokens }: { tokens: number },
) {
  const stride = qkvWidth(block);
  const { k, v } = keyValueOffsets(block);
  return {
    tokens,
    heads: block.heads,
    key_heads: block.kvHeads,
    window: kernelWindow(block),
    q_stride: stride,
    q_offset: 0,
    k_stride: stride,
    k_offset: k,
    v_stride: stride,
    v_offset: v,
    scale: block.scale,
  };
}

/** The heads of q as rows of a norm kernel. */
export function queryRows(block: HeadCounts, tokens: number) {
  return headRows(block, { tokens, perToken: block.heads, offset: 0 });
}

/** The heads of k as rows of a norm kernel. */
export function keyRows(block: HeadCounts, tokens: number) {
  return headRows(block, { tokens, perToken: block.kvHeads, offset: keyValueOffsets(block).k });
}

function headRows(block: HeadCounts, at: { tokens: number; perToken: number; offset: number }) {
  const { tokens, perToken, offset } = at;
  const stride = qkvWidth(block);
  return {
    rows: tokens * perToken,
    width: block.headDim,
    per_token: perToken,
    x_stride: stride,
    x_offset: offset,
    y_stride: stride,
    y_offset: offset,
  };
}

/** The v columns as rows of `addScaled`, from one projection to another. */
export function valueRows(block: HeadCounts, tokens: number) {
  const [stride, offset] = [qkvWidth(block), keyValueOffsets(block).v];
  return {
    rows: tokens,
    width: block.kvHeads * block.headDim,
    x_stride: stride,
    x_offset: offset,
    y_stride: stride,
    y_offset: offset,
    scale: 1,
    accumulate: 0,
  };
}
