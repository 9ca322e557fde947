/** The products that blocks share: of normed rows, and those that are added to the residual stream; forward and backward. */
import type { Buffer, Device } from "../../compute/device.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { recordColumnSum } from "../kernels/column_sum.ts";
import { addScaled } from "../kernels/elementwise.ts";
import { plainRows } from "../kernels/norm.ts";
import type { Norms } from "../norms.ts";
import type { Scratch } from "../scratch.ts";
import type { ApplyOptions, Weights } from "../weights.ts";

/** A product and its bias, by the names of weights.ts. */
export interface Product {
  readonly matrix: string;
  readonly bias: string | undefined;
}

/** The product whose result is added to the residual stream, through a norm where the model has one there. */
export interface Output extends Product {
  readonly norm: string | undefined;
}

/** Rows in front of a product, and where its results go, [rows, width]. */
interface ProductRows extends Pick<ApplyOptions, "x" | "y" | "input" | "output"> {
  readonly product: Product;
  readonly rows: number;
  readonly width: number;
}

/** Rows in front of the product that a block ends with. */
interface OutputRows {
  readonly output: Output;
  readonly input: Buffer;
  readonly rows: number;
  readonly scratch: Scratch;
}

/** A product that is added to the residual stream, its input, and the gradient of the stream, [rows, C]. */
interface OutputGradient extends OutputRows {
  readonly grad: Buffer;
  readonly sink: GradientSink;
}

/** Rows in front of a norm, [rows, C], and the gradient that theirs is added to. */
interface NormedGradient {
  readonly x: Buffer;
  readonly grad: Buffer;
  readonly rows: number;
  readonly sink: GradientSink;
  readonly scratch: Scratch;
}

export class Residual {
  private readonly device: Device;
  /** C. */
  private readonly width: number;
  private readonly norms: Norms;

  constructor(device: Device, { width, norms }: { width: number; norms: Norms }) {
    this.device = device;
    this.width = width;
    this.norms = norms;
  }

  /** y = norm(x) W^T (+ bias); y [rows, width]. */
  multiplyNormed(weights: Weights, at: ProductRows & { norm: string; scratch: Scratch }): void {
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
  multiply(weights: Weights, { product, x, y, rows, width, input, output }: ProductRows): void {
    const { matrix, bias } = product;
    const isFused = bias !== undefined && weights.fuses(matrix, { part: "bias", m: rows });
    weights.apply(matrix, { x, y, m: rows, bias: isFused ? weights.values.get(bias) : undefined, input, output });
    if (!isFused) this.addBias(weights, { bias, y, rows, width });
  }

  /** y = x + input W^T (+ bias), what is added normalised first where the model has norms of outputs. */
  add(weights: Weights, at: OutputRows & { x: Buffer; y: Buffer }): void {
    const { output, x, input, y, rows, scratch } = at;
    const { width } = this;
    if (output.norm === undefined) {
      weights.apply(output.matrix, { x: input, y, m: rows, addend: x });
      this.addBias(weights, { bias: output.bias, y, rows, width });
      return;
    }
    const projected = this.project(weights, at);
    const { normed, inverse } = this.norms.rows(weights, { name: output.norm, x: projected, rows, scratch, out: y });
    const layout = { x_stride: width, x_offset: 0, y_stride: width, y_offset: 0 };
    this.device.dispatch(addScaled, {
      buffers: { x, y: normed },
      params: { rows, width, ...layout, scale: 1, accumulate: 1 },
    });
    scratch.free(projected, inverse);
  }

  /** input W^T (+ bias), [rows, C]: what is normalised before it is added. */
  private project(weights: Weights, { output, input, rows, scratch }: OutputRows): Buffer {
    const { width } = this;
    const projected = scratch.floats(rows * width, "projected");
    this.multiply(weights, { product: output, x: input, y: projected, rows, width });
    return projected;
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

  /**
   * The gradient of a block's last product from that of the residual stream. A norm between the two takes the product of `input`
   * again; without one the gradient is that of the stream, and `input` is not read.
   */
  outputGradient(weights: Weights, at: Omit<OutputGradient, "input"> & { input: () => Buffer }): Buffer {
    const { output, rows, sink, scratch } = at;
    const { norm: name } = output;
    if (name === undefined) return at.grad;
    const x = this.project(weights, { ...at, input: at.input() });
    const { normed, inverse } = this.norms.rows(weights, { name, x, rows, scratch });
    scratch.free(normed);
    const xGrad = scratch.floats(rows * this.width, "gradient");
    const layout = plainRows(rows, this.width);
    this.norms.backward(weights, {
      ...{ name, layout, x, inverse, xGrad, sink, scratch },
      yGrad: at.grad,
      accumulate: false,
    });
    scratch.free(x, inverse);
    return xGrad;
  }

  /** The gradients of the matrix and the bias of a block's last product, from its own. */
  outputWeights(dy: Buffer, { output, input, rows, sink, scratch }: Omit<OutputGradient, "grad">): void {
    sink.matrix(output.matrix, { dy, x: input, m: rows });
    this.biasGradient(dy, { bias: output.bias, rows, width: this.width, sink, scratch });
  }

  /** Adds the column sums of dy [rows, width] to the gradient of a bias, where it is trained. */
  biasGradient(
    dy: Buffer,
    of: { bias: string | undefined; rows: number; width: number; sink: GradientSink; scratch: Scratch },
  ): void {
    const { bias, rows, width, sink, scratch } = of;
    const out = bias === undefined ? undefined : sink.slot(bias);
    if (!out) return;
    recordColumnSum(this.device, { buffers: { x: dy, out }, params: { rows, width, accumulate: 1 }, scratch });
  }

  /**
   * The gradient of a matrix behind a norm, from the gradient `dy` of their product, and added to `at.grad` what reaches x
   * through both.
   */
  normedGradient(
    weights: Weights,
    { x, grad: xGrad, rows, sink, scratch }: NormedGradient,
    of: { matrix: string; dy: Buffer; norm: string; normed: Buffer; inverse: Buffer },
  ): void {
    sink.matrix(of.matrix, { dy: of.dy, x: of.normed, m: rows });
    scratch.free(of.normed);
    const yGrad = scratch.floats(rows * this.width, "gradient");
    weights.applyBackward(of.matrix, { dy: of.dy, dx: yGrad, m: rows });
    const { norm: name, inverse } = of;
    const layout = plainRows(rows, this.width);
    this.norms.backward(weights, { name, layout, x, inverse, yGrad, xGrad, accumulate: true, sink, scratch });
  }
}
