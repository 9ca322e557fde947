/** When a run validates, saves, measures and ends: each step's records, counted over whole runs of the table backend. */
import { afterEach, describe, expect, test, vi } from "vitest";
import type { Checkpoint, CheckpointContents } from "../../../src/train/log/checkpoint/store.ts";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import { runFrom } from "../../../src/train/loop/run.ts";
import { STAGES } from "../../../src/train/loop/stages.ts";
import { START_STATE } from "../../../src/train/loop/state.ts";
import { train } from "../../../src/train/loop/train.ts";
import { validate } from "../../../src/train/loop/validate.ts";
import { LETTER_SETTINGS, letterRun, letterTasks } from "../../fixtures/loop.ts";

afterEach(() => vi.restoreAllMocks());

const settingsOf = (trainer: object, more: object = {}) => ({
  ...LETTER_SETTINGS,
  trainer: { total_batches: 5, test_freq: 0, save_freq: 0, ...trainer },
  ...more,
});

/** A store in memory that notes what is saved. */
function memoryStore(found?: Checkpoint<LoopState>) {
  const saved: string[] = [];
  const save = async (name: string, it: CheckpointContents<LoopState>) => {
    saved.push(it.best ? `${name} best ${it.best.value}` : name);
  };
  return { saved, checkpoints: { save, find: async () => found } };
}

describe("validation", () => {
  test.each<[trainer: object, steps: number[]]>([
    [{ test_freq: 2 }, [0, 2, 4, 5]],
    [{ test_freq: 5 }, [0, 5]],
    [{ test_freq: 9 }, [0, 5]],
    [{ test_freq: 0 }, [0]],
    [{ test_freq: -1 }, [0]],
    [{ test_freq: 2, val_before_train: false }, [2, 4, 5]],
  ])("%j comes after the steps %j", async (trainer, steps) => {
    const { run, log } = letterRun({ settings: settingsOf(trainer) });
    await train(run);
    expect(log.of("val").map(({ step }) => step)).toEqual(steps);
    expect(log.of("train").map(({ step, totalSteps }) => [step, totalSteps])).toEqual(
      [1, 2, 3, 4, 5].map((n) => [n, 5]),
    );
  });

  test("needs tasks", async () => {
    const { run, log } = letterRun({
      settings: settingsOf({ test_freq: 1 }),
      tasks: { train: letterTasks(16), val: [] },
    });
    await train(run);
    expect(log.of("val")).toEqual([]);
  });

  test("is not repeated at the step from which a run resumes", async () => {
    const state = { ...START_STATE, step: 2, validated: 2 };
    const { run, log, backend } = letterRun({ settings: settingsOf({ test_freq: 2 }) });
    vi.spyOn(backend, "load").mockResolvedValue();
    await train({ ...run, ...memoryStore({ dir: "", state }) });
    expect(log.of("val").map(({ step }) => step)).toEqual([4, 5]);
  });

  test("tells its progress, and its records carry steps, episodes and the time", async () => {
    const progress: [number, number][] = [];
    const records: LogRecord[] = [];
    const logger = {
      log: (record: LogRecord) => void records.push(record),
      progress: (done: number, total: number) => void progress.push([done, total]),
    };
    const { run } = letterRun({ loggers: [logger, { log: () => {} }] });
    const rollout = { ...LETTER_SETTINGS.rollout, n_val: 2 };
    const data = { ...LETTER_SETTINGS.data, val_batch_size: 3 };
    const made = runFrom({ ...run, settings: { ...settingsOf({}), rollout, data } });
    const started = performance.now();
    const state = await validate(made, { ...START_STATE, step: 4 });
    expect(state).toEqual({ ...START_STATE, step: 4, validated: 4 });
    expect(progress).toEqual(Array.from({ length: 16 }, (_, i) => [i + 1, 16]));
    const [record] = records;
    expect(record).toMatchObject({ phase: "val", step: 4, totalSteps: 5 });
    expect(record!.episodes!.map(({ task_index }) => task_index)).toEqual(Array.from({ length: 16 }, (_, i) => i >> 1));
    expect(record!.metrics["time/testing"]).toBeGreaterThan(0);
    expect(record!.metrics["time/testing"]).toBeLessThanOrEqual((performance.now() - started) / 1000);
    expect(record!.metrics).not.toHaveProperty("val/rollouts_failed");
  });

  test("that is stopped reports what it has, to loggers that take it", async () => {
    const stop = new AbortController();
    const partial: LogRecord[] = [];
    const logger = {
      log: () => expect.fail("a stopped validation is not logged"),
      progress: (done: number) => void (done === 3 && stop.abort(new Error("stopped"))),
      partial: (record: LogRecord) => void partial.push(record),
    };
    const { run } = letterRun({ loggers: [logger, { log: () => {} }], signal: stop.signal });
    const data = { ...LETTER_SETTINGS.data, val_batch_size: 3 };
    const made = runFrom({ ...run, settings: { ...settingsOf({}), data } });
    await expect(validate(made, START_STATE)).rejects.toThrow("stopped");
    expect(partial).toHaveLength(1);
    expect(partial[0]!.episodes).toHaveLength(3);
    expect(partial[0]!.metrics["val/copy/pass@1"]).toBeGreaterThanOrEqual(0);
  });

  test("that fails reports nothing, and says why", async () => {
    const logger = { log: () => {}, partial: () => expect.fail("nothing was stopped") };
    const stages = { ...STAGES, transform: () => Promise.reject(new Error("broken")) };
    const { run } = letterRun({ loggers: [logger] });
    await expect(validate(runFrom({ ...run, stages }), START_STATE)).rejects.toThrow("broken");
  });

  test.each<
    [best: LoopState["best"], greater_is_better: boolean, value: number, step: number, kept: LoopState["best"]]
  >([
    [undefined, true, 0.5, 3, { step: 3, value: 0.5 }],
    [{ step: 1, value: 0.4 }, true, 0.5, 3, { step: 3, value: 0.5 }],
    [{ step: 1, value: 0.5 }, true, 0.5, 3, { step: 1, value: 0.5 }],
    [{ step: 1, value: 0.6 }, true, 0.5, 3, { step: 1, value: 0.6 }],
    [{ step: 1, value: 0.6 }, false, 0.5, 3, { step: 3, value: 0.5 }],
    [{ step: 1, value: 0.5 }, false, 0.5, 3, { step: 1, value: 0.5 }],
    [undefined, true, Number.NaN, 3, undefined],
    [undefined, true, 0.5, 0, undefined],
  ])("after %j, with greater_is_better %j, %f at step %i: the best is %j", async (best, greater, value, step, kept) => {
    const metric = "val/reward/copier/mean";
    const training = { ...LETTER_SETTINGS.training, metric_for_best_model: metric, greater_is_better: greater };
    const { run } = letterRun({ settings: { ...settingsOf({}), training } });
    const group = (reward: number) => ({ group_role: "copier", trajectories: [{ reward }] });
    const stages = { ...STAGES, transform: () => ({ value: [group(value)], metrics: {} }) as never };
    const state = await validate(runFrom({ ...run, stages }), { ...START_STATE, step, ...(best && { best }) });
    expect(state.best).toEqual(kept);
  });
});

describe("saving", () => {
  test.each<[trainer: object, saved: string[]]>([
    [{ save_freq: 2 }, ["global_step_2", "global_step_4", "global_step_5"]],
    [{ save_freq: 1 }, [1, 2, 3, 4, 5].map((step) => `global_step_${step}`)],
    [{ save_freq: 0 }, ["global_step_5"]],
    [{ save_freq: -1 }, ["global_step_5"]],
    [{ save_freq: 5 }, ["global_step_5"]],
  ])("%j keeps %j", async (trainer, names) => {
    const { saved, checkpoints } = memoryStore();
    const { run } = letterRun({ settings: settingsOf(trainer), checkpoints });
    expect((await train(run)).isComplete).toBe(true);
    expect(saved).toEqual(names);
  });

  test("a run that has nothing left to do saves nothing, and is complete", async () => {
    const { saved, checkpoints } = memoryStore({ dir: "", state: { ...START_STATE, step: 5 } });
    const { run, backend, log } = letterRun({ settings: settingsOf({ save_freq: 1 }), checkpoints });
    vi.spyOn(backend, "load").mockResolvedValue();
    expect((await train(run)).isComplete).toBe(true);
    expect(saved).toEqual([]);
    expect(log.of("train")).toEqual([]);
  });

  test("every logger hears of the end", async () => {
    let ended = 0;
    const finish = async () => void ended++;
    const { run } = letterRun({
      settings: settingsOf({}),
      loggers: [{ log: () => {}, finish }, { log: () => {} }, { log: () => {}, finish }],
    });
    await train(run);
    expect(ended).toBe(2);
  });
});

describe("times", () => {
  test("the stages' seconds add up to the step's, which lie within the run's", async () => {
    const { run, log } = letterRun({ settings: settingsOf({ total_batches: 1 }) });
    const started = performance.now();
    await train(run);
    const seconds = (performance.now() - started) / 1000;
    const { metrics } = log.of("train")[0]!;
    const stages = ["generate", "transform", "reject", "batch", "process", "advantages", "update"];
    const total = stages.reduce((sum, stage) => sum + metrics[`time/${stage}`]!, 0);
    expect(total).toBeCloseTo(metrics["time/step"]!, 9);
    expect(metrics["time/step"]).toBeGreaterThan(0);
    expect(metrics["time/step"]).toBeLessThan(seconds);
    expect(metrics["perf/throughput"]).toBeCloseTo(metrics["perf/total_num_tokens"]! / metrics["time/step"]!, 6);
  });

  test("waiting for weights and episodes is a part of generating them", async () => {
    const async_training = { enable: true, mini_batch_size: 4 };
    const { run, log } = letterRun({ settings: settingsOf({ total_batches: 2 }, { async_training }) });
    await train(run);
    for (const { metrics } of log.of("train")) {
      const [sync, wait] = [metrics["time/weight_sync"]!, metrics["time/buffer_wait"]!];
      expect(Math.min(sync, wait)).toBeGreaterThanOrEqual(0);
      expect(sync + wait).toBeGreaterThan(0);
      expect(sync + wait).toBeLessThanOrEqual(metrics["time/generate"]!);
      expect(metrics["async/trainer_idle_ratio"]).toBeCloseTo(wait / metrics["time/step"]!, 9);
    }
    expect(log.of("train").map(({ metrics }) => metrics["async/weight_version"])).toEqual([0, 1]);
  });
});

test("a pipeline by name runs the functions that the run was given", async () => {
  const called: string[] = [];
  const wrap = <N extends keyof typeof STAGES>(name: N) => ({
    [name]: (...args: never[]) => {
      called.push(name);
      return (STAGES[name] as (...it: never[]) => unknown)(...args);
    },
  });
  const stages = { ...STAGES, ...wrap("reject"), ...wrap("update"), ...wrap("log") } as typeof STAGES;
  const names = ["generate", "transform", "reject", "batch", "process", "advantages", "update", "update", "log"];
  const { run } = letterRun({ settings: { ...settingsOf({ total_batches: 1 }), pipeline: { stages: names } }, stages });
  await train(run);
  expect(called).toEqual(["reject", "update", "update", "log"]);
});
