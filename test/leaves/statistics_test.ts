/** Statistics of plain numbers, against worked figures. */
import { describe, expect, test } from "vitest";
import * as statistics from "../../src/leaves/statistics.ts";

const { addStrided, deviation, largest, mean, percentile, populationDeviation } = statistics;
const { sampleDeviation, smallest, spread, sum, spreadWithStd } = statistics;

// Mean 5, squared deviations 32: the textbook's example.
const VALUES = [2, 4, 4, 4, 5, 5, 7, 9];

test("sum, mean and deviations", () => {
  expect([sum(VALUES), mean(VALUES), populationDeviation(VALUES)]).toEqual([40, 5, 2]);
  expect(sampleDeviation(VALUES)).toBeCloseTo(Math.sqrt(32 / 7), 15);
  expect(deviation(VALUES, 2)).toBeCloseTo(Math.sqrt(32 / 6), 15);
  expect(deviation(Float32Array.of(1, 3), 1)).toBeCloseTo(Math.SQRT2, 15);
});

test("of no values, and of one", () => {
  expect([sum([]), mean([]), populationDeviation([]), sampleDeviation([])]).toEqual([0, 0, 0, 0]);
  expect([largest([]), smallest([])]).toEqual([Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY]);
  expect([populationDeviation([3]), sampleDeviation([3])]).toEqual([0, Number.NaN]);
});

test("largest and smallest, of negative numbers too", () => {
  expect([largest([-3, -1, -2]), smallest([3, 1, 2])]).toEqual([-1, 1]);
});

test("addStrided() sums every stride-th number", () => {
  expect(addStrided([1, 2, 3, 4, 5], 2)).toEqual([9, 6]);
  expect(addStrided([1, 2, 3], 1)).toEqual([6]);
  expect(addStrided([], 3)).toEqual([0, 0, 0]);
});

describe("percentile()", () => {
  test.each([
    [0, 1],
    [10, 1.3],
    [25, 1.75],
    [50, 2.5],
    [99, 3.97],
    [100, 4],
  ])("%i of 1 to 4 is %f, as numpy interpolates", (p, expected) => {
    expect(percentile([4, 1, 3, 2], p)).toBeCloseTo(expected, 12);
  });

  test("sorts numbers, not texts, and leaves its input as it is", () => {
    const values = [10, 9, 100];
    expect(percentile(values, 0)).toBe(9);
    expect(percentile(values, 50)).toBe(10);
    expect(values).toEqual([10, 9, 100]);
    expect(percentile([7], 30)).toBe(7);
  });
});

test("spread() and spreadWithStd() name their figures; of no values they have none", () => {
  expect(spread("a", [1, 5])).toEqual({ "a/mean": 3, "a/max": 5, "a/min": 1 });
  expect(spreadWithStd("a", [1, 5])).toEqual({ "a/mean": 3, "a/max": 5, "a/min": 1, "a/std": 2 });
  expect([spread("a", []), spreadWithStd("a", [])]).toEqual([{}, {}]);
});
