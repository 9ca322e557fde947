/**
 * The gradient of a LoRA adapter W + s B A, s = alpha / rank. From dW = dy^T x it is dB = s dW A^T and dA = s B^T dW. The
 * factors give the same, often with less work: dB = s dy^T (x A^T) and dA = s (dy B)^T x.
 */
import type { Buffer } from "../../compute/device.ts";
import { matmul, tileColumns } from "../../compute/matmul/matmul.ts";
import type { Matrix } from "../../compute/matmul/product.ts";
import type { Part } from "../fused_parts.ts";
import type { GradientSink, MatrixGradient } from "../gradient_sink.ts";
import { transpose } from "../kernels/elementwise.ts";
import { moduleOf } from "../lora.ts";
import type { ParameterSet } from "../parameters.ts";
import { Scratch } from "../scratch.ts";
import type { LoraAdapter, StackedFactors } from "./lora_adapter.ts";

/** Accumulates the adapter's gradient in `gradients`, which has the layout of its values. */
export function loraGradient(adapter: LoraAdapter, gradients: ParameterSet): GradientSink {
  return {
    trains: (name) => adapter.parts.has(name),
    matrix(name, io) {
      const parts = adapter.parts.get(name) ?? [];
      const factors = adapter.stacked(name);
      if (factors) accumulateStacked(adapter, { gradients, parts, factors, io });
      else
        for (const part of parts) {
          const at = moduleGradient(adapter, { gradients, part, io });
          if (isFactoredCheaper(adapter, at)) accumulateFactored(adapter, at);
          else accumulateWhole(adapter, at);
        }
    },
    // A scalar head that trains with the adapter.
    slot: (name) => (gradients.has(name) ? gradients.get(name) : undefined),
  };
}

/**
 * The modules of a fused matrix at once, on GPUs: one product by the A of all and one for their gradients, because each alone is
 * narrower than a tile.
 */
function accumulateStacked(
  adapter: LoraAdapter,
  at: { gradients: ParameterSet; parts: readonly Part[]; factors: StackedFactors; io: MatrixGradient },
): void {
  const { device, scale: alpha, config, base } = adapter;
  const { gradients, parts, factors, io } = at;
  const { rank } = config;
  const { m, dy } = io;
  const [{ fused, columns }] = parts as [Part];
  const stride = io.stride ?? base.shapeOf(fused).rows;
  const width = parts.length * rank;
  const shared = { alpha, accumulate: true, transposeA: true, splits: true };
  Scratch.during(device, (scratch) => {
    const [x, xA] = [{ buffer: io.x }, scratch.floats(m * width, "x A^T")];
    const dyB = { buffer: adapter.outputProducts(parts, { dy, m, stride, scratch }) };
    matmul(device, { m, n: width, k: columns, a: x, b: { buffer: factors.A }, transposeB: true, c: { buffer: xA } });
    matmul(device, {
      ...shared,
      m: width,
      n: columns,
      k: m,
      a: dyB,
      b: x,
      c: { buffer: gradientsOfA(gradients, parts) },
    });
    for (const [i, { tensor, row, rows }] of parts.entries())
      matmul(device, {
        ...{ ...shared, m: rows, n: rank, k: m },
        a: { buffer: dy, offset: row, stride },
        b: { buffer: xA, offset: i * rank, stride: width },
        c: { buffer: gradients.get(`${moduleOf(tensor)}.B`) },
      });
  });
}

/** They have the layout of the values, which lie on end. */
function gradientsOfA(gradients: ParameterSet, parts: readonly Part[]): Buffer {
  return gradients.span(parts.map(({ tensor }) => `${moduleOf(tensor)}.A`))!;
}

/** Inputs and outputs of one module's gradient: A [rank, columns], B [rows, rank]. */
interface ModuleGradient {
  readonly rows: number;
  readonly columns: number;
  /** Rows of dy [m, rows] and x [m, columns]. */
  readonly m: number;
  readonly dy: Matrix;
  readonly x: Matrix;
  readonly A: Matrix;
  readonly B: Matrix;
  readonly gradA: Matrix;
  readonly gradB: Matrix;
}

function moduleGradient(
  { base, values }: LoraAdapter,
  { gradients, part, io }: { gradients: ParameterSet; part: Part; io: MatrixGradient },
): ModuleGradient {
  const module = moduleOf(part.tensor);
  const stride = io.stride ?? base.shapeOf(part.fused).rows;
  return {
    rows: part.rows,
    columns: part.columns,
    m: io.m,
    dy: { buffer: io.dy, offset: part.row, stride },
    x: { buffer: io.x },
    A: { buffer: values.get(`${module}.A`) },
    B: { buffer: values.get(`${module}.B`) },
    gradA: { buffer: gradients.get(`${module}.A`) },
    gradB: { buffer: gradients.get(`${module}.B`) },
  };
}

/** A larger dW is never made: that of an output matrix would take more memory than all factors. */
const MAX_WHOLE_BYTES = 2 ** 26;

/** Compares the work of both ways in whole tiles of the matmul kernels. */
function isFactoredCheaper({ device, config }: LoraAdapter, { rows, columns, m }: ModuleGradient): boolean {
  if (rows * columns * 4 > MAX_WHOLE_BYTES) return true;
  const tile = tileColumns(device);
  const rank = Math.ceil(config.rank / tile) * tile;
  return 2 * m * rank * (rows + columns) < rows * columns * (m + 2 * rank);
}

/** Accumulates from dW [rows, columns]. */
function accumulateWhole({ device, scale: alpha, config: { rank } }: LoraAdapter, at: ModuleGradient): void {
  const { rows, columns, m, dy, x, A, B, gradA, gradB } = at;
  Scratch.during(device, (scratch) => {
    const dW = { buffer: scratch.floats(rows * columns, "gradient") };
    matmul(device, { m: rows, n: columns, k: m, a: dy, b: x, c: dW, transposeA: true, splits: true });
    const shared = { alpha, accumulate: true };
    matmul(device, { ...shared, m: rows, n: rank, k: columns, a: dW, b: A, c: gradB, transposeB: true });
    matmul(device, { ...shared, m: rank, n: columns, k: rows, a: B, b: dW, c: gradA, transposeA: true });
  });
}

/** Accumulates from x A^T and dy B, [m, rank] each. */
function accumulateFactored({ device, scale: alpha, config: { rank } }: LoraAdapter, at: ModuleGradient): void {
  const { rows, columns, m, dy, x, A, B, gradA, gradB } = at;
  Scratch.during(device, (scratch) => {
    const transposedA = { buffer: scratch.floats(rank * columns, "adapter, transposed") };
    const [xA, dyB] = ["x A^T", "dy B"].map((label) => ({ buffer: scratch.floats(m * rank, label) }));
    device.dispatch(transpose, {
      buffers: { x: A.buffer, y: transposedA.buffer },
      params: { rows: rank, columns, x_offset: 0, x_stride: columns, y_offset: 0, y_stride: rank },
    });
    matmul(device, { m, n: rank, k: columns, a: x, b: transposedA, c: xA! });
    matmul(device, { m, n: rank, k: rows, a: dy, b: B, c: dyB! });
    const shared = { alpha, accumulate: true, transposeA: true, splits: true };
    matmul(device, { ...shared, m: rows, n: rank, k: m, a: dy, b: xA!, c: gradB });
    matmul(device, { ...shared, m: rank, n: columns, k: m, a: dyB!, b: x, c: gradA });
  });
}
