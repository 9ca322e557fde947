import { expect, test } from "vitest";
import type { RunData } from "../../../src/train/log/page/page_data.ts";
import { howGood } from "../../../src/train/run/ending.ts";

const METRIC = "val/sums/pass@1";

function runOf(steps: readonly number[], first: number): RunData {
  return { curves: { val: { [METRIC]: { x: steps, first } } } } as unknown as RunData;
}

test.each([
  ["better than before", [0, 5], 0.25, 0.5, true, "val/sums/pass@1 0.500"],
  ["worse than before", [0, 5], 0.75, 0.5, true, "val/sums/pass@1 0.500, no better than 0.750 before training"],
  ["as before", [0, 5], 0.5, 0.5, true, "val/sums/pass@1 0.500, no better than 0.500 before training"],
  ["smaller, which is better", [0, 5], 0.75, 0.5, false, "val/sums/pass@1 0.500"],
  ["larger, which is worse", [0, 5], 0.25, 0.5, false, "val/sums/pass@1 0.500, no better than 0.250 before training"],
  ["the first that was measured", [5, 10], 0.75, 0.5, true, "val/sums/pass@1 0.500"],
])("the best checkpoint is %s", (_, steps, first, value, isGreaterBetter, line) => {
  const best = { checkpoint: "global_step_5", metric: METRIC, value };
  expect(howGood(best, { run: runOf(steps, first), isGreaterBetter })).toBe(line);
});

test("without a curve the value stands alone", () => {
  const run = { curves: { val: {} } } as unknown as RunData;
  const best = { checkpoint: "global_step_5", metric: METRIC, value: 1 };
  expect(howGood(best, { run, isGreaterBetter: true })).toBe("val/sums/pass@1 1.000");
});
