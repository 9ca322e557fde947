/**
 * The decoder's page: the architecture from top to bottom, recorded on a device over packed sequences.
 *
 *     x = embedding[tokens]
 *     each layer:  x += attention(norm(x));  x += mlp(norm(x))
 *     Gemma:  x += norm(attention(norm(x)));  x += norm(mlp(norm(x)))
 *     log-probabilities = log softmax(norm(x) head^T): head.ts, for the rows that are needed
 *
 * Legend: T tokens, R rows whose next token counts, C channels, H query heads, KV key/value heads, D head width,
 * Q = H D, F feed-forward width, V vocabulary. Activations are row-major, [T, width].
 *
 * The backward pass is train/backward.ts; one decoding step over a cache is generate/decode_step.ts.
 */
import type { Buffer, Device } from "../compute/device.ts";
import type { ModelConfig } from "./files/config.ts";
import type { AttentionState, ForwardState, Heads, Kept, LayerState } from "./forward_state.ts";
import { type AttentionKernels, chooseAttention } from "./kernels/attention_choice.ts";
import { addScaled, scaleInPlace } from "./kernels/elementwise.ts";
import { GATED } from "./kernels/geglu.ts";
import { rope } from "./kernels/rope.ts";
import { type Layer, layersOf, type Output, type Product } from "./layers.ts";
import { Norms } from "./norms.ts";
import type { PackedInput } from "./packed_input.ts";
import { attentionParams, qkvBuffers, qkvWidth } from "./qkv_layout.ts";
import { RopeTables } from "./rope_tables.ts";
import { bufferRows, type RowRun, rowRuns } from "./row_windows.ts";
import type { Scratch } from "./scratch.ts";
import { type ApplyOptions, EMBEDDING, type Weights } from "./weights.ts";

export const FINAL_NORM = "model.norm.weight";

/** Keys and values that attention reads in place of those of the pass, [first + T, KV D] each. Released once they are read. */
export interface GivenKeys {
  readonly k: Buffer;
  readonly v: Buffer;
  /** Tokens before those of the pass. */
  readonly first: number;
  /** Starts of sequences as in the input, of all these tokens. */
  readonly sequenceStart: Buffer;
}

/** Called with each layer's q, k, v during a forward pass, to fill a cache. It may return the keys for attention. */
export type QkvVisitor = (layer: number, qkv: Buffer) => GivenKeys | undefined;

interface LayerInput {
  readonly layer: Layer;
  readonly x: Buffer;
  readonly input: PackedInput;
  readonly scratch: Scratch;
}

/** Rows of one matrix inside a layer. */
interface LayerRows {
  readonly layer: Layer;
  readonly x: Buffer;
  readonly rows: number;
  readonly scratch: Scratch;
}

/** Rows in front of a product, and where its results go, [rows, width]. */
interface ProductRows extends Pick<ApplyOptions, "x" | "y" | "input" | "output"> {
  readonly product: Product;
  readonly rows: number;
  readonly width: number;
}

/** Rows in front of the product that attention or the MLP ends with. */
interface OutputRows {
  readonly output: Output;
  readonly input: Buffer;
  readonly rows: number;
  readonly scratch: Scratch;
}

/**
 * Gate and up of one run of the MLP stay below this. It is the least that WebGPU guarantees for a binding, so that
 * every device cuts alike and adds up the gradients of weights in the same order.
 */
const MAX_MLP_RUN_BYTES = 128 * 2 ** 20;

/** Most tokens of a pass, and of one sequence, of a model on a device. */
export function passLimits(device: Device, config: ModelConfig): { passLength: number; contextLength: number } {
  const widest = Math.max(config.hiddenSize, qkvWidth(config));
  const passLength = Math.floor(device.info.limits.maxBindingBytes / (4 * widest));
  return { passLength, contextLength: Math.min(config.contextLength, passLength) };
}

export class Transformer {
  readonly device: Device;
  readonly config: ModelConfig;
  /** Name of the output matrix. */
  readonly head: string;
  /** Q + 2 KV D. */
  readonly qkvWidth: number;
  readonly layers: readonly Layer[];
  readonly ropes: RopeTables;
  readonly norms: Norms;
  /** The attention kernels for this adapter and these heads. */
  readonly attention: AttentionKernels;
  /** Most tokens in a pass: attention binds q, k and v of all of them. The wider MLP and head run in parts. */
  readonly passLength: number;
  /** Most targets in a pass: one binding covers a value of each. */
  readonly passTargets: number;
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
    const { passLength, contextLength } = passLimits(device, config);
    this.passLength = passLength;
    this.passTargets = Math.floor(device.info.limits.maxBindingBytes / 4);
    this.contextLength = contextLength;
    this.layers = layersOf(config);
    this.ropes = new RopeTables(device, { ...config, contextLength: this.contextLength });
    this.norms = new Norms(device, config);
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
    this.embed(weights, { tokens: input.tokens, out: x, count: input.count });
    for (const layer of this.layers) {
      const at = { layer, input, scratch };
      const attention = this.attend(weights, { ...at, x, visit: (qkv) => run.visit?.(layer.index, qkv) });
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

  /** Embeddings of the tokens, [count, C], times the model's factor. */
  embed(weights: Weights, io: { tokens: Buffer; out: Buffer; count: number }): void {
    weights.embed(io);
    this.scaleEmbedding(io.out, io.count);
  }

  /** The factor of the embeddings on [count, C], in place; its gradient is the same. */
  scaleEmbedding(x: Buffer, count: number): void {
    const { embeddingScale: scale, hiddenSize } = this.config;
    if (scale === undefined) return;
    this.device.dispatch(scaleInPlace, { buffers: { x }, params: { length: count * hiddenSize, scale } });
  }

  /** middle = x + attention(norm(x)) W_o^T. */
  attend(weights: Weights, at: LayerInput & { visit?: (qkv: Buffer) => GivenKeys | undefined }): AttentionState {
    const { layer, x, input, scratch } = at;
    const { hiddenSize: C, heads: H, headDim: D } = this.config;
    const T = input.count;
    const qkv = this.project(weights, { layer, x, rows: T, scratch });
    const heads = this.placeHeads(weights, { layer, qkv, input, scratch });
    const visitResult = at.visit?.(heads.qkv);
    const attended = scratch.floats(T * H * D, "attention output");
    const statistics = scratch.floats(T * H * 2, "attention statistics");
    const { sequenceStart } = input;
    const { buffers, params } = visitResult
      ? this.readGiven(visitResult)
      : { buffers: { sequenceStart }, params: { first: 0 } };
    this.device.dispatch(this.attention.forward, {
      buffers: { ...qkvBuffers(heads.qkv), ...buffers, out: attended, statistics },
      params: { ...attentionParams(this.config, { tokens: T, window: layer.window }), ...params },
      constants: this.attention.constants,
    });
    if (visitResult) scratch.free(visitResult.k, visitResult.v);
    if (heads.inverseQ && heads.inverseK) scratch.free(heads.qkv, heads.inverseQ, heads.inverseK);
    const middle = scratch.floats(T * C, "residual");
    this.addOutput(weights, { output: layer.attentionOutput, x, input: attended, y: middle, rows: T, scratch });
    return { qkv, attended, statistics, middle };
  }

  private readGiven({ k, v, first, sequenceStart }: GivenKeys) {
    const stride = this.config.kvHeads * this.config.headDim;
    return {
      buffers: { k, v, sequenceStart },
      params: { first, k_stride: stride, k_offset: 0, v_stride: stride, v_offset: 0 },
    };
  }

  /** q, k and v of every row: norm(x) W_qkv^T (+ bias). */
  project(weights: Weights, { layer, x, rows, scratch }: LayerRows): Buffer {
    const width = this.qkvWidth;
    const y = scratch.floats(rows * width, "qkv");
    this.multiplyNormed(weights, { norm: layer.inputNorm, product: layer.qkv, x, y, rows, width, scratch });
    return y;
  }

  /** y = x + input W^T (+ bias), what is added normalised first where the model has norms of outputs. */
  addOutput(weights: Weights, at: OutputRows & { x: Buffer; y: Buffer }): void {
    const { output, x, input, y, rows, scratch } = at;
    const width = this.config.hiddenSize;
    if (output.norm === undefined) {
      weights.apply(output.matrix, { x: input, y, m: rows, addend: x });
      this.addBias(weights, { bias: output.bias, y, rows, width });
      return;
    }
    const projected = this.output(weights, at);
    const { normed, inverse } = this.norms.rows(weights, { name: output.norm, x: projected, rows, scratch, out: y });
    const layout = { x_stride: width, x_offset: 0, y_stride: width, y_offset: 0 };
    this.device.dispatch(addScaled, {
      buffers: { x, y: normed },
      params: { rows, width, ...layout, scale: 1, accumulate: 1 },
    });
    scratch.free(projected, inverse);
  }

  /** input W^T (+ bias), [rows, C]: what is normalised before it is added. */
  output(weights: Weights, { output, input, rows, scratch }: OutputRows): Buffer {
    const { hiddenSize: width } = this.config;
    const projected = scratch.floats(rows * width, "projected");
    this.multiply(weights, { product: output, x: input, y: projected, rows, width });
    return projected;
  }

  /** q and k normalised by head (Qwen3) and rotated by position. Without norms this happens in place, so once only. */
  placeHeads(weights: Weights, at: { layer: Layer; qkv: Buffer; input: PackedInput; scratch: Scratch }): Heads {
    const { layer, qkv, input, scratch } = at;
    const rows = input.count;
    const heads = this.config.qkNorm ? this.norms.heads(weights, { layer, qkvRaw: qkv, rows, scratch }) : { qkv };
    this.rotate(heads.qkv, { layer, input, sign: 1 });
    return heads;
  }

  /** out = x + (silu(gate) up) W_down^T, where [gate | up] = norm(x) W_gate_up^T; one `gateUp` a run of rows. */
  private mlp(weights: Weights, at: LayerInput & { keep: Kept }): { out: Buffer; gateUp: Buffer[] } {
    const { layer, input, scratch, keep } = at;
    const { hiddenSize: C } = this.config;
    const out = scratch.floats(input.count * C, "residual");
    const gateUp = this.mlpRuns(input.count).map((run) => {
      const { rows } = run;
      const runWeights = weights.ofRows?.(run) ?? weights;
      const [x, y] = [bufferRows(at.x, run, C), bufferRows(out, run, C)];
      const { normed, inverse } = this.norms.rows(runWeights, { name: layer.middleNorm, x, rows, scratch });
      const gateUp = this.gateUp(runWeights, { layer, x: normed, rows, scratch });
      scratch.free(normed, inverse);
      const active = this.activate(gateUp, { rows, scratch });
      this.addOutput(runWeights, { output: layer.mlpOutput, x, input: active, y, rows, scratch });
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

  /** [gate | up] = x W_gate_up^T (+ bias), [rows, 2 F]. */
  gateUp(weights: Weights, { layer, x, rows, scratch }: LayerRows): Buffer {
    const width = 2 * this.config.intermediateSize;
    const gateUp = scratch.floats(rows * width, "gate and up");
    this.multiply(weights, { product: layer.gateUp, x, y: gateUp, rows, width });
    return gateUp;
  }

  /** The MLP's activation: silu(gate) up, or gelu(gate) up; [rows, F]. */
  activate(gateUp: Buffer, { rows, scratch }: { rows: number; scratch: Scratch }): Buffer {
    const { intermediateSize: width, activation = "silu" } = this.config;
    const active = scratch.floats(rows * width, "activation");
    this.device.dispatch(GATED[activation].forward, { buffers: { gateUp, out: active }, params: { rows, width } });
    return active;
  }

  /** Returns what {@link activate} makes of norm(x) W_gate_up^T (+ bias), [rows, F]; for few rows of a GPU in one dispatch. */
  activated(weights: Weights, { layer, x, rows, scratch }: LayerRows): Buffer {
    const { intermediateSize: width, activation = "silu" } = this.config;
    const at = { norm: layer.middleNorm, product: layer.gateUp, x, rows, scratch };
    const { matrix, bias } = layer.gateUp;
    if (activation === "silu" && bias === undefined && weights.fuses(matrix, { part: "swiglu_output", m: rows })) {
      const y = scratch.floats(rows * width, "activation");
      this.multiplyNormed(weights, { ...at, y, width, output: { kind: "swiglu" } });
      return y;
    }
    const gateUp = scratch.floats(rows * 2 * width, "gate and up");
    this.multiplyNormed(weights, { ...at, y: gateUp, width: 2 * width });
    const active = this.activate(gateUp, { rows, scratch });
    scratch.free(gateUp);
    return active;
  }

  /** y = norm(x) W^T (+ bias); y [rows, width]. */
  private multiplyNormed(weights: Weights, at: ProductRows & { norm: string; scratch: Scratch }): void {
    const { norm: name, product, x, rows, scratch } = at;
    const input = this.norms.fused(weights, { name, matrix: product.matrix, rows });
    if (input) {
      this.multiply(weights, { ...at, input });
      return;
    }
    const { normed, inverse } = this.norms.rows(weights, { name, x, rows, scratch });
    this.multiply(weights, { ...at, x: normed });
    scratch.free(normed, inverse);
  }

  /** y = x W^T (+ bias), y [rows, width]. */
  private multiply(weights: Weights, { product, x, y, rows, width, input, output }: ProductRows): void {
    const { matrix, bias } = product;
    const isFused = bias !== undefined && weights.fuses(matrix, { part: "bias", m: rows });
    weights.apply(matrix, { x, y, m: rows, bias: isFused ? weights.values.get(bias) : undefined, input, output });
    if (!isFused) this.addBias(weights, { bias, y, rows, width });
  }

  /** y += bias, where the model has it. y [rows, width]. */
  private addBias(
    weights: Weights,
    { bias, y, rows, width }: { bias: string | undefined; y: Buffer; rows: number; width: number },
  ): void {
    if (bias === undefined) return;
    // A row stride of 0 reads the bias again for every row.
    const x = { x_stride: 0, x_offset: 0 };
    this.device.dispatch(addScaled, {
      buffers: { x: weights.values.get(bias), y },
      params: { rows, width, ...x, y_stride: width, y_offset: 0, scale: 1, accumulate: 1 },
    });
  }

  /** Rotates q and k by their positions, in place; `sign` -1 is the inverse. */
  rotate(qkv: Buffer, { layer, input, sign }: { layer: Layer; input: PackedInput; sign: 1 | -1 }): void {
    if (!layer.rotates) return;
    const { heads, kvHeads, headDim } = this.config;
    const perToken = heads + kvHeads;
    const table = this.ropes.table(layer.index);
    this.device.dispatch(rope, {
      buffers: { positions: input.positions, table, x: qkv },
      params: {
        rows: input.count * perToken,
        width: headDim,
        per_token: perToken,
        stride: this.qkvWidth,
        offset: 0,
        shift: 0,
        sign,
      },
    });
  }

  release(): void {
    this.ropes.release();
  }
}
