/**
 * The decoder's page: the architecture from top to bottom, recorded on a device over packed sequences.
 *
 *     x = embedding[tokens]
 *     each layer:  x += attention(norm(x));  x += mlp(norm(x))
 *     log-probabilities = log softmax(norm(x) head^T): head.ts, for the rows that are needed
 *
 * Legend: T tokens, R rows whose next token counts, C channels, H query heads, KV key/value heads, D head width,
 * Q = H D, F feed-forward width, V vocabulary. Activations are row-major, [T, width].
 *
 * The backward pass is train/backward.ts; one decoding step over a cache is generate/decode_step.ts.
 */
import type { Buffer, Device } from "../compute/device.ts";
import { type ModelConfig, ropeFrequencies } from "./files/config.ts";
import { type AttentionKernels, chooseAttention } from "./kernels/attention_choice.ts";
import { addScaled } from "./kernels/elementwise.ts";
import { plainRows, rmsNorm } from "./kernels/norm.ts";
import { rope, ropeTable } from "./kernels/rope.ts";
import { swiglu } from "./kernels/swiglu.ts";
import type { PackedInput } from "./packed_input.ts";
import { attentionParams, keyRows, qkvBuffers, qkvWidth, queryRows, valueRows } from "./qkv_layout.ts";
import { Scratch } from "./scratch.ts";
import { EMBEDDING, type Weights } from "./weights.ts";

export const INPUT_NORM = "input_layernorm.weight";
export const MIDDLE_NORM = "post_attention_layernorm.weight";
export const FINAL_NORM = "model.norm.weight";

/** What the backward pass needs from attention, and from the MLP, of one layer. */
export type LayerState = AttentionState & MlpState;

interface AttentionState extends Projection {
  /** The layer's input, [T, C]. */
  readonly x: Buffer;
  readonly normed1: Buffer;
  readonly inverse1: Buffer;
  /** [T, Q]. */
  readonly attended: Buffer;
  readonly statistics: Buffer;
  /** x + attention, [T, C]. */
  readonly middle: Buffer;
}

interface Projection {
  /** [T, Q + 2 KV D]. */
  readonly qkv: Buffer;
  /** Before q/k normalisation; `qkv` where the model has none. */
  readonly qkvRaw: Buffer;
  readonly inverseQ?: Buffer;
  readonly inverseK?: Buffer;
}

interface MlpState {
  readonly normed2: Buffer;
  readonly inverse2: Buffer;
  /** [T, 2 F]. */
  readonly gateUp: Buffer;
  /** [T, F]. */
  readonly active: Buffer;
}

export interface ForwardState {
  readonly input: PackedInput;
  readonly layers: readonly LayerState[];
  /** Output of the last layer, before the final norm, [T, C]. */
  readonly hidden: Buffer;
}

/** Called with each layer's q, k, v during a forward pass, to fill a cache. */
export type QkvVisitor = (layer: number, qkv: Buffer) => void;

interface LayerInput {
  readonly name: LayerName;
  readonly x: Buffer;
  readonly input: PackedInput;
  readonly scratch: Scratch;
}

export class Transformer {
  readonly device: Device;
  readonly config: ModelConfig;
  /** Name of the output matrix. */
  readonly head: string;
  /** Q + 2 KV D. */
  readonly qkvWidth: number;
  /** cos and sin by position, [contextLength, D]. */
  readonly angles: Buffer;
  /** The attention kernels for this adapter and these heads. */
  readonly attention: AttentionKernels;
  /** Most tokens in a pass: one binding must cover the widest activation. */
  readonly passLength: number;
  /** Longest sequence: the model's context, or the length of a pass where that is less. */
  readonly contextLength: number;

  constructor(device: Device, config: ModelConfig) {
    this.device = device;
    this.config = config;
    this.head = config.tied ? EMBEDDING : "lm_head.weight";
    this.qkvWidth = qkvWidth(config);
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
    const isCut = this.contextLength < this.config.contextLength;
    const reason = isCut ? ", the most that one binding of this device covers" : "";
    return `${this.contextLength} tokens${reason}`;
  }

  /** Runs the layers. With `save`, the states for a backward pass stay alive in `scratch`. */
  forward(
    weights: Weights,
    run: { input: PackedInput; scratch: Scratch; save: boolean; visit?: QkvVisitor },
  ): ForwardState {
    const { input, scratch } = run;
    const size = input.count * this.config.hiddenSize;
    let x = scratch.floats(size, "residual");
    weights.embed({ tokens: input.tokens, out: x, count: input.count });
    const layers: LayerState[] = [];
    for (let layer = 0; layer < this.config.layers; layer++) {
      const out = scratch.floats(size, "residual");
      const inner = run.save ? scratch : new Scratch(this.device);
      const state = this.layer(weights, { name: layerNames(layer), x, input, scratch: inner, out });
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

  private layer(weights: Weights, at: LayerInput & { out: Buffer }): LayerState {
    const attention = this.attend(weights, at);
    return { ...attention, ...this.mlp(weights, { ...at, x: attention.middle }) };
  }

  /** middle = x + attention(norm(x)) W_o^T. */
  private attend(weights: Weights, { name, x, input, scratch }: LayerInput): AttentionState {
    const { hiddenSize: C, heads: H, headDim: D } = this.config;
    const T = input.count;
    const { normed, inverse } = this.norm(weights, { name: name(INPUT_NORM), x, rows: T, scratch });
    const projection = this.project(weights, { name, x: normed, input, scratch });
    const attended = scratch.floats(T * H * D, "attention output");
    const statistics = scratch.floats(T * H * 2, "attention statistics");
    this.device.dispatch(this.attention.forward, {
      buffers: {
        ...qkvBuffers(projection.qkv),
        sequenceStart: input.sequenceStart,
        out: attended,
        statistics,
      },
      params: attentionParams(this.config, T),
      constants: this.attention.constants,
    });
    const middle = scratch.floats(T * C, "residual");
    weights.apply(name("self_attn.o_proj.weight"), { x: attended, y: middle, m: T, addend: x });
    return { x, normed1: normed, inverse1: inverse, ...projection, attended, statistics, middle };
  }

  /** q, k and v of every token: x W_qkv^T (+ bias), q and k normalised by head (Qwen3) and rotated by position. */
  private project(weights: Weights, { name, x, input, scratch }: LayerInput): Projection {
    const T = input.count;
    const qkvRaw = scratch.floats(T * this.qkvWidth, "qkv");
    weights.apply(name("self_attn.qkv.weight"), { x, y: qkvRaw, m: T });
    if (this.config.qkvBias) this.addBias(weights, { name, qkv: qkvRaw, rows: T });
    const normed = this.config.qkNorm ? this.normHeads(weights, { name, qkvRaw, rows: T, scratch }) : { qkv: qkvRaw };
    this.rotate(normed.qkv, { positions: input.positions, rows: T, sign: 1 });
    return { qkvRaw, ...normed };
  }

  /** out = x + (silu(gate) up) W_down^T, where [gate | up] = norm(x) W_gate_up^T. */
  private mlp(weights: Weights, at: LayerInput & { out: Buffer }): MlpState {
    const { name, x, scratch } = at;
    const { intermediateSize: F } = this.config;
    const T = at.input.count;
    const { normed, inverse } = this.norm(weights, { name: name(MIDDLE_NORM), x, rows: T, scratch });
    const gateUp = scratch.floats(T * 2 * F, "gate and up");
    weights.apply(name("mlp.gate_up.weight"), { x: normed, y: gateUp, m: T });
    const active = scratch.floats(T * F, "activation");
    this.device.dispatch(swiglu, { buffers: { gateUp, out: active }, params: { rows: T, width: F } });
    weights.apply(name("mlp.down_proj.weight"), { x: active, y: at.out, m: T, addend: x });
    return { normed2: normed, inverse2: inverse, gateUp, active };
  }

  /** RMSNorm of rows [rows, C]. `inverse`: 1 / rms of each row. */
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

  /** qkv += bias. */
  addBias(weights: Weights, { name, qkv, rows }: { name: LayerName; qkv: Buffer; rows: number }): void {
    const width = this.qkvWidth;
    // A row stride of 0 reads the bias again for every row.
    const x = { x_stride: 0, x_offset: 0 };
    this.device.dispatch(addScaled, {
      buffers: { x: weights.values.get(name("self_attn.qkv.bias")), y: qkv },
      params: { rows, width, ...x, y_stride: width, y_offset: 0, scale: 1, accumulate: 1 },
    });
  }

  /** RMSNorm of every head of q and k; v is copied. */
  normHeads(
    weights: Weights,
    at: { name: LayerName; qkvRaw: Buffer; rows: number; scratch: Scratch },
  ): Required<Omit<Projection, "qkvRaw">> {
    const { name, qkvRaw, rows, scratch } = at;
    const { heads, kvHeads, rmsNormEps: epsilon } = this.config;
    const qkv = scratch.floats(rows * this.qkvWidth, "qkv, normalised");
    const inverseQ = scratch.floats(rows * heads, "inverse rms");
    const inverseK = scratch.floats(rows * kvHeads, "inverse rms");
    for (const [part, inverseRms, layout] of [
      ["q", inverseQ, queryRows(this.config, rows)],
      ["k", inverseK, keyRows(this.config, rows)],
    ] as const) {
      const weight = weights.values.get(name(`self_attn.${part}_norm.weight`));
      this.device.dispatch(rmsNorm, {
        buffers: { x: qkvRaw, weight, y: qkv, inverseRms },
        params: { ...layout, epsilon },
      });
    }
    this.device.dispatch(addScaled, {
      buffers: { x: qkvRaw, y: qkv },
      params: valueRows(this.config, rows),
    });
    return { qkv, inverseQ, inverseK };
  }

  /** Rotates q and k by their positions, in place; `sign` -1 is the inverse. */
  rotate(qkv: Buffer, at: { positions: Buffer; rows: number; sign: 1 | -1 }): void {
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
        shift: 0,
        sign: at.sign,
      },
    });
  }

  release(): void {
    this.device.release(this.angles);
  }
}

/** Name of a layer's weight from its last part. */
export type LayerName = (part: string) => string;

export function layerNames(layer: number): LayerName {
  return (part) => `model.layers.${layer}.${part}`;
}
