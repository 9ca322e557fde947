/** Format in which each matrix of a model is held. */

import { ConfigError } from "../../leaves/errors.ts";
import { type PackedFormat, SCALE_BLOCK } from "../compute/packed.ts";
import type { DType } from "./dtype.ts";
import { matrixNames, type Part } from "./fused_parts.ts";
import type { LoraOptions } from "./lora.ts";

/** Trained parts, and the storage of weights that do not train. Weights that train are float32. */
export interface StorageOptions {
  /** Trains an adapter only. Absent: all weights train. */
  readonly lora?: LoraOptions | undefined;
  /** Nothing in the model changes: it samples, scores, or is the base of branches. Default false. */
  readonly frozen?: boolean | undefined;
  /**
   * `auto`, the default: bfloat16 where the file has bfloat16, which is exact, else float32. `bfloat16` rounds float32 to
   * the nearest, ties to even. Norms and biases are float32.
   */
  readonly dtype?: "auto" | "float32" | "bfloat16" | undefined;
  /**
   * Storage of the layers' matrices: blocks of 64 weights share a scale. The embedding and the output matrix are held
   * by `dtype`.
   */
  readonly quantization?: "int8" | "nf4" | undefined;
}

/**
 * The format of each fused matrix that is not float32.
 * @param typeOf a tensor's type in the model's files; `undefined` where there are none.
 * @throws ConfigError for a quantisation of weights that train, or of a tensor that is not whole blocks.
 */
export function packedFormats(
  parts: readonly Part[],
  { dtype = "auto", quantization, typeOf, ...options }: StorageOptions & { typeOf(tensor: string): DType | undefined },
): Map<string, PackedFormat> {
  const formats = new Map<string, PackedFormat>();
  if (trainsWeights(options)) {
    if (quantization) throw trainedAndQuantized(quantization);
    return formats;
  }
  const widened = new Set(parts.filter(({ tensor }) => typeOf(tensor) !== "BF16").map(({ fused }) => fused));
  const matrices = matrixNames(parts);
  for (const part of parts.filter(({ fused }) => matrices.has(fused))) {
    const { fused } = part;
    const isHalf = dtype === "bfloat16" || (dtype === "auto" && !widened.has(fused));
    if (quantization && part.role !== "vocabulary") formats.set(fused, checkBlocks(part, quantization));
    else if (isHalf) formats.set(fused, "bfloat16");
  }
  return formats;
}

function trainedAndQuantized(quantization: string): ConfigError {
  return new ConfigError(
    `Cannot hold the weights as ${quantization}: all of them train. Train an adapter (model.lora_rank), or set model.quantization=null.`,
    { path: "model.quantization" },
  );
}

function checkBlocks<F extends PackedFormat>({ tensor, rows, columns }: Part, format: F): F {
  if ((rows * columns) % SCALE_BLOCK === 0) return format;
  throw new ConfigError(
    `Cannot hold ${tensor} as ${format}: its weights are not whole blocks of ${SCALE_BLOCK} (${rows} x ${columns}). Set model.quantization=null.`,
    { path: "model.quantization" },
  );
}

/** Whether all weights train. */
export function trainsWeights({ lora, frozen }: StorageOptions): boolean {
  return !lora && !frozen;
}
