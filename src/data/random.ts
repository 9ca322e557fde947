/** Seeded numbers. Everything random in a run is a pure function of integers, so no generator state has to be saved. */

/** Mixes integers into one well-spread unsigned 32-bit seed. Order counts. */
export function seedOf(...parts: readonly number[]): number {
  let hash = 0x9e3779b9;
  for (const part of parts) hash = scramble(hash ^ scramble(part >>> 0)) + 0x6d2b79f5;
  return scramble(hash);
}

/** The finaliser of MurmurHash3: every input bit reaches every output bit. */
function scramble(value: number): number {
  let x = value | 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/** A stream of numbers in [0, 1), 2^-32 apart. */
export function randomStream(seed: number): () => number {
  let counter = 0;
  return () => seedOf(seed, counter++) / 2 ** 32;
}

/** The numbers 0 to n - 1 in a random order. */
export function shuffledIndices(n: number, seed: number): Uint32Array {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  const random = randomStream(seed);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}
