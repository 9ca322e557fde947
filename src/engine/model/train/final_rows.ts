/** The rows of the hidden states that a head reads, behind the final norm, and the way back. transformer.ts has the legend. */
import type { Buffer } from "../../compute/device.ts";
import type { ForwardState } from "../forward_state.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { plainRows } from "../kernels/norm.ts";
import { gatherRows } from "../logit_windows.ts";
import type { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { FINAL_NORM, type Weights } from "../weights.ts";
import { BackwardPass } from "./backward.ts";

export class FinalRows {
  /** norm(hidden[positions]), [P, C]. */
  readonly normed: Buffer;
  private readonly model: Transformer;
  private readonly weights: Weights;
  private readonly scratch: Scratch;
  private readonly positions: Uint32Array;
  private readonly hidden: Buffer;
  private readonly inverse: Buffer;

  /**
   * Frees `state.hidden` as soon as its rows are gathered.
   * @param of.positions distinct, ascending, [P].
   */
  constructor(
    model: Transformer,
    weights: Weights,
    of: { state: ForwardState; positions: Uint32Array; scratch: Scratch },
  ) {
    const { positions, scratch } = of;
    this.model = model;
    this.weights = weights;
    this.scratch = scratch;
    this.positions = positions;
    this.hidden = gatherRows(model, { from: of.state.hidden, positions, scratch });
    scratch.free(of.state.hidden);
    const rows = { name: FINAL_NORM, x: this.hidden, rows: positions.length, scratch };
    const { normed, inverse } = model.norms.rows(weights, rows);
    this.normed = normed;
    this.inverse = inverse;
  }

  /**
   * Frees what it holds, and `normedGrad`.
   * @param normedGrad of {@link normed}, [P, C].
   * @returns the gradient of the hidden states, [T, C].
   */
  backward(normedGrad: Buffer, to: { sink: GradientSink; tokens: number }): Buffer {
    const { model, scratch, positions } = this;
    const { hiddenSize: C } = model.config;
    const pass = new BackwardPass(model);
    scratch.free(this.normed);
    const rowsGrad = scratch.floats(positions.length * C, "gradient");
    model.norms.backward(this.weights, {
      name: FINAL_NORM,
      layout: plainRows(positions.length, C),
      x: this.hidden,
      inverse: this.inverse,
      yGrad: normedGrad,
      xGrad: rowsGrad,
      accumulate: false,
      sink: to.sink,
      scratch,
    });
    scratch.free(this.hidden, this.inverse, normedGrad);
    const hiddenGrad = scratch.floats(to.tokens * C, "gradient");
    model.device.clear(hiddenGrad);
    pass.scatterRows(rowsGrad, { table: hiddenGrad, rowCount: to.tokens, groups: ownRows(positions) });
    scratch.free(rowsGrad);
    return hiddenGrad;
  }
}

/** Each position's row of a gradient [P, C], as the groups of a scatter. */
function ownRows(rows: Uint32Array) {
  const positions = rows.map((_, p) => p);
  return { rows, offsets: Uint32Array.from({ length: rows.length + 1 }, (_, p) => p), positions };
}
