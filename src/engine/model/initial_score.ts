/** The weight of a new scalar head. */
import { normals } from "../../leaves/random.ts";
import type { ModelConfig } from "./config.ts";

/** Deviation with which transformers draws a new head (`initializer_range`). */
const DEVIATION = 0.02;

/** [C], normal with deviation 0.02. */
export function initialScore({ hiddenSize }: ModelConfig, next: () => number): Float32Array {
  return normals(hiddenSize, { next, deviation: DEVIATION });
}
