/** The place where a backward pass puts its gradients: one slot per weight, or a LoRA adapter (lora_gradient.ts). */
import type { Buffer, Device } from "../compute/device.ts";
import { matmul } from "../compute/matmul/matmul.ts";
import type { ParameterSet } from "./parameters.ts";

export interface GradientSink {
  /** Whether {@link matrix} adds anything for the fused matrix `name`. */
  trains(name: string): boolean;
  /** dW += dy^T x for the fused matrix `name`. Records only. */
  matrix(name: string, io: MatrixGradient): void;
  /** The gradient of a norm, a bias or the embedding; `undefined` where it is not trained. */
  slot(name: string): Buffer | undefined;
}

/** dy [m, out] with rows `stride` elements apart, and x [m, in]. */
export interface MatrixGradient {
  readonly dy: Buffer;
  readonly x: Buffer;
  readonly m: number;
  /** Default: out. */
  readonly stride?: number | undefined;
}

/** Accumulates the gradient of every weight in `gradients`, which has the layout of the weights. */
export function weightGradient(device: Device, gradients: ParameterSet): GradientSink {
  return {
    trains: () => true,
    matrix(name, { dy, x, m, stride }) {
      const { rows, columns } = gradients.entry(name);
      matmul(device, {
        m: rows,
        n: columns,
        k: m,
        a: { buffer: dy, stride },
        b: { buffer: x },
        c: { buffer: gradients.get(name) },
        transposeA: true,
        accumulate: true,
        splits: true,
      });
    },
    slot: (name) => gradients.get(name),
  };
}
