import { expect, test } from "vitest";
import { Pace } from "../../src/serve/sample/pace.ts";

/** Most sequences of 100 steps that a batch may hold, after some batches on a device of these costs. */
function most(cost: (steps: number, tokens: number) => number): number {
  const pace = new Pace();
  let sequences = 128;
  for (let turn = 0; turn < 30; turn++) {
    const [steps, tokens] = [100, 100 * sequences];
    pace.observe({ steps, tokens }, cost(steps, tokens));
    sequences = 1;
    while (sequences < 128 && pace.allows({ steps, tokens: 100 * (sequences + 1) })) sequences++;
  }
  return sequences;
}

test.each<[string, (steps: number, tokens: number) => number, readonly [number, number]]>([
  ["a step costs the same for one and for all: full batches", (steps) => 30 * steps, [100, 128]],
  ["nearly so", (steps, tokens) => 30 * steps + 0.1 * tokens, [100, 128]],
  ["each token costs: a second", (_, tokens) => tokens, [9, 10]],
  ["each token costs much: one at a time", (_, tokens) => 50 * tokens, [1, 1]],
  ["both: twice the time of one, half the best throughput", (steps, tokens) => 20 * steps + tokens, [18, 22]],
  ["a quick device: full batches", (steps, tokens) => 0.1 * steps + 0.01 * tokens, [128, 128]],
])("%s", (_, cost, [least, largest]) => {
  const sequences = most(cost);
  expect(sequences).toBeGreaterThanOrEqual(least);
  expect(sequences).toBeLessThanOrEqual(largest);
});

test("nothing seen, nothing limited", () => {
  expect(new Pace().allows({ steps: 1e6, tokens: 1e9 })).toBe(true);
});
