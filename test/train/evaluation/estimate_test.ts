import { describe, expect, test } from "vitest";
import { estimate, estimateShare, pairedDifference } from "../../../src/train/evaluation/estimate.ts";
import { majorityAtK } from "../../../src/train/evaluation/majority.ts";

describe("estimate()", () => {
  test("has the standard error of the mean over tasks", () => {
    // numpy: x = [0, 0.25, 0.5, 1]; x.std(ddof=1) / 2 = 0.213478...
    const it = estimate([0, 0.25, 0.5, 1]);
    expect(it.mean).toBe(0.4375);
    expect(it.standard_error).toBeCloseTo(0.21347814095749196, 12);
    expect(it.interval![0]).toBeCloseTo(0.4375 - 1.959963984540054 * 0.21347814095749196, 12);
    expect(it.tasks).toBe(4);
  });
  test.each([
    [[], 0],
    [[0.5], 0.5],
  ])("has no interval for %j", (values, mean) => {
    expect(estimate(values)).toEqual({ mean, standard_error: null, interval: null, tasks: values.length });
  });
});

describe("estimateShare()", () => {
  test.each([
    // statsmodels.stats.proportion.proportion_confint(10, 10, method="wilson") and so on.
    [10, 10, 0.7224672001371107, 1],
    [0, 10, 0, 0.27753279986288926],
  ])("is Wilson's interval where all tasks agree: %i of %i", (correct, tasks, low, high) => {
    const values = Array.from({ length: tasks }, (_, i) => Number(i < correct));
    const { interval } = estimateShare(values);
    expect(interval![0]).toBeCloseTo(low, 10);
    expect(interval![1]).toBeCloseTo(high, 10);
  });
  test("of single attempts is Wilson's with one task less, because the deviation divides by n - 1", () => {
    const [low, high] = estimateShare([1, 1, 1, 0, 0, 0, 0, 0, 0, 0]).interval!;
    const [z, n, p] = [1.959963984540054, 9, 0.3];
    const half = (z * Math.sqrt((p * (1 - p)) / n + z ** 2 / (4 * n ** 2))) / (1 + z ** 2 / n);
    expect((high - low) / 2).toBeCloseTo(half, 12);
    expect((high + low) / 2).toBeCloseTo((p + z ** 2 / (2 * n)) / (1 + z ** 2 / n), 12);
  });
  test("covers the true rate about 95 times in 100", () => {
    let seed = 1;
    const random = () => {
      seed = (seed * 48271) % 2147483647;
      return seed / 2147483647;
    };
    let covered = 0;
    for (let i = 0; i < 2000; i++) {
      // Tasks of unlike difficulty, 4 attempts each; the mean rate is 1/2.
      const values = Array.from({ length: 50 }, () => {
        const p = random();
        return [0, 1, 2, 3].filter(() => random() < p).length / 4;
      });
      const [low, high] = estimateShare(values).interval!;
      if (low <= 0.5 && high >= 0.5) covered++;
    }
    expect(covered / 2000).toBeGreaterThan(0.935);
    expect(covered / 2000).toBeLessThan(0.97);
  });
});

test("pairedDifference() is narrower than two separate means of correlated scores", () => {
  const it = pairedDifference([
    [1, 0.5],
    [0.5, 0],
    [1, 0.75],
    [0.25, 0],
  ]);
  expect(it.mean).toBeCloseTo(0.375, 12);
  expect(it.standard_error).toBeCloseTo(0.0721687836487032, 12);
});

describe("majorityAtK()", () => {
  const votes = (text: string) =>
    [...text].map((letter) => ({
      answer: letter === "-" ? undefined : letter.toLowerCase(),
      is_correct: letter === "A",
    }));
  test.each([
    ["AAb", 3, 1],
    ["Abb", 3, 0],
    // A tie counts by the share of its correct answers.
    ["Ab", 2, 0.5],
    ["Abc-", 4, 1 / 3],
    // Attempts without an answer do not vote.
    ["A---", 4, 1],
    ["----", 4, 0],
    // Disjoint blocks of two; the last attempt is in none.
    ["AAbbA", 2, 0.5],
    ["AA", 8, 1],
    ["", 4, 0],
  ])("of %s at %i is %d", (text, k, expected) => {
    expect(majorityAtK(k, votes(text))).toBeCloseTo(expected, 12);
  });
});
