/** The backward pass of transformer.ts, recorded on a device. transformer.ts has the legend of the shapes. */
import type { Buffer, Device } from "../../compute/device.ts";
import { addScaled } from "../kernels/elementwise.ts";
import { embeddingBackward, groupByToken } from "../kernels/embedding.ts";
import { columnSum, NORM_BLOCKS, plainRows, rmsNormBackward, rmsNormWeightPartials } from "../kernels/norm.ts";
import { swigluBackward } from "../kernels/swiglu.ts";
import type { PackedInput } from "../packed_input.ts";
import { attentionParams, keyRows, keyValueOffsets, qkvBuffers, queryRows, valueRows } from "../qkv_layout.ts";
import { rowWindows } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import {
  type ForwardState,
  INPUT_NORM,
  type LayerState,
  layerNames,
  MIDDLE_NORM,
  type Transformer,
} from "../transformer.ts";
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
    const { state, hiddenGrad, sink } = run;
    for (let layer = state.layers.length - 1; layer >= 0; layer--) {
      const scratch = new Scratch(this.device);
      const at = { state: state.layers[layer]!, input: state.input, grad: hiddenGrad, sink, scratch };
      this.mlpBackward(weights, { ...at, layer });
      this.attentionBackward(weights, { ...at, layer });
      scratch.release();
    }
    const table = sink.slot(EMBEDDING);
    if (table)
      this.scatterRows(hiddenGrad, {
        table,
        rowCount: this.model.config.vocabSize,
        groups: groupByToken(state.input.ids),
      });
  }

  private mlpBackward(weights: Weights, at: LayerBackward): void {
    const { state, grad, sink, scratch } = at;
    const F = this.model.config.intermediateSize;
    const T = at.input.count;
    const name = layerNames(at.layer);
    const activeGrad = scratch.floats(T * F, "gradient");
    sink.matrix(name("mlp.down_proj.weight"), { dy: grad, x: state.active, m: T });
    weights.applyBackward(name("mlp.down_proj.weight"), { dy: grad, dx: activeGrad, m: T });
    const gateUpGrad = scratch.floats(T * 2 * F, "gradient");
    this.device.dispatch(swigluBackward, {
      buffers: { gateUp: state.gateUp, outGrad: activeGrad, gateUpGrad },
      params: { rows: T, width: F },
    });
    sink.matrix(name("mlp.gate_up.weight"), { dy: gateUpGrad, x: state.normed2, m: T });
    this.normedBackward(weights, at, {
      matrix: name("mlp.gate_up.weight"),
      dy: gateUpGrad,
      norm: name(MIDDLE_NORM),
      x: state.middle,
      inverse: state.inverse2,
    });
  }

  private attentionBackward(weights: Weights, at: LayerBackward): void {
    const { state, grad, sink, scratch, input } = at;
    const { heads: H, headDim: D } = this.model.config;
    const T = input.count;
    const name = layerNames(at.layer);
    sink.matrix(name("self_attn.o_proj.weight"), { dy: grad, x: state.attended, m: T });
    const attendedGrad = scratch.floats(T * H * D, "gradient");
    weights.applyBackward(name("self_attn.o_proj.weight"), { dy: grad, dx: attendedGrad, m: T });
    const qkvGrad = this.headsBackward(weights, { ...at, attendedGrad });
    sink.matrix(name("self_attn.qkv.weight"), { dy: qkvGrad, x: state.normed1, m: T });
    const bias = this.model.config.qkvBias ? sink.slot(name("self_attn.qkv.bias")) : undefined;
    if (bias)
      this.device.dispatch(columnSum, {
        buffers: { x: qkvGrad, out: bias },
        params: { rows: T, width: this.model.qkvWidth, accumulate: 1 },
      });
    this.normedBackward(weights, at, {
      matrix: name("self_attn.qkv.weight"),
      dy: qkvGrad,
      norm: name(INPUT_NORM),
      x: state.x,
      inverse: state.inverse1,
    });
  }

  /** Adds to `at.grad` what reaches x through a norm and the matrix behind it, from the gradient `dy` of the product. */
  private normedBackward(
    weights: Weights,
    { input, grad: xGrad, sink, scratch }: LayerBackward,
    of: { matrix: string; dy: Buffer; norm: string; x: Buffer; inverse: Buffer },
  ): void {
    const [T, C] = [input.count, this.model.config.hiddenSize];
    const yGrad = scratch.floats(T * C, "gradient");
    weights.applyBackward(of.matrix, { dy: of.dy, dx: yGrad, m: T });
    const { norm: name, x, inverse } = of;
    const layout = plainRows(T, C);
    this.normBackward(weights, { name, layout, x, inverse, yGrad, xGrad, accumulate: true, sink, scratch });
  }

  /** Gradient of q, k and v, before their norms and rotation, from that of the attention's output. */
  private headsBackward(weights: Weights, at: LayerBackward & { attendedGrad: Buffer }): Buffer {
    const { state, input, scratch } = at;
    const T = input.count;
    const { config, qkvWidth } = this.model;
    const offsets = keyValueOffsets(config);
    const qkvGrad = scratch.floats(T * qkvWidth, "gradient");
    const shared = { params: attentionParams(config, T), buffers: qkvBuffers(state.qkv) };
    this.device.dispatch(this.model.attention.backwardQueries, {
      buffers: {
        ...shared.buffers,
        out: state.attended,
        outGrad: at.attendedGrad,
        sequenceStart: input.sequenceStart,
        statistics: state.statistics,
        qGrad: qkvGrad,
      },
      params: { ...shared.params, grad_stride: qkvWidth, grad_offset: 0 },
      constants: this.model.attention.backwardConstants,
    });
    this.device.dispatch(this.model.attention.backwardKeys, {
      buffers: {
        ...shared.buffers,
        outGrad: at.attendedGrad,
        sequenceEnd: input.sequenceEnd,
        statistics: state.statistics,
        keyValueGrad: qkvGrad,
      },
      params: {
        ...shared.params,
        dk_stride: qkvWidth,
        dk_offset: offsets.k,
        dv_stride: qkvWidth,
        dv_offset: offsets.v,
      },
      constants: this.model.attention.backwardConstants,
    });
    this.model.rotate(qkvGrad, { positions: input.positions, rows: T, sign: -1 });
    return config.qkNorm ? this.headNormsBackward(weights, { ...at, qkvGrad }) : qkvGrad;
  }

  private headNormsBackward(weights: Weights, at: LayerBackward & { qkvGrad: Buffer }): Buffer {
    const { state, scratch, sink, input } = at;
    const T = input.count;
    const name = layerNames(at.layer);
    const rawGrad = scratch.floats(T * this.model.qkvWidth, "gradient");
    for (const [part, inverse, layout] of [
      ["q", state.inverseQ!, queryRows(this.model.config, T)],
      ["k", state.inverseK!, keyRows(this.model.config, T)],
    ] as const)
      this.normBackward(weights, {
        name: name(`self_attn.${part}_norm.weight`),
        layout,
        x: state.qkvRaw,
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
    this.device.dispatch(rmsNormBackward, {
      buffers: { x, weight: weights.values.get(at.name), inverseRms: inverse, yGrad, xGrad: at.xGrad },
      params: { ...layout, accumulate: at.accumulate ? 1 : 0 },
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
    const scratch = new Scratch(this.device);
    const { rows, offsets, positions } = to.groups;
    const width = this.model.config.hiddenSize;
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
    scratch.release();
  }
}

interface LayerBackward {
  readonly layer: number;
  readonly state: LayerState;
  readonly input: PackedInput;
  /** Gradient of the layer's output, overwritten by that of its input. */
  readonly grad: Buffer;
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
