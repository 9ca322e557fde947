/** How the tensors of a model folder lie together: those that multiply the same input are rows of one fused matrix. */
import type { ModelConfig } from "./config.ts";
import { type ModelTensor, tensorsOf } from "./layers.ts";
import type { ParameterShape } from "./parameters.ts";

/** A Hugging Face tensor's rows inside a fused matrix. */
export interface Part {
  /** Name of the tensor in a model folder. */
  readonly tensor: string;
  /** Name of the fused matrix or vector. */
  readonly fused: string;
  /** First row inside it. */
  readonly row: number;
  readonly rows: number;
  readonly columns: number;
  readonly role: ModelTensor["role"];
  /** Whether it is a matrix that writes into the residual stream. */
  readonly isOutput: boolean;
}

/** The place of each tensor of a model folder in the fused layout. Vectors are one row; fused biases are concatenated. */
export function fusedParts(config: ModelConfig): Part[] {
  const used = new Map<string, number>();
  return tensorsOf(config).map(({ name: tensor, shape, fused = tensor, role, isOutput = false }) => {
    const isFusedBias = fused !== tensor && role === "bias";
    const [length = 1, width = 1] = shape;
    const [rows, columns] = shape.length === 2 || isFusedBias ? [length, width] : [1, length];
    const row = used.get(fused) ?? 0;
    used.set(fused, row + rows);
    return { tensor, fused, row, rows, columns, role, isOutput };
  });
}

/** The shape of each fused matrix or vector. */
export function fusedShapes(parts: readonly Part[]): Map<string, ParameterShape> {
  const shapes = new Map<string, ParameterShape>();
  for (const { fused, row, rows, columns, role } of parts) {
    // The vocabulary is padded with rows of zeros, so that logits are whole vec4s. The padding is never read.
    const padded = role === "vocabulary" ? Math.ceil(rows / 4) * 4 : row + rows;
    shapes.set(fused, { rows: padded, columns });
  }
  return shapes;
}

/** Names of the fused matrices that multiply activations; norms, biases and a scalar head are none. */
export function matrixNames(parts: readonly Part[]): ReadonlySet<string> {
  return new Set(parts.filter(({ role }) => role === "matrix" || role === "vocabulary").map(({ fused }) => fused));
}
