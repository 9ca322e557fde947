/**
 * All seeded random numbers. Each is a pure function of integers (seed, stream, counter): a run saves no generator
 * state, and a resumed run draws the numbers that an uninterrupted one would.
 */

/**
 * Named streams of a run: the seed of each, from the run's seed and the indices that the stream depends on. Tokens are
 * drawn at {@link uniformAt}, rows by {@link shuffledIndices}, warm-up examples by {@link randomStream}, initial values
 * by {@link mulberry32}.
 */
export const STREAM_SEEDS = {
  /** Order of the training rows in one epoch. */
  rowOrder: (seed: number, epoch: number): number => seed + epoch,
  /** Examples of one warm-up step. */
  warmup: (seed: number, step: number): number => seedOf(seed, 0x57a7, step),
  /** One rollout of one task; `trial` counts its retries. Step 0 is validation. */
  attempt(seed: number, at: { step: number; task: number; rollout: number; trial: number }): number {
    return seedOf(seed, at.step, at.task, at.rollout, at.trial);
  },
  /** One model call of an attempt. Agent 0 is the rollout's own: its draws do not depend on the number of agents. */
  call: (attempt: number, at: { call: number; agent: number }): number =>
    at.agent === 0 ? seedOf(attempt, at.call) : seedOf(attempt, at.call, at.agent),
  /** Sample i of one server request. The first uses the client's seed unchanged. */
  servedSample: (seed: number, i: number): number => (i === 0 ? seed >>> 0 : seedOf(seed, i)),
  /** Draw j of the tokens that could stand at a place of a prompt, of a request with this seed. */
  promptDraw: (seed: number, at: { place: number; draw: number }): number => seedOf(seed, 0xa17, at.place, at.draw),
};

/** Mixes integers into one well-spread unsigned 32-bit seed. Order matters. */
export function seedOf(...parts: readonly number[]): number {
  let hash = 0x9e3779b9;
  for (const part of parts) hash = scramble(hash ^ scramble(part >>> 0)) + 0x6d2b79f5;
  return scramble(hash);
}

/** MurmurHash3's finaliser: every input bit reaches every output bit. */
function scramble(value: number): number {
  let x = value | 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/** Uniform numbers in [0, 1), 2^-32 apart: number n is `seedOf(seed, n)`. */
export function randomStream(seed: number): () => number {
  let counter = 0;
  return () => seedOf(seed, counter++) / 2 ** 32;
}

/** Uniform numbers in [0, 1), 2^-32 apart, of the generator of that name: initial weights and adapters are drawn from it. */
export function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Normally distributed numbers with the given standard deviation, from uniform ones (Box and Muller). */
export function normals(length: number, { next, deviation }: { next: () => number; deviation: number }): Float32Array {
  return Float32Array.from({ length }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - next()));
    return radius * Math.cos(2 * Math.PI * next()) * deviation;
  });
}

/** The numbers 0 to n - 1 in random order (Fisher and Yates). */
export function shuffledIndices(n: number, seed: number): Uint32Array {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  const random = randomStream(seed);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

/** The uniform number in [0, 1) that draws the token at `position` of a sequence: 24 bits, equal to the shaders'. */
export function uniformAt(seed: number, position: number): number {
  return (philox(seed >>> 0, position >>> 0)[0] >>> 8) / 2 ** 24;
}

/**
 * Philox 2x32 with 10 rounds, counter (position, 0).
 * @see Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC'11)
 */
export function philox(seed: number, position: number): readonly [number, number] {
  let key = seed;
  let low = position;
  let high = 0;
  for (let round = 0; round < 10; round++) {
    const product = BigInt(low) * 0xd256d193n;
    const mixed = (Number(product >> 32n) ^ key ^ high) >>> 0;
    high = Number(product & 0xffff_ffffn);
    low = mixed;
    key = (key + 0x9e3779b9) >>> 0;
  }
  return [low, high];
}
