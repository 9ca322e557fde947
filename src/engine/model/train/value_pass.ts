/** The output end of a pass with a scalar head, forward and backward: norm(x) . weight at the targets' positions. */
import type { Buffer } from "../../compute/device.ts";
import type { ForwardState } from "../forward_state.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { columnSum } from "../kernels/column_sum.ts";
import { VALUE_BLOCKS, valueHead, valueHeadBackward, valueHeadWeightPartials } from "../kernels/value_head.ts";
import type { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { SCORE, type Weights } from "../weights.ts";
import { FinalRows } from "./final_rows.ts";

export class ValuePass {
  /** [R]. */
  readonly values: Buffer;
  private readonly model: Transformer;
  private readonly scratch: Scratch;
  private readonly score: Buffer;
  private readonly rows: number;
  private readonly final: FinalRows;

  /**
   * Frees `state.hidden`.
   * @param of.score the head's weight, [C].
   * @param of.positions distinct, ascending, [R].
   */
  constructor(
    model: Transformer,
    weights: Weights,
    of: { state: ForwardState; positions: Uint32Array; score: Buffer; scratch: Scratch },
  ) {
    this.model = model;
    this.scratch = of.scratch;
    this.score = of.score;
    this.rows = of.positions.length;
    this.final = new FinalRows(model, weights, of);
    this.values = of.scratch.floats(this.rows, "values");
    model.device.dispatch(valueHead, {
      buffers: { x: this.final.normed, weight: of.score, values: this.values },
      params: this.params,
    });
  }

  private get params() {
    return { rows: this.rows, width: this.model.config.hiddenSize };
  }

  /**
   * Frees everything but the values.
   * @param valueGrads of the values, [R].
   * @returns the gradient of the hidden states, [T, C].
   */
  backward(valueGrads: Buffer, to: { sink: GradientSink; tokens: number }): Buffer {
    const { scratch, model, params } = this;
    const slot = to.sink.slot(SCORE);
    if (slot) this.weightBackward(valueGrads, slot);
    const normedGrad = scratch.floats(params.rows * params.width, "gradient");
    const buffers = { weight: this.score, valueGrads, xGrad: normedGrad };
    model.device.dispatch(valueHeadBackward, { buffers, params });
    return this.final.backward(normedGrad, to);
  }

  private weightBackward(valueGrads: Buffer, out: Buffer): void {
    const { scratch, params, model } = this;
    const partials = scratch.floats(VALUE_BLOCKS * params.width, "head partials");
    model.device.dispatch(valueHeadWeightPartials, {
      buffers: { x: this.final.normed, valueGrads, partials },
      params,
    });
    model.device.dispatch(columnSum, {
      buffers: { x: partials, out },
      params: { rows: VALUE_BLOCKS, width: params.width, accumulate: 1 },
    });
    scratch.free(partials);
  }
}
