/**
 * Causal attention with grouped queries over packed sequences, without a score matrix in memory.
 *
 * q [T, H, D], k and v [T, KV, D] lie at a stride and an offset in each token: inside one fused buffer
 * [T, (H + 2 KV) D] or in three. Query head h reads key head floor(h / (H / KV)). Token t attends to
 * the last `window` tokens up to itself, from sequenceStart[t] on. The forward kernel's queries may begin at token `first`: k, v
 * and sequenceStart then have the tokens before it too, q and the results do not. statistics [T, H, 2]: log-sum-exp of the scaled scores, then rowsum(outGrad * out).
 */
import { type Constants, defineKernel, folded } from "../../compute/kernel.ts";
import { MAX_HEAD_WIDTH } from "./head_width.ts";

const QKV = { q: "read f32", k: "read f32", v: "read f32" } as const;
const SHAPE = { tokens: "u32", heads: "u32", key_heads: "u32", window: "u32" } as const;
const STRIDES = {
  q_stride: "u32",
  q_offset: "u32",
  k_stride: "u32",
  k_offset: "u32",
  v_stride: "u32",
  v_offset: "u32",
} as const;

/** A `window` that no sequence is longer than. */
export const WHOLE_SEQUENCE = 0xffff_ffff;

/** Constants of the attention kernels for a head width: a multiple of 4, at most 256. */
export function headConstants(headWidth: number): { readonly HEAD_QUADS: number } {
  if (headWidth % 4 !== 0 || headWidth <= 0 || headWidth > MAX_HEAD_WIDTH)
    throw new RangeError(`Cannot attend over heads of width ${headWidth}: a multiple of 4 up to ${MAX_HEAD_WIDTH}`);
  return { HEAD_QUADS: headWidth / 4 };
}

const CONSTANTS = { WORKGROUP: 8, HEAD_QUADS: 2 } as const;
const perHead = (tokens: number, heads: number, constants: Constants) =>
  folded(Math.ceil(tokens / constants.WORKGROUP!) * heads);

/** out[t, h] = sum over keys of softmax(scale q k) v; writes the log-sum-exp of `statistics`. out [T, H D]. */
export const attention = defineKernel({
  name: "attention/plain",
  bindings: { ...QKV, sequenceStart: "read u32", out: "write f32", statistics: "write f32" },
  params: { ...SHAPE, first: "u32", ...STRIDES, scale: "f32" },
  constants: CONSTANTS,
  grid: ({ tokens, heads }, constants) => perHead(tokens, heads, constants),
  reference({ q, k, v, sequenceStart, out, statistics }, params, { HEAD_QUADS }) {
    const { tokens, first, heads, key_heads, scale } = params;
    const width = HEAD_QUADS! * 4;
    const weights = new Float64Array(first + tokens);
    const sum = new Float64Array(width);
    for (let row = 0; row < tokens; row++)
      for (let h = 0; h < heads; h++) {
        const t = first + row;
        const shared = Math.floor((h * key_heads) / heads) * width;
        const qAt = row * params.q_stride + params.q_offset + h * width;
        const start = Math.max(sequenceStart[t]!, t + 1 - params.window);
        let max = -Infinity;
        for (let s = start; s <= t; s++) {
          const kAt = s * params.k_stride + params.k_offset + shared;
          let dot = 0;
          for (let d = 0; d < width; d++) dot += q[qAt + d]! * k[kAt + d]!;
          weights[s] = dot * scale;
          if (weights[s]! > max) max = weights[s]!;
        }
        let total = 0;
        sum.fill(0);
        for (let s = start; s <= t; s++) {
          const weight = Math.exp(weights[s]! - max);
          const vAt = s * params.v_stride + params.v_offset + shared;
          total += weight;
          for (let d = 0; d < width; d++) sum[d]! += weight * v[vAt + d]!;
        }
        for (let d = 0; d < width; d++) out[(row * heads + h) * width + d] = sum[d]! / total;
        statistics[(row * heads + h) * 2] = max + Math.log(total);
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/**
 * Gradient of {@link attention} in q, and the second column of `statistics`; run it before
 * {@link attentionBackwardKeys}. qGrad is written at `grad_stride`, `grad_offset`.
 */
export const attentionBackwardQueries = defineKernel({
  name: "attention/backward_queries",
  bindings: {
    ...QKV,
    out: "read f32",
    outGrad: "read f32",
    sequenceStart: "read u32",
    statistics: "write f32",
    qGrad: "write f32",
  },
  params: { ...SHAPE, ...STRIDES, grad_stride: "u32", grad_offset: "u32", scale: "f32" },
  constants: CONSTANTS,
  grid: ({ tokens, heads }, constants) => perHead(tokens, heads, constants),
  reference({ q, k, v, out, outGrad, sequenceStart, statistics, qGrad }, params, { HEAD_QUADS }) {
    const { tokens, heads, key_heads, scale } = params;
    const width = HEAD_QUADS! * 4;
    const sum = new Float64Array(width);
    for (let t = 0; t < tokens; t++)
      for (let h = 0; h < heads; h++) {
        const shared = Math.floor((h * key_heads) / heads) * width;
        const qAt = t * params.q_stride + params.q_offset + h * width;
        const outAt = (t * heads + h) * width;
        let delta = 0;
        for (let d = 0; d < width; d++) delta += outGrad[outAt + d]! * out[outAt + d]!;
        statistics[(t * heads + h) * 2 + 1] = delta;
        sum.fill(0);
        for (let s = Math.max(sequenceStart[t]!, t + 1 - params.window); s <= t; s++) {
          const kAt = s * params.k_stride + params.k_offset + shared;
          const vAt = s * params.v_stride + params.v_offset + shared;
          let score = 0;
          let weightGrad = 0;
          for (let d = 0; d < width; d++) {
            score += q[qAt + d]! * k[kAt + d]!;
            weightGrad += outGrad[outAt + d]! * v[vAt + d]!;
          }
          const weight = Math.exp(score * scale - statistics[(t * heads + h) * 2]!);
          const scoreGrad = weight * (weightGrad - delta) * scale;
          for (let d = 0; d < width; d++) sum[d]! += scoreGrad * k[kAt + d]!;
        }
        qGrad.set(sum, t * params.grad_stride + params.grad_offset + h * width);
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/**
 * Gradients of {@link attention} in k and v, into one buffer at two offsets (`dk_`, `dv_`): the k and v columns of a
 * fused gradient, or two halves of a buffer. sequenceEnd[t] is one past the last token of t's sequence.
 */
export const attentionBackwardKeys = defineKernel({
  name: "attention/backward_keys",
  bindings: {
    ...QKV,
    outGrad: "read f32",
    sequenceEnd: "read u32",
    statistics: "read f32",
    keyValueGrad: "write f32",
  },
  params: {
    ...SHAPE,
    ...STRIDES,
    dk_stride: "u32",
    dk_offset: "u32",
    dv_stride: "u32",
    dv_offset: "u32",
    scale: "f32",
  },
  constants: CONSTANTS,
  grid: ({ tokens, key_heads }, constants) => perHead(tokens, key_heads, constants),
  reference({ q, k, v, outGrad, sequenceEnd, statistics, keyValueGrad }, params, { HEAD_QUADS }) {
    const { tokens, heads, key_heads, scale } = params;
    const width = HEAD_QUADS! * 4;
    const group = heads / key_heads;
    const kSum = new Float64Array(width);
    const vSum = new Float64Array(width);
    for (let s = 0; s < tokens; s++)
      for (let shared = 0; shared < key_heads; shared++) {
        const kAt = s * params.k_stride + params.k_offset + shared * width;
        const vAt = s * params.v_stride + params.v_offset + shared * width;
        kSum.fill(0);
        vSum.fill(0);
        for (let t = s; t < Math.min(sequenceEnd[s]!, s + params.window); t++)
          for (let h = shared * group; h < (shared + 1) * group; h++) {
            const qAt = t * params.q_stride + params.q_offset + h * width;
            const outAt = (t * heads + h) * width;
            let score = 0;
            let weightGrad = 0;
            for (let d = 0; d < width; d++) {
              score += q[qAt + d]! * k[kAt + d]!;
              weightGrad += outGrad[outAt + d]! * v[vAt + d]!;
            }
            const weight = Math.exp(score * scale - statistics[(t * heads + h) * 2]!);
            const scoreGrad = weight * (weightGrad - statistics[(t * heads + h) * 2 + 1]!) * scale;
            for (let d = 0; d < width; d++) {
              kSum[d]! += scoreGrad * q[qAt + d]!;
              vSum[d]! += weight * outGrad[outAt + d]!;
            }
          }
        keyValueGrad.set(kSum, s * params.dk_stride + params.dk_offset + shared * width);
        keyValueGrad.set(vSum, s * params.dv_stride + params.dv_offset + shared * width);
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});
