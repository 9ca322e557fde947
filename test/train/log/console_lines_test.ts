/** Every part of the console's lines, exactly, with a clock of the test's. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import { ConsoleLogger } from "../../../src/train/log/loggers/console.ts";

let seconds = 0;
beforeEach(() => {
  seconds = 1000;
  vi.spyOn(performance, "now").mockImplementation(() => seconds * 1000);
});
afterEach(() => {
  vi.restoreAllMocks();
});

function opened(options: { isTerminal?: boolean; color?: boolean; columns?: number } = {}) {
  const written: string[] = [];
  const { isTerminal = false, color = false, columns = 120 } = options;
  const logger = new ConsoleLogger({ err: (text) => void written.push(text), isTerminal, color, columns });
  const log = (phase: LogRecord["phase"], step: number, rest: Partial<LogRecord> = {}) =>
    logger.log({ phase, step, totalSteps: 10, metrics: {}, ...rest });
  return { logger, log, said: () => written.splice(0) };
}

const REDRAW = "\r\x1b[2K";
const bar = (full: number, of = 18) => "━".repeat(full) + "─".repeat(of - full);

describe("the remaining time", () => {
  test("is unknown at a phase's first step, then follows from the steps since", () => {
    const { log, said } = opened();
    log("train", 3);
    seconds += 20;
    log("train", 5);
    seconds += 10;
    log("train", 6);
    seconds += 40;
    log("train", 10, { metrics: { "time/step": 5 } });
    expect(said()).toEqual([
      "step 3/10  reward -  eta …\n",
      "step 5/10  reward -  eta 50 s\n",
      "step 6/10  reward -  eta 40 s\n",
      "step 10/10  reward -  in 1:10\n",
    ]);
  });

  test("begins again with each phase, and counts the first step's own time at the end", () => {
    const { log, said } = opened();
    log("warmup", 1, { metrics: { "time/step": 100 }, totalSteps: 2 });
    seconds += 10;
    log("warmup", 2, { totalSteps: 2 });
    seconds += 500;
    log("train", 1, { metrics: { "time/step": 7 }, totalSteps: 2 });
    seconds += 3;
    log("train", 2, { totalSteps: 2 });
    const times = said().map((line) => line.trim().split("  ").at(-1));
    expect(times).toEqual(["eta …", "in 1:50", "eta …", "in 10 s"]);
  });
});

describe("without a terminal", () => {
  test("warm-up prints about five lines, the last step among them", () => {
    const { log, said } = opened();
    for (let step = 1; step <= 12; step++)
      log("warmup", step, { totalSteps: 12, metrics: { "warmup/loss": 1 / step, "perf/throughput": 50 } });
    const lines = said();
    expect(lines.map((line) => line.split("  ")[0])).toEqual([
      "warm-up 3/12",
      "warm-up 6/12",
      "warm-up 9/12",
      "warm-up 12/12",
    ]);
    expect(lines[0]).toBe("warm-up 3/12  loss 0.333  50 tok/s  eta 0 s\n");
  });

  test("the last step of warm-up is printed where it is no round one", () => {
    const { log, said } = opened();
    for (let step = 1; step <= 11; step++) log("warmup", step, { totalSteps: 11 });
    expect(said().map((line) => line.split("  ").slice(0, 2))).toEqual(
      [3, 6, 9, 11].map((step) => [`warm-up ${step}/11`, "loss -"]),
    );
  });

  test("a step names each fact that it has, and the note", () => {
    const { log, said } = opened();
    const metrics = {
      "reward/a/mean": 0.25,
      "reward/b/mean": 0.75,
      "batch/rollouts_failed": 2,
      "actor/entropy": 1.5,
      "actor/ppo_kl": 0.01,
      "actor/pg_clipfrac": 0.125,
      "response_length/mean": 64,
      "async/staleness_mean": 0.5,
      "perf/throughput": 20_000,
    };
    log("train", 1, { metrics, note: "nothing trained" });
    log("train", 2, { metrics: { "batch/rollouts_failed": 0 } });
    expect(said()).toEqual([
      "step 1/10  reward 0.500  failed 2/?  entropy 1.5  kl 0.01  clip 0.125  len 64  stale 0.5  20k tok/s  eta …  nothing trained\n",
      "step 2/10  reward -  eta 0 s\n",
    ]);
  });

  test("nothing is redrawn, and the end prints nothing", () => {
    const { logger, log, said } = opened();
    log("train", 10);
    said();
    logger.warn("the disk is slow");
    logger.finish();
    expect(said()).toEqual(["warning: the disk is slow\n"]);
  });
});

describe("on a terminal", () => {
  test("warm-up is a bar with the remaining time, the loss and the speed", () => {
    const { log, said } = opened({ isTerminal: true });
    log("warmup", 5, { metrics: { "warmup/loss": 2, "perf/throughput": 10 } });
    log("warmup", 10);
    expect(said()).toEqual([
      `${REDRAW}warm-up ${bar(9)}  5/10  eta …  loss 2.000  10 tok/s`,
      `${REDRAW}warm-up ${bar(18)} 10/10  in 0 s  loss -`,
      "\n",
    ]);
  });

  test.each([
    [79, 9],
    [80, 18],
  ])("on %i columns the bar has %i characters", (columns, width) => {
    const { log, said } = opened({ isTerminal: true, columns });
    log("train", 5, { totalSteps: 15 });
    expect(said()[0]).toContain(`train ${bar(width / 3, width)}  5/15  eta`);
  });

  test.each([
    [99, ""],
    [100, "  ▁█"],
  ])("on %i columns the curve of the rewards is %j", (columns, curve) => {
    const { log, said } = opened({ isTerminal: true, columns });
    log("train", 1, { metrics: { "reward/a/mean": 0 } });
    log("train", 2, { metrics: { "reward/a/mean": 1 } });
    log("train", 3);
    const [, second, third] = said();
    expect(second).toBe(`${REDRAW}train ${bar(4)}  2/10  eta 0 s  reward 1.000${curve}`);
    expect(third).toBe(`${REDRAW}train ${bar(5)}  3/10  eta 0 s  reward -${curve}`);
  });

  test("a step shows the accuracies of the last validation", () => {
    const { log, said } = opened({ isTerminal: true });
    log("train", 1);
    expect(said().join("")).not.toContain("val");
    log("val", 1, { metrics: { "val/a/pass@1": 0.5, "val/a/pass@10": 0.75, "val/b/pass@1": 0.125 } });
    said();
    log("train", 2);
    expect(said()).toEqual([`${REDRAW}train ${bar(4)}  2/10  eta 0 s  reward -  val 0.500 0.125`]);
  });

  test("a line clears the redrawn one, and the next redraw starts below it", () => {
    const { logger, log, said } = opened({ isTerminal: true });
    log("train", 1);
    logger.warn("a");
    logger.warn("b");
    logger.finish();
    expect(said().slice(1)).toEqual([`${REDRAW}warning: a\n`, "warning: b\n"]);
    log("train", 2);
    logger.finish();
    logger.finish();
    expect(said().slice(1)).toEqual(["\n"]);
  });

  test("a note has a line of its own when it changes, and when it comes back", () => {
    const { log, said } = opened({ isTerminal: true });
    for (const [i, note] of ["x", "x", undefined, "x", "y"].entries()) log("train", i + 1, note ? { note } : {});
    expect(said().filter((text) => text.includes("step"))).toEqual([
      "step 1: x\n",
      `${REDRAW}step 4: x\n`,
      `${REDRAW}step 5: y\n`,
    ]);
  });

  test("colours count as no columns, and a head that is too long is cut", () => {
    const painted = opened({ isTerminal: true, color: true, columns: 39 });
    painted.log("train", 5);
    expect(painted.said()).toEqual([`${REDRAW}train \x1b[36m━━━━━\x1b[0m\x1b[2m────\x1b[0m  5/10  eta …  reward -`]);
    const narrow = opened({ isTerminal: true, color: true, columns: 13 });
    narrow.log("train", 5);
    expect(narrow.said()).toEqual([`${REDRAW}train \x1b[36m━━━━━\x1b[0m\x1b[2m─\x1b[0m`]);
  });

  test("a fact that ends at the last but one column fits, and after one that does not, none comes", () => {
    const line = `train ${bar(2, 9)}  2/10  eta …  reward -`;
    const fits = opened({ isTerminal: true, columns: line.length + 1 });
    fits.log("train", 2);
    expect(fits.said()).toEqual([REDRAW + line]);
    const cut = opened({ isTerminal: true, columns: line.length });
    cut.log("train", 2, { metrics: { "actor/entropy": 1 } });
    expect(cut.said()).toEqual([`${REDRAW}train ${bar(2, 9)}  2/10  eta …`]);
  });

  test("validation is folded where a line would reach the edge", () => {
    const metrics = { "val/a/pass@1": 0.5, "val/a/pass@2": 1 };
    const line = "validation at step 4  a/pass@1 0.500  a/pass@2 1.000";
    for (const [columns, lines] of [
      [line.length + 1, [`${line}\n`]],
      [line.length, ["validation at step 4  a/pass@1 0.500\n", "  a/pass@2 1.000\n"]],
      [10, ["validation at step 4\n", "  a/pass@1 0.500\n", "  a/pass@2 1.000\n"]],
    ] as const) {
      const { log, said } = opened({ isTerminal: true, columns });
      log("val", 4, { metrics });
      expect(said()).toEqual(lines);
    }
  });

  test("validation is painted: its name green, its figures bold", () => {
    const { log, said } = opened({ isTerminal: true, color: true });
    log("val", 4, { metrics: { "val/a/pass@1": 0.5 } });
    expect(said()).toEqual(["\x1b[32mvalidation\x1b[0m at step 4  a/pass@1 \x1b[1m0.500\x1b[0m\n"]);
  });
});

test("validation leaves out what is no rate and no mean reward", () => {
  const { log, said } = opened();
  const metrics = {
    "val/a/pass@1": 0.5,
    "val/a/pass@k": 1,
    "val/reward/a/mean": 0.25,
    "val/reward/a/std": 0.1,
    "reward/a/mean": 1,
    "val/rollouts_failed": 0,
  };
  log("val", 4, { metrics, episodes: [] });
  expect(said()).toEqual(["validation at step 4  a/pass@1 0.500  reward/a/mean 0.250\n"]);
});
