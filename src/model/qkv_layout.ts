/** Layout of q, k and v in a row of the fused projection: [H D | KV D | KV D]. Parameters of the kernels that walk it. */
import type { Buffer } from "../compute/device.ts";
import type { ModelConfig } from "./files/config.ts";

type Heads = Pick<ModelConfig, "heads" | "kvHeads" | "headDim">;

/** Elements of a row. */
export function qkvWidth({ heads, kvHeads, headDim }: Heads): number {
  return (heads + 2 * kvHeads) * headDim;
}

/** Offsets of k and v in a row. */
export function keyValueOffsets({ heads, kvHeads, headDim }: Heads): { k: number; v: number } {
  return { k: heads * headDim, v: (heads + kvHeads) * headDim };
}

export function qkvBuffers(qkv: Buffer): { q: Buffer; k: Buffer; v: Buffer } {
  return { q: qkv, k: qkv, v: qkv };
}

/** @param at.window tokens that attention sees, the token itself included. */
export function attentionParams(config: ModelConfig, { tokens, window }: { tokens: number; window: number }) {
  const stride = qkvWidth(config);
  const { k, v } = keyValueOffsets(config);
  return {
    tokens,
    heads: config.heads,
    key_heads: config.kvHeads,
    window,
    q_stride: stride,
    q_offset: 0,
    k_stride: stride,
    k_offset: k,
    v_stride: stride,
    v_offset: v,
    scale: attentionScale(config),
  };
}

/** The factor of q k: 1 / sqrt(D), or 1 / sqrt(queryPreAttnScalar). */
export function attentionScale({ headDim, queryPreAttnScalar = headDim }: ModelConfig): number {
  return 1 / Math.sqrt(queryPreAttnScalar);
}

/** The heads of q as rows of a norm kernel. */
export function queryRows(config: Heads, tokens: number) {
  return headRows(config, { tokens, perToken: config.heads, offset: 0 });
}

/** The heads of k as rows of a norm kernel. */
export function keyRows(config: Heads, tokens: number) {
  return headRows(config, { tokens, perToken: config.kvHeads, offset: keyValueOffsets(config).k });
}

function headRows(config: Heads, at: { tokens: number; perToken: number; offset: number }) {
  const { tokens, perToken, offset } = at;
  const stride = qkvWidth(config);
  return {
    rows: tokens * perToken,
    width: config.headDim,
    per_token: perToken,
    x_stride: stride,
    x_offset: offset,
    y_stride: stride,
    y_offset: offset,
  };
}

/** The v columns as rows of `addScaled`, from one projection to another. */
export function valueRows(config: Heads, tokens: number) {
  const [stride, offset] = [qkvWidth(config), keyValueOffsets(config).v];
  return {
    rows: tokens,
    width: config.kvHeads * config.headDim,
    x_stride: stride,
    x_offset: offset,
    y_stride: stride,
    y_offset: offset,
    scale: 1,
    accumulate: 0,
  };
}
