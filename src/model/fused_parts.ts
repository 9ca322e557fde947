/** How the tensors of a model folder lie together: those that multiply the same input are rows of one fused matrix. */
import { type ModelConfig, weightShapes } from "./files/config.ts";
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
}

const FUSED: readonly (readonly [RegExp, string])[] = [
  [/self_attn\.[qkv]_proj\.weight$/, "self_attn.qkv.weight"],
  [/self_attn\.[qkv]_proj\.bias$/, "self_attn.qkv.bias"],
  [/mlp\.(gate|up)_proj\.weight$/, "mlp.gate_up.weight"],
  [/mlp\.(gate|up)_proj\.bias$/, "mlp.gate_up.bias"],
];

/** The place of each tensor of a model folder in the fused layout. Vectors are one row; fused biases are concatenated. */
export function fusedParts(config: ModelConfig): Part[] {
  const used = new Map<string, number>();
  return [...weightShapes(config)].map(([tensor, shape]) => {
    let fused = tensor;
    for (const [pattern, name] of FUSED) fused = fused.replace(pattern, name);
    const isBias = fused !== tensor && fused.endsWith(".bias");
    const [length = 1, width = 1] = shape;
    const [rows, columns] = shape.length === 2 || isBias ? [length, width] : [1, length];
    const row = used.get(fused) ?? 0;
    used.set(fused, row + rows);
    return { tensor, fused, row, rows, columns };
  });
}

/** The shape of each fused matrix or vector. */
export function fusedShapes(parts: readonly Part[]): Map<string, ParameterShape> {
  const shapes = new Map<string, ParameterShape>();
  for (const { fused, row, rows, columns } of parts) {
    // The vocabulary is padded with rows of zeros, so that logits are whole vec4s. The padding is never read.
    const padded = isVocabulary(fused) ? Math.ceil(rows / 4) * 4 : row + rows;
    shapes.set(fused, { rows: padded, columns });
  }
  return shapes;
}

/** True for the embedding table and the output matrix. */
export function isVocabulary(name: string): boolean {
  return /(lm_head|embed_tokens)\.weight$/.test(name);
}

/** True for matrices that multiply activations, not for norms and biases. */
export function isMatrix(name: string): boolean {
  return /(proj|qkv|gate_up)\.weight$/.test(name) || isVocabulary(name);
}
