/** Blocks of 64 consecutive elements that share a scale; the last may be shorter. */

import { ConfigError } from "../../../leaves/errors.ts";
import { SCALE_BLOCK } from "../../compute/packed.ts";

/**
 * The largest magnitude of each block.
 * @throws {ConfigError} where an element is NaN or infinite.
 */
export function blockMaxima(values: Float32Array, label: string): Float32Array {
  const maxima = new Float32Array(Math.ceil(values.length / SCALE_BLOCK));
  for (let block = 0; block < maxima.length; block++) {
    const end = Math.min((block + 1) * SCALE_BLOCK, values.length);
    let most = 0;
    for (let i = block * SCALE_BLOCK; i < end; i++) {
      const magnitude = Math.abs(values[i]!);
      // Also true for NaN.
      if (!(magnitude <= most)) {
        if (!Number.isFinite(magnitude)) throw notFinite(label, i, values[i]!);
        most = magnitude;
      }
    }
    maxima[block] = most;
  }
  return maxima;
}

function notFinite(label: string, at: number, value: number): ConfigError {
  return new ConfigError(
    `Cannot quantize ${label}: element ${at} is not finite (${value}). Load the model without model.quantization, or repair the tensor.`,
  );
}
