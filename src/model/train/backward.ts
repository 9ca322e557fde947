/** The backward pass of transformer.ts, recorded on a device. transformer.ts has the legend of the shapes. */
import type { Buffer, Device } from "../../compute/device.ts";
import type { AttentionState, ForwardState, Heads } from "../forward_state.ts";
import { columnSum, recordColumnSum } from "../kernels/column_sum.ts";
import { addScaled } from "../kernels/elementwise.ts";
import { embeddingBackward, groupByToken } from "../kernels/embedding.ts";
import { GATED } from "../kernels/geglu.ts";
import { chooseRmsNormBackward, NORM_BLOCKS, plainRows, rmsNormWeightPartials } from "../kernels/norm.ts";
import type { Layer, Output } from "../layers.ts";
import type { PackedInput } from "../packed_input.ts";
import { attentionParams, keyRows, keyValueOffsets, qkvBuffers, queryRows, valueRows } from "../qkv_layout.ts";
import { bufferRows, rowWindows } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { EMBEDDING, type Weights } from "../weights.ts";
import type { GradientSink } from "./gradient_sink.ts";

export class BackwardPass {
  private readonly model: Transformer;
  private readonly device: Device;

  constructor(model: Transformer) {
    this.model = model;
    this.device = model.device;
  }

  /**
   * Gradients of everything below the final norm.
   * @param run.hiddenGrad of `state.hidden`, [T, C]; overwritten.
   */
  run(weights: Weights, run: { state: ForwardState; hiddenGrad: Buffer; sink: GradientSink }): void {
    const { state, hiddenGrad: grad, sink } = run;
    const { input } = state;
    for (const [index, kept] of [...state.layers.entries()].reverse())
      Scratch.during(this.device, (scratch) => {
        const { x, gateUp } = kept;
        const layer = this.model.layers[index]!;
        const attention = kept.attention ?? this.model.attend(weights, { layer, x, input, scratch });
        const at = { layer, x, attention, gateUp, input, grad, sink, scratch };
        this.mlpBackward(weights, at);
        this.attentionBackward(weights, at);
      });
    const table = sink.slot(EMBEDDING);
    if (!table) return;
    this.model.scaleEmbedding(grad, input.count);
    const { vocabSize: rowCount } = this.model.config;
    this.scatterRows(grad, { table, rowCount, groups: groupByToken(input.ids) });
  }

  /** The MLP's part, one run of rows after another: `at.grad` becomes the gradient of `middle`. */
  private mlpBackward(weights: Weights, at: LayerBackward): void {
    const { hiddenSize: C } = this.model.config;
    for (const [i, run] of this.model.mlpRuns(at.input.count).entries())
      Scratch.during(this.device, (scratch) => {
        const x = bufferRows(at.attention.middle, run, C);
        const grad = bufferRows(at.grad, run, C);
        this.mlpRunBackward(weights, { ...at, x, grad, rows: run.rows, gateUp: at.gateUp?.[i], scratch });
      });
  }

  private mlpRunBackward(weights: Weights, at: NormedRows & { gateUp: Buffer | undefined }): void {
    const { layer, x, rows, scratch } = at;
    const { model } = this;
    const { intermediateSize: F, activation = "silu" } = model.config;
    const norm = model.norms.rows(weights, { name: layer.middleNorm, x, rows, scratch });
    const gateUp = at.gateUp ?? model.gateUp(weights, { layer, x: norm.normed, rows, scratch });
    const { mlpOutput } = layer;
    const dy = this.mlpOutputGrad(weights, { ...at, gateUp });
    const activeGrad = scratch.floats(rows * F, "gradient");
    weights.applyBackward(mlpOutput.matrix, { dy, dx: activeGrad, m: rows });
    const gateUpGrad = scratch.floats(rows * 2 * F, "gradient");
    this.device.dispatch(GATED[activation].backward, {
      buffers: { gateUp, outGrad: activeGrad, gateUpGrad },
      params: { rows, width: F },
    });
    scratch.free(gateUp);
    // The kernel has put the activations in place of their gradient.
    this.outputWeights(dy, { ...at, output: mlpOutput, input: activeGrad });
    scratch.free(activeGrad);
    this.biasBackward(gateUpGrad, { bias: layer.gateUp.bias, rows, width: 2 * F, sink: at.sink, scratch });
    this.normedBackward(weights, at, { ...norm, matrix: layer.gateUp.matrix, dy: gateUpGrad, norm: layer.middleNorm });
  }

  /** The gradient of the MLP's last product, whose input is computed again for a norm between it and the residual stream. */
  private mlpOutputGrad(weights: Weights, at: NormedRows & { gateUp: Buffer }): Buffer {
    const { layer, gateUp, rows, scratch } = at;
    const { mlpOutput: output } = layer;
    if (output.norm === undefined) return at.grad;
    const input = this.model.activate(gateUp, { rows, scratch });
    const dy = this.outputNormBackward(weights, { ...at, output, input, norm: output.norm });
    scratch.free(input);
    return dy;
  }

  /**
   * The gradient of a product from `grad`, that of the residual stream which it is added to, and those of its weights. A
   * norm between the two takes the product again; without one the gradient is `grad` itself.
   */
  private outputBackward(weights: Weights, at: OutputBackward): Buffer {
    const { output, grad } = at;
    const dy = output.norm === undefined ? grad : this.outputNormBackward(weights, { ...at, norm: output.norm });
    this.outputWeights(dy, at);
    return dy;
  }

  /** The gradients of a product's matrix and bias. */
  private outputWeights(dy: Buffer, { output, input, rows, sink, scratch }: Omit<OutputBackward, "grad">): void {
    sink.matrix(output.matrix, { dy, x: input, m: rows });
    this.biasBackward(dy, { bias: output.bias, rows, width: this.model.config.hiddenSize, sink, scratch });
  }

  private outputNormBackward(weights: Weights, at: OutputBackward & { norm: string }): Buffer {
    const { norm: name, grad: yGrad, rows, sink, scratch } = at;
    const { hiddenSize: C } = this.model.config;
    const x = this.model.output(weights, at);
    const { normed, inverse } = this.model.norms.rows(weights, { name, x, rows, scratch });
    scratch.free(normed);
    const xGrad = scratch.floats(rows * C, "gradient");
    const layout = plainRows(rows, C);
    this.normBackward(weights, { name, layout, x, inverse, yGrad, xGrad, accumulate: false, sink, scratch });
    scratch.free(x, inverse);
    return xGrad;
  }

  /** Adds the column sums of dy [rows, width] to the gradient of a bias, where it is trained. */
  private biasBackward(
    dy: Buffer,
    of: { bias: string | undefined; rows: number; width: number; sink: GradientSink; scratch: Scratch },
  ): void {
    const { bias, rows, width, sink, scratch } = of;
    const out = bias === undefined ? undefined : sink.slot(bias);
    if (!out) return;
    recordColumnSum(this.device, { buffers: { x: dy, out }, params: { rows, width, accumulate: 1 }, scratch });
  }

  /** Attention's part: `at.grad` becomes the gradient of the layer's input. */
  private attentionBackward(weights: Weights, at: LayerBackward): void {
    const { layer, x, sink, scratch, attention } = at;
    const { heads: H, headDim: D } = this.model.config;
    const rows = at.input.count;
    const { attentionOutput: output } = layer;
    const outGrad = this.outputBackward(weights, { ...at, output, input: attention.attended, rows });
    const attendedGrad = scratch.floats(rows * H * D, "gradient");
    weights.applyBackward(output.matrix, { dy: outGrad, dx: attendedGrad, m: rows });
    const dy = this.headsBackward(weights, { ...at, attendedGrad });
    scratch.free(attendedGrad);
    this.biasBackward(dy, { bias: layer.qkv.bias, rows, width: this.model.qkvWidth, sink, scratch });
    const norm = this.model.norms.rows(weights, { name: layer.inputNorm, x, rows, scratch });
    this.normedBackward(weights, { ...at, rows }, { ...norm, matrix: layer.qkv.matrix, dy, norm: layer.inputNorm });
  }

  /**
   * The gradient of a matrix behind a norm, from the gradient `dy` of their product, and added to `at.grad` what reaches x
   * through both.
   */
  private normedBackward(
    weights: Weights,
    { x, grad: xGrad, rows, sink, scratch }: NormedRows,
    of: { matrix: string; dy: Buffer; norm: string; normed: Buffer; inverse: Buffer },
  ): void {
    const { hiddenSize: C } = this.model.config;
    sink.matrix(of.matrix, { dy: of.dy, x: of.normed, m: rows });
    scratch.free(of.normed);
    const yGrad = scratch.floats(rows * C, "gradient");
    weights.applyBackward(of.matrix, { dy: of.dy, dx: yGrad, m: rows });
    const { norm: name, inverse } = of;
    const layout = plainRows(rows, C);
    this.normBackward(weights, { name, layout, x, inverse, yGrad, xGrad, accumulate: true, sink, scratch });
  }

  /** Gradient of q, k and v, before their norms and rotation, from that of the attention's output. */
  private headsBackward(weights: Weights, at: LayerBackward & { attendedGrad: Buffer }): Buffer {
    const { attention, layer, input, scratch } = at;
    if (!this.model.config.qkNorm) return this.rotatedBackward(attention.qkv, at);
    const heads = this.model.placeHeads(weights, { layer, qkv: attention.qkv, input, scratch });
    const qkvGrad = this.rotatedBackward(heads.qkv, at);
    scratch.free(heads.qkv);
    return this.headNormsBackward(weights, { ...at, ...heads, qkvGrad });
  }

  /** Gradient of q, k and v before their rotation. */
  private rotatedBackward(qkv: Buffer, at: LayerBackward & { attendedGrad: Buffer }): Buffer {
    const { layer, attention, input, scratch, attendedGrad: outGrad } = at;
    const { config, qkvWidth } = this.model;
    const { attended: out, statistics } = attention;
    const offsets = keyValueOffsets(config);
    const qkvGrad = scratch.floats(input.count * qkvWidth, "gradient");
    const params = attentionParams(config, { tokens: input.count, window: layer.window });
    const { constants, backwardKeysConstants, backwardQueries, backwardKeys } = this.model.attention;
    const { sequenceStart, sequenceEnd } = input;
    this.device.dispatch(backwardQueries, {
      buffers: { ...qkvBuffers(qkv), out, outGrad, sequenceStart, statistics, qGrad: qkvGrad },
      params: { ...params, grad_stride: qkvWidth, grad_offset: 0 },
      constants,
    });
    const keyValueLayout = { dk_stride: qkvWidth, dk_offset: offsets.k, dv_stride: qkvWidth, dv_offset: offsets.v };
    this.device.dispatch(backwardKeys, {
      buffers: { ...qkvBuffers(qkv), outGrad, sequenceEnd, statistics, keyValueGrad: qkvGrad },
      params: { ...params, ...keyValueLayout },
      constants: backwardKeysConstants,
    });
    this.model.rotate(qkvGrad, { layer, input, sign: -1 });
    return qkvGrad;
  }

  private headNormsBackward(weights: Weights, at: LayerBackward & Heads & { qkvGrad: Buffer }): Buffer {
    const { layer, attention, scratch, sink, input } = at;
    const T = input.count;
    const rawGrad = scratch.floats(T * this.model.qkvWidth, "gradient");
    for (const [part, inverse, layout] of [
      ["q", at.inverseQ!, queryRows(this.model.config, T)],
      ["k", at.inverseK!, keyRows(this.model.config, T)],
    ] as const)
      this.normBackward(weights, {
        name: layer.name(`self_attn.${part}_norm.weight`),
        layout,
        x: attention.qkv,
        inverse,
        yGrad: at.qkvGrad,
        xGrad: rawGrad,
        accumulate: false,
        sink,
        scratch,
      });
    this.device.dispatch(addScaled, {
      buffers: { x: at.qkvGrad, y: rawGrad },
      params: valueRows(this.model.config, T),
    });
    return rawGrad;
  }

  /** xGrad (+)= the gradient of an RMSNorm, and that of its weight into the sink. */
  normBackward(weights: Weights, at: NormBackward): void {
    const { layout, x, inverse, yGrad, scratch } = at;
    this.device.dispatch(chooseRmsNormBackward(this.device.info, layout), {
      buffers: { x, weight: weights.values.get(at.name), inverseRms: inverse, yGrad, xGrad: at.xGrad },
      params: { ...layout, accumulate: at.accumulate ? 1 : 0 },
      constants: this.model.norms.constants,
    });
    const slot = at.sink.slot(at.name);
    if (!slot) return;
    const partials = scratch.floats(NORM_BLOCKS * layout.width, "norm partials");
    this.device.dispatch(rmsNormWeightPartials, {
      buffers: { x, inverseRms: inverse, yGrad, partials },
      params: { ...layout, partials_stride: layout.width, partials_offset: 0 },
    });
    this.device.dispatch(columnSum, {
      buffers: { x: partials, out: slot },
      params: { rows: NORM_BLOCKS, width: layout.width, accumulate: 1 },
    });
  }

  /** table[rows[u]] += the sum of the rows of `grad` at the positions of group u. */
  scatterRows(
    grad: Buffer,
    to: {
      table: Buffer;
      rowCount: number;
      groups: { rows: Uint32Array; offsets: Uint32Array; positions: Uint32Array };
    },
  ): void {
    const { rows, offsets, positions } = to.groups;
    const width = this.model.config.hiddenSize;
    Scratch.during(this.device, (scratch) => {
      const groups = {
        rows: scratch.upload(rows, "rows"),
        offsets: scratch.upload(offsets, "row offsets"),
        positions: scratch.upload(positions, "row positions"),
      };
      for (const table of rowWindows(this.device, to.table, { rows: to.rowCount, width }))
        this.device.dispatch(embeddingBackward, {
          buffers: { ...groups, outGrad: grad, tableGrad: table.buffer },
          params: { rows: rows.length, width, first_row: table.first, row_count: table.rows },
        });
    });
  }
}

interface LayerBackward {
  readonly layer: Layer;
  /** The layer's input. */
  readonly x: Buffer;
  readonly attention: AttentionState;
  readonly gateUp: readonly Buffer[] | undefined;
  readonly input: PackedInput;
  /** Gradient of the layer's output, overwritten by that of its input. */
  readonly grad: Buffer;
  readonly sink: GradientSink;
  readonly scratch: Scratch;
}

/** Rows in front of a norm, [rows, C], and the gradient that theirs is added to. */
interface NormedRows {
  readonly layer: Layer;
  readonly x: Buffer;
  readonly grad: Buffer;
  readonly rows: number;
  readonly sink: GradientSink;
  readonly scratch: Scratch;
}

/** A product that is added to the residual stream, its input, and the gradient of the stream, [rows, C]. */
interface OutputBackward {
  readonly output: Output;
  readonly input: Buffer;
  readonly grad: Buffer;
  readonly rows: number;
  readonly sink: GradientSink;
  readonly scratch: Scratch;
}

interface NormBackward {
  readonly name: string;
  readonly layout: ReturnType<typeof plainRows>;
  readonly x: Buffer;
  readonly inverse: Buffer;
  readonly yGrad: Buffer;
  readonly xGrad: Buffer;
  readonly accumulate: boolean;
  readonly sink: GradientSink;
  readonly scratch: Scratch;
}
