/** Seeded numbers for initial weights. */

/** Uniform in [0, 1), the same on every machine (mulberry32). */
export function uniforms(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Normally distributed with the given deviation (Box and Muller). */
export function normals(
  length: number,
  { next, deviation }: { next: () => number; deviation: number },
): Float32Array {
  return Float32Array.from({ length }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - next()));
    return radius * Math.cos(2 * Math.PI * next()) * deviation;
  });
}
