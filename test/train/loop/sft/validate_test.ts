/** The loss on held-out rows, of a backend that answers by a formula: over rows that take several calls too. */
import { expect, test } from "vitest";
import type { Backend } from "../../../../src/engine/contract/backend.ts";
import { heldOutLoss } from "../../../../src/train/loop/sft/validate.ts";

/** log p = -id / 10; greedy decoding draws even tokens. */
function formulaBackend() {
  const calls: number[] = [];
  const logprobs: Backend["logprobs"] = async ({ tokens, offsets }) => {
    calls.push(offsets.length - 1);
    return {
      logprobs: Float32Array.from(tokens, (id) => -id / 10),
      greedy: Float32Array.from(tokens, (id) => Number(id % 2 === 0)),
    };
  };
  return { backend: { logprobs } as unknown as Backend, calls };
}

test.each([1, 64, 65, 130])("of %i rows is the mean over all their tokens, each once", async (count) => {
  const rows = Array.from({ length: count }, (_, i) => ({
    ...{ ids: [1, 2 + i, 3 + i], mask: [0, 1, 1], weights: [0, 1, 0.5], file: "rows.jsonl", line: i + 1 },
  }));
  const { backend, calls } = formulaBackend();
  const metrics = await heldOutLoss(rows, { backend, signal: new AbortController().signal });
  const sum = (of: (i: number) => number) => rows.reduce((total, _, i) => total + of(i), 0);
  const loss = sum((i) => (2 + i) / 10 + (0.5 * (3 + i)) / 10) / (1.5 * count);
  expect(metrics["val/loss"]).toBeCloseTo(loss, 5);
  expect(metrics["val/perplexity"]).toBeCloseTo(Math.exp(metrics["val/loss"]!), 9);
  // Of two numbers in a row one is even.
  expect(metrics["val/mean_token_accuracy"]).toBe(0.5);
  expect(calls.reduce((total, each) => total + each, 0)).toBe(count);
  expect(Math.max(...calls)).toBeLessThanOrEqual(64);
});
