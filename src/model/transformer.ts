/**
 * The decoder's forward and backward pass over packed sequences, recorded on a device.
 *
 * Legend: T tokens, R rows whose next token counts, C channels, H query heads, KV key/value heads, D head width,
 * Q = H D, F feed-forward width, V vocabulary. Activations are row-major, [T, width].
 */
import type { Buffer, Device } from "../compute/device.ts";
import { type ModelConfig, ropeFrequencies } from "./files/config.ts";
import { type AttentionKernels, chooseAttention } from "./kernels/attention_choice.ts";
import { addScaled } from "./kernels/elementwise.ts";
import { plainRows, rmsNorm } from "./kernels/norm.ts";
import { rope, ropeTable } from "./kernels/rope.ts";
import { swiglu } from "./kernels/swiglu.ts";
import { Scratch } from "./scratch.ts";
import { EMBEDDING, type Weights } from "./weights.ts";

/** Packed sequences on the device, with what attention needs to know of them. */
export interface PackedInput {
  readonly count: number;
  /** [T] each, u32. */
  readonly tokens: Buffer;
  readonly positions: Buffer;
  readonly sequenceStart: Buffer;
  readonly sequenceEnd: Buffer;
  /** The tokens as they came, for the embedding's gradient. */
  readonly ids: Uint32Array;
}

/** Uploads sequences tokens[offsets[i] .. offsets[i+1]). */
export function packInput(
  scratch: Scratch,
  rows: { tokens: Uint32Array; offsets: Uint32Array },
): PackedInput {
  const { tokens, offsets } = rows;
  const count = tokens.length;
  const [positions, start, end] = [new Uint32Array(count), new Uint32Array(count), new Uint32Array(count)];
  for (let i = 0; i + 1 < offsets.length; i++)
    for (let t = offsets[i]!; t < offsets[i + 1]!; t++) {
      positions[t] = t - offsets[i]!;
      start[t] = offsets[i]!;
      end[t] = offsets[i + 1]!;
    }
  return {
    count,
    tokens: scratch.upload(tokens, "tokens"),
    positions: scratch.upload(positions, "positions"),
    sequenceStart: scratch.upload(start, "sequence starts"),
    sequenceEnd: scratch.upload(end, "sequence ends"),
    ids: tokens,
  };
}

/** What the backward pass needs of one layer. */
export interface LayerState {
  readonly x: Buffer;
  readonly normed1: Buffer;
  readonly inverse1: Buffer;
  /** Before q/k normalisation; `qkv` itself where there is none. */
  readonly qkvRaw: Buffer;
  readonly inverseQ?: Buffer;
  readonly inverseK?: Buffer;
  readonly qkv: Buffer;
  readonly attended: Buffer;
  readonly statistics: Buffer;
  readonly middle: Buffer;
  readonly normed2: Buffer;
  readonly inverse2: Buffer;
  readonly gateUp: Buffer;
  readonly active: Buffer;
}

export interface ForwardState {
  readonly input: PackedInput;
  readonly layers: readonly LayerState[];
  /** Output of the last layer, before the final norm, [T, C]. */
  readonly hidden: Buffer;
}

/** Called for each layer's q, k, v during a forward pass, to fill a cache. */
export type QkvVisitor = (layer: number, qkv: Buffer) => void;

export const INPUT_NORM = "input_layernorm.weight";
export const MIDDLE_NORM = "post_attention_layernorm.weight";
export const FINAL_NORM = "model.norm.weight";

export class Transformer {
  readonly device: Device;
  readonly config: ModelConfig;
  readonly head: string;
  readonly qkvWidth: number;
  /** cos and sin by position, [contextLength, D]. */
  readonly angles: Buffer;
  /** The kernels that suit the adapter and the heads. */
  readonly attention: AttentionKernels;
  /** Tokens whose widest activation one binding covers: a pass has no more. */
  readonly passLength: number;
  /** Of a sequence: the model's own, or the length of a pass where that is less. */
  readonly contextLength: number;

  constructor(device: Device, config: ModelConfig) {
    this.device = device;
    this.config = config;
    this.head = config.tied ? EMBEDDING : "lm_head.weight";
    this.qkvWidth = (config.heads + 2 * config.kvHeads) * config.headDim;
    this.attention = chooseAttention(device.info, {
      heads: config.heads,
      keyHeads: config.kvHeads,
      headWidth: config.headDim,
    });
    const widest = Math.max(config.hiddenSize, 2 * config.intermediateSize, this.qkvWidth);
    this.passLength = Math.floor(device.info.limits.maxBindingBytes / (4 * widest));
    this.contextLength = Math.min(config.contextLength, this.passLength);
    this.angles = device.upload(ropeTable(config.contextLength, ropeFrequencies(config)), "rope angles");
  }

  /** The context length, for messages. */
  get context(): string {
    const reason =
      this.contextLength < this.config.contextLength
        ? ", the most that one binding of this device covers"
        : "";
    return `${this.contextLength} tokens${reason}`;
  }

  /** Runs the layers. With `save`, what a backward pass needs stays alive in `scratch`. */
  forward(
    weights: Weights,
    run: { input: PackedInput; scratch: Scratch; save: boolean; visit?: QkvVisitor },
  ): ForwardState {
    const { input, scratch } = run;
    const { hiddenSize: C, layers: count } = this.config;
    const T = input.count;
    let x = scratch.floats(T * C, "residual");
    weights.embed({ tokens: input.tokens, out: x, count: T });
    const layers: LayerState[] = [];
    for (let layer = 0; layer < count; layer++) {
      const out = scratch.floats(T * C, "residual");
      const inner = run.save ? scratch : new Scratch(this.device);
      const state = this.layerForward(weights, { layer, x, out, input, scratch: inner });
      run.visit?.(layer, state.qkv);
      if (run.save) layers.push(state);
      else {
        inner.release();
        scratch.free(x);
      }
      x = out;
    }
    return { input, layers, hidden: x };
  }

  private layerForward(
    weights: Weights,
    at: { layer: number; x: Buffer; out: Buffer; input: PackedInput; scratch: Scratch },
  ): LayerState {
    const { layer, x, input, scratch } = at;
    const { hiddenSize: C, intermediateSize: F, heads: H, headDim: D } = this.config;
    const T = input.count;
    const name = layerNames(layer);
    const { normed: normed1, inverse: inverse1 } = this.norm(weights, {
      name: name(INPUT_NORM),
      x,
      rows: T,
      scratch,
    });
    const heads = this.project(weights, { name, normed: normed1, input, scratch });
    const attended = scratch.floats(T * H * D, "attention output");
    const statistics = scratch.floats(T * H * 2, "attention statistics");
    this.device.dispatch(this.attention.forward, {
      buffers: { ...qkvBuffers(heads.qkv), sequenceStart: input.sequenceStart, out: attended, statistics },
      params: this.attentionParams(T),
      constants: this.attention.constants,
    });
    const middle = scratch.floats(T * C, "residual");
    weights.apply(name("self_attn.o_proj.weight"), { x: attended, y: middle, m: T, addend: x });
    const { normed: normed2, inverse: inverse2 } = this.norm(weights, {
      name: name(MIDDLE_NORM),
      x: middle,
      rows: T,
      scratch,
    });
    const gateUp = scratch.floats(T * 2 * F, "gate and up");
    weights.apply(name("mlp.gate_up.weight"), { x: normed2, y: gateUp, m: T });
    const active = scratch.floats(T * F, "activation");
    this.device.dispatch(swiglu, { buffers: { gateUp, out: active }, params: { rows: T, width: F } });
    weights.apply(name("mlp.down_proj.weight"), { x: active, y: at.out, m: T, addend: middle });
    return {
      x,
      normed1,
      inverse1,
      ...heads,
      attended,
      statistics,
      middle,
      normed2,
      inverse2,
      gateUp,
      active,
    };
  }

  /** q, k and v of every token, normalised where the model does, turned by position. */
  private project(
    weights: Weights,
    at: { name: LayerName; normed: Buffer; input: PackedInput; scratch: Scratch },
  ): Pick<LayerState, "qkv" | "qkvRaw" | "inverseQ" | "inverseK"> {
    const { name, input, scratch } = at;
    const T = input.count;
    const qkvRaw = scratch.floats(T * this.qkvWidth, "qkv");
    this.projectInto(weights, { name, normed: at.normed, qkv: qkvRaw, rows: T });
    const normed = this.config.qkNorm
      ? this.normHeads(weights, { name, qkvRaw, rows: T, scratch })
      : { qkv: qkvRaw };
    this.turn(normed.qkv, { positions: input.positions, rows: T, shift: 0, sign: 1 });
    return { qkvRaw, ...normed };
  }

  /** qkv = normed W^T (+ bias). */
  projectInto(weights: Weights, at: { name: LayerName; normed: Buffer; qkv: Buffer; rows: number }): void {
    const { name, qkv, rows } = at;
    weights.apply(name("self_attn.qkv.weight"), { x: at.normed, y: qkv, m: rows });
    if (this.config.qkvBias) this.addBias(weights, at);
  }

  addBias(weights: Weights, { name, qkv, rows }: { name: LayerName; qkv: Buffer; rows: number }): void {
    // A row stride of 0 reads the bias again for every row.
    this.device.dispatch(addScaled, {
      buffers: { x: weights.values.get(name("self_attn.qkv.bias")), y: qkv },
      params: {
        rows,
        width: this.qkvWidth,
        x_stride: 0,
        x_offset: 0,
        y_stride: this.qkvWidth,
        y_offset: 0,
        scale: 1,
        accumulate: 1,
      },
    });
  }

  normHeads(
    weights: Weights,
    at: { name: LayerName; qkvRaw: Buffer; rows: number; scratch: Scratch },
  ): { qkv: Buffer; inverseQ: Buffer; inverseK: Buffer } {
    const { name, qkvRaw, rows, scratch } = at;
    const { heads, kvHeads, rmsNormEps: epsilon } = this.config;
    const qkv = scratch.floats(rows * this.qkvWidth, "qkv, normalised");
    const inverseQ = scratch.floats(rows * heads, "inverse rms");
    const inverseK = scratch.floats(rows * kvHeads, "inverse rms");
    for (const [part, inverseRms, layout] of [
      ["q", inverseQ, this.queryRows(rows)],
      ["k", inverseK, this.keyRows(rows)],
    ] as const)
      this.device.dispatch(rmsNorm, {
        buffers: {
          x: qkvRaw,
          weight: weights.values.get(name(`self_attn.${part}_norm.weight`)),
          y: qkv,
          inverseRms,
        },
        params: { ...layout, epsilon },
      });
    this.copyValues(qkvRaw, qkv, rows);
    return { qkv, inverseQ, inverseK };
  }

  /** Rotates q and k by their positions; `sign` -1 undoes it. */
  turn(qkv: Buffer, at: { positions: Buffer; rows: number; shift: number; sign: 1 | -1 }): void {
    const { heads, kvHeads, headDim } = this.config;
    const perToken = heads + kvHeads;
    this.device.dispatch(rope, {
      buffers: { positions: at.positions, table: this.angles, x: qkv },
      params: {
        rows: at.rows * perToken,
        width: headDim,
        per_token: perToken,
        stride: this.qkvWidth,
        offset: 0,
        shift: at.shift,
        sign: at.sign,
      },
    });
  }

  norm(
    weights: Weights,
    at: { name: string; x: Buffer; rows: number; scratch: Scratch },
  ): { normed: Buffer; inverse: Buffer } {
    const { hiddenSize: C, rmsNormEps: epsilon } = this.config;
    const normed = at.scratch.floats(at.rows * C, "normed");
    const inverse = at.scratch.floats(at.rows, "inverse rms");
    this.device.dispatch(rmsNorm, {
      buffers: { x: at.x, weight: weights.values.get(at.name), y: normed, inverseRms: inverse },
      params: { ...plainRows(at.rows, C), epsilon },
    });
    return { normed, inverse };
  }

  attentionParams(tokens: number) {
    const { heads, kvHeads, headDim } = this.config;
    return {
      tokens,
      heads,
      key_heads: kvHeads,
      q_stride: this.qkvWidth,
      q_offset: 0,
      k_stride: this.qkvWidth,
      k_offset: heads * headDim,
      v_stride: this.qkvWidth,
      v_offset: (heads + kvHeads) * headDim,
      scale: 1 / Math.sqrt(headDim),
    };
  }

  queryRows(tokens: number) {
    const { heads, headDim } = this.config;
    return this.headRows(tokens * heads, { per_token: heads, width: headDim, offset: 0 });
  }

  keyRows(tokens: number) {
    const { heads, kvHeads, headDim } = this.config;
    return this.headRows(tokens * kvHeads, { per_token: kvHeads, width: headDim, offset: heads * headDim });
  }

  private headRows(rows: number, at: { per_token: number; width: number; offset: number }) {
    const { per_token, width, offset } = at;
    const stride = this.qkvWidth;
    return { rows, width, per_token, x_stride: stride, x_offset: offset, y_stride: stride, y_offset: offset };
  }

  /** The v stretch of qkv. */
  copyValues(from: Buffer, to: Buffer, rows: number): void {
    const { heads, kvHeads, headDim } = this.config;
    const offset = (heads + kvHeads) * headDim;
    this.device.dispatch(addScaled, {
      buffers: { x: from, y: to },
      params: {
        rows,
        width: kvHeads * headDim,
        x_stride: this.qkvWidth,
        x_offset: offset,
        y_stride: this.qkvWidth,
        y_offset: offset,
        scale: 1,
        accumulate: 0,
      },
    });
  }

  release(): void {
    this.device.release(this.angles);
  }
}

export type LayerName = (part: string) => string;

export function layerNames(layer: number): LayerName {
  return (part) => `model.layers.${layer}.${part}`;
}

export function qkvBuffers(qkv: Buffer): { q: Buffer; k: Buffer; v: Buffer } {
  return { q: qkv, k: qkv, v: qkv };
}
