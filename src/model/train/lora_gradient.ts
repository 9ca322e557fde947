/**
 * The gradient of a LoRA adapter W + s B A, s = alpha / rank. From dW = dy^T x it is dB = s dW A^T and dA = s B^T dW. The
 * factors give the same, often with less work: dB = s dy^T (x A^T) and dA = s (dy B)^T x.
 */
import { matmul, tileColumns } from "../../compute/matmul/matmul.ts";
import type { Matrix } from "../../compute/matmul/product.ts";
import type { Part } from "../fused_parts.ts";
import { transpose } from "../kernels/elementwise.ts";
import { moduleOf } from "../lora.ts";
import type { ParameterSet } from "../parameters.ts";
import { Scratch } from "../scratch.ts";
import type { GradientSink, MatrixGradient } from "./gradient_sink.ts";
import type { LoraAdapter } from "./lora_adapter.ts";

/** Accumulates the adapter's gradient in `gradients`, which has the layout of its values. */
export function loraGradient(adapter: LoraAdapter, gradients: ParameterSet): GradientSink {
  return {
    trains: (name) => adapter.parts.has(name),
    matrix(name, io) {
      for (const part of adapter.parts.get(name) ?? []) {
        const at = moduleGradient(adapter, { gradients, part, io });
        if (isFactoredCheaper(adapter, at)) accumulateFactored(adapter, at);
        else accumulateWhole(adapter, at);
      }
    },
    // A scalar head that trains with the adapter.
    slot: (name) => (gradients.has(name) ? gradients.get(name) : undefined),
  };
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

/** From dW [rows, columns]. */
function accumulateWhole({ device, scale: alpha, config: { rank } }: LoraAdapter, at: ModuleGradient): void {
  const { rows, columns, m, dy, x, A, B, gradA, gradB } = at;
  Scratch.during(device, (scratch) => {
    const dW = { buffer: scratch.floats(rows * columns, "gradient") };
    matmul(device, { m: rows, n: columns, k: m, a: dy, b: x, c: dW, transposeA: true });
    const shared = { alpha, accumulate: true };
    matmul(device, { ...shared, m: rows, n: rank, k: columns, a: dW, b: A, c: gradB, transposeB: true });
    matmul(device, { ...shared, m: rank, n: columns, k: rows, a: B, b: dW, c: gradA, transposeA: true });
  });
}

/** From x A^T and dy B, [m, rank] each. */
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
    const shared = { alpha, accumulate: true, transposeA: true };
    matmul(device, { ...shared, m: rows, n: rank, k: m, a: dy, b: xA!, c: gradB });
    matmul(device, { ...shared, m: rank, n: columns, k: m, a: dyB!, b: x, c: gradA });
  });
}
