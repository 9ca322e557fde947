/**
 * int8: signed bytes from -127 to 127 times the scale of their block, absmax / 127, with 0 in the middle. A value is off by
 * at most half a scale: absmax / 254, and its rounding to f32.
 */
import { SCALE_BLOCK } from "../../compute/packed.ts";

const LARGEST = 127;
/** Adding and subtracting this rounds a small float64 to the nearest integer, ties to even. */
const ROUNDING = 1.5 * 2 ** 52;

/** The scales of blocks with these largest magnitudes. */
export function int8Scales(maxima: Float32Array): Float32Array {
  return maxima.map((most) => most / LARGEST);
}

/** The bytes of elements. */
export function packInt8(values: Float32Array, scales: Float32Array, bytes: Uint8Array): void {
  for (let block = 0; block < scales.length; block++) {
    const scale = scales[block]!;
    if (scale === 0) continue;
    const end = Math.min((block + 1) * SCALE_BLOCK, values.length);
    for (let i = block * SCALE_BLOCK; i < end; i++) {
      const code = values[i]! / scale + ROUNDING - ROUNDING;
      // A scale that is denormal is rounded coarsely, and its block's largest value may be beyond 127 of it.
      bytes[i] = Math.max(-LARGEST, Math.min(LARGEST, code));
    }
  }
}
