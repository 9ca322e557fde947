import { expect, test } from "vitest";
import { BatchCost } from "../../../src/serve/tinker/sample/batch_cost.ts";

/** The most sequences of 100 steps that a batch may hold, after 30 batches on a device with these costs. */
function most(cost: (steps: number, tokens: number) => number): number {
  const batchCost = new BatchCost();
  let sequences = 128;
  for (let turn = 0; turn < 30; turn++) {
    const [steps, tokens] = [100, 100 * sequences];
    batchCost.observe({ steps, tokens }, cost(steps, tokens));
    sequences = 1;
    while (sequences < 128 && batchCost.allows({ steps, tokens: 100 * (sequences + 1) })) sequences++;
  }
  return sequences;
}

test.each<[string, (steps: number, tokens: number) => number, readonly [number, number]]>([
  ["a step costs the same for any number of sequences: full batches", (steps) => 30 * steps, [100, 128]],
  ["tokens cost almost nothing: nearly full batches", (steps, tokens) => 30 * steps + 0.1 * tokens, [100, 128]],
  ["only tokens cost: batches of one second", (_, tokens) => tokens, [9, 10]],
  ["tokens cost a lot: one sequence at a time", (_, tokens) => 50 * tokens, [1, 1]],
  [
    "steps and tokens cost: batches of twice the time of one sequence",
    (steps, tokens) => 20 * steps + tokens,
    [18, 22],
  ],
  ["a fast device: full batches", (steps, tokens) => 0.1 * steps + 0.01 * tokens, [128, 128]],
])("%s", (_, cost, [least, largest]) => {
  const sequences = most(cost);
  expect(sequences).toBeGreaterThanOrEqual(least);
  expect(sequences).toBeLessThanOrEqual(largest);
});

test("without observations nothing is limited", () => {
  expect(new BatchCost().allows({ steps: 1e6, tokens: 1e9 })).toBe(true);
});
