/** What loggers are told while a step runs, and when a run is stopped. */
import { expect, test } from "vitest";
import type { Logger, Moment } from "../../../src/train/log/logger.ts";
import { train } from "../../../src/train/loop/train.ts";
import { LETTER_SETTINGS, letterRun } from "../../fixtures/loop.ts";

function watched() {
  const moments: Moment[] = [];
  const stops: number[] = [];
  const logger: Logger = {
    log() {},
    during: (moment) => void moments.push(moment),
    stopping: () => void stops.push(moments.length),
  };
  return { moments, stops, logger };
}

test("a step tells its attempts one by one, then that it scores and updates", async () => {
  const { moments, stops, logger } = watched();
  const trainer = { total_batches: 1, test_freq: 0, val_before_train: false };
  const settings = { ...LETTER_SETTINGS, trainer, training: { num_minibatches: 2, learning_rate: 8 } };
  const { run } = letterRun({ settings });
  await train({ ...run, loggers: [logger] });
  expect(moments.every(({ phase, step, totalSteps }) => phase === "train" && step === 1 && totalSteps === 1)).toBe(
    true,
  );
  const texts = moments.map(({ doing, done, total, unit }) => [doing, done, total, unit].join(" ").trim());
  const attempts = Array.from({ length: 33 }, (_, done) => `generating ${done} 32 attempts`);
  expect(texts).toEqual([...attempts, "scoring", "updating 0 2 mini-batches", "updating 1 2 mini-batches"]);
  expect(stops).toEqual([]);
});

test("a validation counts under its own phase", async () => {
  const { moments, logger } = watched();
  const { run } = letterRun({ settings: { ...LETTER_SETTINGS, trainer: { val_only: true } } });
  await train({ ...run, loggers: [logger] });
  expect(new Set(moments.map(({ phase }) => phase))).toEqual(new Set(["val"]));
  expect(moments.at(-1)).toMatchObject({ doing: "generating", done: 8, total: 8 });
});

test("the end of a run by its signal is told at once, and once", async () => {
  const { stops, logger } = watched();
  const controller = new AbortController();
  const { run } = letterRun();
  const during = (moment: Moment) => {
    if (moment.step === 2 && moment.done === 3) controller.abort();
    logger.during?.(moment);
  };
  const outcome = await train({ ...run, loggers: [{ ...logger, during }], signal: controller.signal });
  expect(outcome.isComplete).toBe(false);
  expect(stops).toHaveLength(1);
});
