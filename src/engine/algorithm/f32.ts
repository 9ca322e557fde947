/** Numbers as shaders hold them. */

export const F32_BYTES = 4;

const F32_INFINITY = 3.4e38;

/** A number that f32 can hold: Infinity becomes the largest one. */
export function finiteF32(x: number): number {
  return Math.min(x, F32_INFINITY);
}
