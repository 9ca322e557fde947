/** The RMSNorms of a model, over rows of the residual stream; forward and backward. */
import type { Buffer, Device } from "../compute/device.ts";
import type { RmsNormInput } from "../compute/matmul/product.ts";
import type { GradientSink } from "./gradient_sink.ts";
import { columnSum } from "./kernels/column_sum.ts";
import {
  chooseRmsNorm,
  chooseRmsNormBackward,
  NORM_BLOCKS,
  plainRows,
  rmsNormTiled,
  rmsNormWeightPartials,
} from "./kernels/norm.ts";
import type { Scratch } from "./scratch.ts";
import type { Weights } from "./weights.ts";

/** A model's width and the settings of its norms. */
interface NormShape {
  readonly hiddenSize: number;
  readonly rmsNormEps: number;
  /** True where norms multiply by 1 + weight. */
  readonly unitOffsetNorms?: boolean | undefined;
}

export class Norms {
  /** Constants of the kernels, including those of the gradients. */
  readonly constants: { readonly WEIGHT_OFFSET: number };
  readonly epsilon: number;
  private readonly device: Device;
  /** C. */
  private readonly width: number;

  constructor(device: Device, { hiddenSize, rmsNormEps, unitOffsetNorms }: NormShape) {
    this.device = device;
    this.width = hiddenSize;
    this.epsilon = rmsNormEps;
    this.constants = { WEIGHT_OFFSET: unitOffsetNorms ? 1 : 0 };
  }

  /** RMSNorm of rows [rows, C], into `out` where given. `inverse`: 1 / rms of each row. */
  rows(
    weights: Weights,
    at: { name: string; x: Buffer; rows: number; scratch: Scratch; out?: Buffer },
  ): { normed: Buffer; inverse: Buffer } {
    const { width: C, epsilon } = this;
    const normed = at.out ?? at.scratch.floats(at.rows * C, "normed");
    const inverse = at.scratch.floats(at.rows, "inverse rms");
    this.device.dispatch(chooseRmsNorm(this.device.info, { width: C }), {
      buffers: { x: at.x, weight: weights.values.get(at.name), y: normed, inverseRms: inverse },
      params: { ...plainRows(at.rows, C), epsilon },
      constants: this.constants,
    });
    return { normed, inverse };
  }

  /** Returns the norm that a product by `matrix` computes itself, with its bits; undefined where it does not. */
  fused(
    weights: Weights,
    { name, matrix, rows }: { name: string; matrix: string; rows: number },
  ): RmsNormInput | undefined {
    const { width, epsilon } = this;
    // Products repeat the order of sums of that kernel.
    if (chooseRmsNorm(this.device.info, { width }) !== rmsNormTiled) return undefined;
    if (!weights.fuses(matrix, { part: "rms_norm_input", m: rows })) return undefined;
    const { WEIGHT_OFFSET: weightOffset } = this.constants;
    return { kind: "rms_norm", weight: weights.values.get(name), weightOffset, epsilon };
  }

  /** xGrad (+)= the gradient of an RMSNorm, and that of its weight into the sink. Records only. */
  backward(weights: Weights, at: NormBackward): void {
    const { layout, x, inverse, yGrad, scratch } = at;
    this.device.dispatch(chooseRmsNormBackward(this.device.info, layout), {
      buffers: { x, weight: weights.values.get(at.name), inverseRms: inverse, yGrad, xGrad: at.xGrad },
      params: { ...layout, accumulate: at.accumulate ? 1 : 0 },
      constants: this.constants,
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
