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
import type { AttentionState, ForwardState, Heads, Kept, LayerState } from "./forward_state.ts";
import { type AttentionKernels, chooseAttention } from "./kernels/attention_choice.ts";
import { addScaled } from "./kernels/elementwise.ts";
import { plainRows, rmsNorm } from "./kernels/norm.ts";
import { rope, ropeTable } from "./kernels/rope.ts";
import { swiglu } from "./kernels/swiglu.ts";
import type { PackedInput } from "./packed_input.ts";
import { attentionParams, keyRows, qkvBuffers, qkvWidth, queryRows, valueRows } from "./qkv_layout.ts";
import { type RowRun, rowRuns, rowsOf } from "./row_windows.ts";
import type { Scratch } from "./scratch.ts";
import { EMBEDDING, type Weights } from "./weights.ts";

export const INPUT_NORM = "input_layernorm.weight";
export const MIDDLE_NORM = "post_attention_layernorm.weight";
export const FINAL_NORM = "model.norm.weight";

/** Called with each layer's q, k, v during a forward pass, to fill a cache. */
export type QkvVisitor = (layer: number, qkv: Buffer) => void;

interface LayerInput {
  readonly name: LayerName;
  readonly x: Buffer;
  readonly input: PackedInput;
  readonly scratch: Scratch;
}

/** Rows of one matrix inside a layer. */
interface LayerRows {
  readonly name: LayerName;
  readonly x: Buffer;
  readonly rows: number;
  readonly scratch: Scratch;
}

/**
 * Gate and up of one run of the MLP stay below this. It is the least that WebGPU guarantees for a binding, so that
 * every device cuts alike and adds up the gradients of weights in the same order.
 */
const MAX_MLP_RUN_BYTES = 128 * 2 ** 20;

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
  /** Most tokens in a pass: attention binds q, k and v of all of them. The wider MLP and head run in parts. */
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
    const widest = Math.max(config.hiddenSize, this.qkvWidth);
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

  /** Runs the layers. What is kept for a backward pass, and `hidden`, stay alive in `scratch`. */
  forward(
    weights: Weights,
    run: { input: PackedInput; scratch: Scratch; keep?: Kept; visit?: QkvVisitor },
  ): ForwardState {
    const { input, scratch, keep = "nothing" } = run;
    const layers: LayerState[] = [];
    let x = scratch.floats(input.count * this.config.hiddenSize, "residual");
    weights.embed({ tokens: input.tokens, out: x, count: input.count });
    for (let layer = 0; layer < this.config.layers; layer++) {
      const at = { name: layerNames(layer), input, scratch };
      const attention = this.attend(weights, { ...at, x, visit: (qkv) => run.visit?.(layer, qkv) });
      const { qkv, attended, statistics, middle } = attention;
      if (keep !== "activations") scratch.free(qkv, attended, statistics);
      if (keep === "nothing") scratch.free(x);
      const { out, gateUp } = this.mlp(weights, { ...at, x: middle, keep });
      if (keep !== "activations") scratch.free(middle);
      if (keep !== "nothing") layers.push({ x, ...(keep === "activations" && { attention, gateUp }) });
      x = out;
    }
    return { input, layers, hidden: x };
  }

  /** middle = x + attention(norm(x)) W_o^T. */
  attend(weights: Weights, at: LayerInput & { visit?: (qkv: Buffer) => void }): AttentionState {
    const { name, x, input, scratch } = at;
    const { hiddenSize: C, heads: H, headDim: D } = this.config;
    const T = input.count;
    const qkv = this.project(weights, { name, x, rows: T, scratch });
    const heads = this.placeHeads(weights, { name, qkv, input, scratch });
    at.visit?.(heads.qkv);
    const attended = scratch.floats(T * H * D, "attention output");
    const statistics = scratch.floats(T * H * 2, "attention statistics");
    this.device.dispatch(this.attention.forward, {
      buffers: { ...qkvBuffers(heads.qkv), sequenceStart: input.sequenceStart, out: attended, statistics },
      params: attentionParams(this.config, T),
      constants: this.attention.constants,
    });
    if (heads.inverseQ && heads.inverseK) scratch.free(heads.qkv, heads.inverseQ, heads.inverseK);
    const middle = scratch.floats(T * C, "residual");
    weights.apply(name("self_attn.o_proj.weight"), { x: attended, y: middle, m: T, addend: x });
    return { qkv, attended, statistics, middle };
  }

  /** q, k and v of every row: norm(x) W_qkv^T (+ bias). */
  private project(weights: Weights, { name, x, rows, scratch }: LayerRows): Buffer {
    const { normed, inverse } = this.norm(weights, { name: name(INPUT_NORM), x, rows, scratch });
    const qkv = scratch.floats(rows * this.qkvWidth, "qkv");
    weights.apply(name("self_attn.qkv.weight"), { x: normed, y: qkv, m: rows });
    scratch.free(normed, inverse);
    if (this.config.qkvBias) this.addBias(weights, { name, qkv, rows });
    return qkv;
  }

  /** q and k normalised by head (Qwen3) and rotated by position. Without norms this happens in place, so once only. */
  placeHeads(weights: Weights, at: { name: LayerName; qkv: Buffer; input: PackedInput; scratch: Scratch }): Heads {
    const { name, qkv, input, scratch } = at;
    const rows = input.count;
    const heads = this.config.qkNorm ? this.normHeads(weights, { name, qkvRaw: qkv, rows, scratch }) : { qkv };
    this.rotate(heads.qkv, { positions: input.positions, rows, sign: 1 });
    return heads;
  }

  /** out = x + (silu(gate) up) W_down^T, where [gate | up] = norm(x) W_gate_up^T; one `gateUp` a run of rows. */
  private mlp(weights: Weights, at: LayerInput & { keep: Kept }): { out: Buffer; gateUp: Buffer[] } {
    const { name, x, input, scratch, keep } = at;
    const { hiddenSize: C } = this.config;
    const out = scratch.floats(input.count * C, "residual");
    const gateUp = this.mlpRuns(input.count).map((run) => {
      const [addend, y, m] = [rowsOf(x, run, C), rowsOf(out, run, C), run.rows];
      const { normed, inverse } = this.norm(weights, { name: name(MIDDLE_NORM), x: addend, rows: m, scratch });
      const gateUp = this.gateUp(weights, { name, x: normed, rows: m, scratch });
      scratch.free(normed, inverse);
      const active = this.activate(gateUp, { rows: m, scratch });
      weights.apply(name("mlp.down_proj.weight"), { x: active, y, m, addend });
      scratch.free(active);
      if (keep !== "activations") scratch.free(gateUp);
      return gateUp;
    });
    return { out, gateUp };
  }

  /** The runs of rows that the MLP takes one after another. */
  mlpRuns(tokens: number): RowRun[] {
    const { hiddenSize: sliced, intermediateSize: F } = this.config;
    return rowRuns(this.device, tokens, { width: 2 * F, sliced, mostBytes: MAX_MLP_RUN_BYTES });
  }

  /** [gate | up] = x W_gate_up^T, [rows, 2 F]. */
  gateUp(weights: Weights, { name, x, rows, scratch }: LayerRows): Buffer {
    const gateUp = scratch.floats(rows * 2 * this.config.intermediateSize, "gate and up");
    weights.apply(name("mlp.gate_up.weight"), { x, y: gateUp, m: rows });
    return gateUp;
  }

  /** silu(gate) up, [rows, F]. */
  activate(gateUp: Buffer, { rows, scratch }: { rows: number; scratch: Scratch }): Buffer {
    const { intermediateSize: width } = this.config;
    const active = scratch.floats(rows * width, "activation");
    this.device.dispatch(swiglu, { buffers: { gateUp, out: active }, params: { rows, width } });
    return active;
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
  ): Required<Heads> {
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
