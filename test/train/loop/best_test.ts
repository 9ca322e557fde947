/** Which validation leaves the best checkpoint. */
import { expect, test } from "vitest";
import { bestOf } from "../../../src/train/loop/best.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";

const chosen = (metric_for_best_model: string | null, greater_is_better = true) =>
  loopSettings({ training: { metric_for_best_model, greater_is_better } }).training;
const at = (step: number, best?: LoopState["best"]) => ({ step, best }) as LoopState;

test.each<[before: number | undefined, value: number, greater: boolean, isBest: boolean]>([
  [undefined, 0.5, true, true],
  [0.5, 0.6, true, true],
  [0.5, 0.5, true, false],
  [0.5, 0.4, true, false],
  [0.5, 0.4, false, true],
  [0.5, 0.5, false, false],
  [0.5, 0.6, false, false],
  [undefined, Number.NaN, true, false],
  [0.5, Number.NaN, false, false],
  [0.5, Number.POSITIVE_INFINITY, true, false],
])("after %d, %d is the best where greater is better: %j -> %j", (before, value, greater, isBest) => {
  const best = before === undefined ? undefined : { step: 1, value: before };
  const found = bestOf(at(2, best), { metrics: { "val/x": value }, training: chosen("val/x", greater) });
  expect(found).toEqual(isBest ? { best: { step: 2, value } } : {});
});

test("nothing is the best before training, nor where no metric is named", () => {
  expect(bestOf(at(0), { metrics: { "val/x": 1 }, training: chosen("val/x") })).toEqual({});
  expect(bestOf(at(3), { metrics: { "val/x": 1 }, training: chosen(null) })).toEqual({});
});

test("a metric that the validation lacks is refused by its setting, before training too", () => {
  for (const step of [0, 3])
    expect(() => bestOf(at(step), { metrics: { "val/x": 1, "val/y": 2 }, training: chosen("val/z") })).toThrow(
      expect.objectContaining({
        path: "training.metric_for_best_model",
        message: expect.stringMatching(/val\/z.*val\/x, val\/y/),
      }),
    );
});
