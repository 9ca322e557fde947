/** Numbers, times and curves as people read them. */
import { expect, test } from "vitest";
import { clockDuration, labelled, shortNumber, sparkline } from "../../../src/train/log/format.ts";
import { meanReward } from "../../../src/train/log/mean_reward.ts";

test.each<[value: number, text: string]>([
  [0, "0"],
  [1, "1"],
  [0.1234, "0.123"],
  [12.34, "12.3"],
  [99.96, "100"],
  [100, "100"],
  [-1234.5, "-1235"],
  [9999, "9999"],
  [10_000, "10k"],
  [12_345, "12.3k"],
  [1e6, "1M"],
  [3.4e6, "3.4M"],
  [0.0001, "0.0001"],
  [0.00009, "9.0e-5"],
  [Number.NaN, "NaN"],
  [Number.NEGATIVE_INFINITY, "-Infinity"],
])("shortNumber(%d) is %s", (value, text) => {
  expect(shortNumber(value)).toBe(text);
});

test.each<[seconds: number, text: string]>([
  [-1, "0 s"],
  [59.4, "59 s"],
  [59.5, "1:00"],
  [185, "3:05"],
  [3599, "59:59"],
  [3600, "1:00:00"],
  [3723, "1:02:03"],
])("duration(%d) is %s", (seconds, text) => {
  expect(clockDuration(seconds)).toBe(text);
});

test("labelled() folds before the last column, and keeps a word that is too long", () => {
  expect(labelled("data", "aa bb cc", 14)).toBe("data    aa bb\n        cc\n");
  expect(labelled("data", "aa bb", 13)).toBe("data    aa\n        bb\n");
  expect(labelled("data", "longword b", 10)).toBe("data    longword\n        b\n");
});

test.each<[values: number[], width: number, curve: string]>([
  [[], 5, ""],
  [[3, 3], 5, "▁▁"],
  [[0, 7], 5, "▁█"],
  [[0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"],
  [[0, 2, 6, 8], 2, "▁█"],
  [[0, 0, 7, 0, 0, 14], 2, "▁█"],
  // Means 0, 1 and 7: parts of one, two and two values.
  [[0, 2, 0, 14, 0], 3, "▁▂█"],
  [[7, 0, 0, 0, 0, 0, 0, 0], 4, "█▁▁▁"],
])("sparkline(%j, %i) is %s", (values, width, curve) => {
  expect(sparkline(values, width)).toBe(curve);
});

test.each<[metrics: Record<string, number>, mean: number | undefined]>([
  [{}, undefined],
  [{ "reward/a/std": 1, "x/reward/a/mean": 1, "reward/a/mean/x": 1 }, undefined],
  [{ "reward/a/mean": 1, "reward/b/mean": 0, "reward/a/std": 9 }, 0.5],
])("meanReward(%j) is %d", (metrics, mean) => {
  expect(meanReward(metrics)).toBe(mean);
});
