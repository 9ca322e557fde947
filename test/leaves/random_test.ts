/** The seeded numbers: pinned, because every golden run and every resumed run depends on them. */
import { describe, expect, test } from "vitest";
import {
  mulberry32,
  normals,
  philox,
  randomStream,
  STREAM_SEEDS,
  seedOf,
  shuffledIndices,
  uniformAt,
} from "../../src/leaves/random.ts";

describe("pinned values", () => {
  test.each<[parts: number[], seed: number]>([
    [[], 2462723854],
    [[1], 2607286715],
    [[1, 2, 3], 1930997275],
    [[-1], 868717165],
  ])("seedOf(%j) is %i", (parts, seed) => {
    expect(seedOf(...parts)).toBe(seed);
  });

  test.each<[make: (seed: number) => () => number, first: number[]]>([
    [randomStream, [3044057130, 3315053142, 556040215]],
    [mulberry32, [50271532, 266108690, 4195786334]],
  ])("%o with seed 7", (make, first) => {
    const next = make(7);
    expect(first.map(() => next() * 2 ** 32)).toEqual(first);
  });

  test("shuffledIndices() and normals()", () => {
    expect([...shuffledIndices(8, 5)]).toEqual([7, 2, 6, 5, 0, 3, 4, 1]);
    expect([...normals(3, { next: mulberry32(1), deviation: 2 })]).toEqual([
      2.8086776733398438, 2.431509256362915, -1.0207537412643433,
    ]);
  });

  test.each<[name: string, seed: number, expected: number]>([
    ["rowOrder", STREAM_SEEDS.rowOrder(42, 3), 45],
    ["warmup", STREAM_SEEDS.warmup(42, 3), 2280921826],
    ["attempt", STREAM_SEEDS.attempt(42, { step: 5, task: 17, rollout: 2, trial: 1 }), 1950340824],
    ["call of the rollout", STREAM_SEEDS.call(99, { call: 4, agent: 0 }), 2378437624],
    ["call of another agent", STREAM_SEEDS.call(99, { call: 4, agent: 2 }), 1466785752],
    ["first served sample", STREAM_SEEDS.servedSample(99, 0), 99],
    ["second served sample", STREAM_SEEDS.servedSample(99, 1), 280836722],
  ])("the stream %s", (_, seed, expected) => {
    expect(seed).toBe(expected);
  });

  test.each<[seed: number, position: number, drawn: number]>([
    [7, 3, 9220335],
    [-1, -1, 11986208],
  ])("uniformAt(%i, %i)", (seed, position, drawn) => {
    expect(uniformAt(seed, position) * 2 ** 24).toBe(drawn);
  });

  // Random123's known answers for philox2x32-10.
  test("philox() with key 0 and counter 0", () => {
    expect(philox(0, 0)).toEqual([0xff1dae59, 0x6cd10df2]);
  });
});

test("seedOf() depends on the number and the order of its parts", () => {
  expect(seedOf(1, 2)).not.toBe(seedOf(2, 1));
  expect(seedOf(1)).not.toBe(seedOf(1, 0));
});

test("shuffledIndices() is a permutation that depends on the seed", () => {
  expect([...shuffledIndices(100, 1)].sort((a, b) => a - b)).toEqual(Array.from({ length: 100 }, (_, i) => i));
  expect([...shuffledIndices(100, 1)]).not.toEqual([...shuffledIndices(100, 2)]);
});

test.each([2, 3, 4])("shuffledIndices() draws every order of %i numbers equally often", (n) => {
  const counts = new Map<string, number>();
  const orders = [1, 1, 2, 6, 24][n]!;
  const rounds = 500 * orders;
  for (let seed = 0; seed < rounds; seed++) {
    const order = shuffledIndices(n, seed).join("");
    counts.set(order, (counts.get(order) ?? 0) + 1);
  }
  expect(counts.size).toBe(orders);
  const chiSquare = Array.from(counts.values(), (count) => (count - 500) ** 2 / 500).reduce((a, b) => a + b);
  // The 99.9th percentile with orders - 1 degrees of freedom.
  expect(chiSquare).toBeLessThan({ 2: 10.8, 6: 20.5, 24: 49.7 }[orders as 2 | 6 | 24]);
});

test.each([randomStream, mulberry32])("%o is uniform", (make) => {
  const random = make(3);
  const counts = new Uint32Array(10);
  for (let i = 0; i < 20_000; i++) counts[Math.floor(random() * 10)]!++;
  const chiSquare = counts.reduce((sum, count) => sum + (count - 2000) ** 2 / 2000, 0);
  expect(chiSquare).toBeLessThan(27.9);
});

test("uniformAt() fills [0, 1) evenly", () => {
  const bins = new Float64Array(10);
  for (let i = 0; i < 10_000; i++) bins[Math.floor(uniformAt(i % 100, Math.floor(i / 100)) * 10)]!++;
  for (const count of bins) expect(Math.abs(count - 1000)).toBeLessThan(150);
});
