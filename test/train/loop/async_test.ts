import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import type { Backend } from "../../../src/engine/contract/backend.ts";
import { EpisodeStore } from "../../../src/train/log/episode_store.ts";
import type { TrainOptions } from "../../../src/train/loop/contract.ts";
import { SyncWindow } from "../../../src/train/loop/rollout/sync_window.ts";
import type { LoopSettings, Partly } from "../../../src/train/loop/settings.ts";
import { train } from "../../../src/train/loop/train.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import { type Rollout, singleTurn } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, letterRun, letterTasks } from "../../fixtures/loop.ts";
import { uniform } from "../../fixtures/numbers.ts";

type AsyncSettings = Partial<LoopSettings["async_training"]>;

const settingsOf = (async_training: AsyncSettings, more: Partly<LoopSettings> = {}): Partly<LoopSettings> => ({
  ...LETTER_SETTINGS,
  ...more,
  async_training: { enable: true, mini_batch_size: 4, ...async_training },
});

const asyncRun = (settings: AsyncSettings, options: Partial<TrainOptions> = {}, more: Partly<LoopSettings> = {}) =>
  letterRun({ settings: settingsOf(settings, more), ...options });

/** A rollout that takes up to `most` ms, from its own random numbers. */
function slow(most: number, seed = 1): Rollout {
  const next = uniform(seed);
  const inner = singleTurn("copier", exactMatch);
  return async (task, policy) => {
    await sleep(next() * most);
    return inner(task, policy);
  };
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

const withoutTimes = (metrics: Readonly<Record<string, number>>) =>
  Object.fromEntries(Object.entries(metrics).filter(([name]) => !/^(time|perf|async)\//.test(name)));

describe("asynchronous training", () => {
  test("with threshold 0 and trigger 1 it equals the synchronous run", async () => {
    const [sync, async_] = [letterRun(), asyncRun({ staleness_threshold: 0, trigger_parameter_sync_step: 1 })];
    await train(sync.run);
    await train(async_.run);
    expect(async_.backend.text()).toBe(sync.backend.text());
    const logs = [sync, async_].map(({ log }) =>
      log.records.map(({ phase, step, metrics }) => ({ phase, step, metrics: withoutTimes(metrics) })),
    );
    expect(logs[1]).toEqual(logs[0]);
    const staleness = async_.log.of("train").map(({ metrics }) => metrics["async/staleness_max"]);
    expect(staleness).toEqual(Array(12).fill(0));
  });

  test("runs a pipeline by name like the synchronous run", async () => {
    const stages = ["generate", "transform", "batch", "process", "advantages", "update", "log"];
    const [sync, async_] = [
      letterRun({ settings: { ...LETTER_SETTINGS, pipeline: { stages } } }),
      asyncRun({}, {}, { pipeline: { stages } }),
    ];
    await train(sync.run);
    await train(async_.run);
    expect(async_.backend.text()).toBe(sync.backend.text());
  });

  test.each([
    { staleness_threshold: 0, trigger_parameter_sync_step: 3, bound: 0 },
    { staleness_threshold: 0.5, trigger_parameter_sync_step: 1, bound: 1 },
    { staleness_threshold: 1, trigger_parameter_sync_step: 2, bound: 1 },
    { staleness_threshold: 2.5, trigger_parameter_sync_step: 1, bound: 3 },
  ])("trains on no group that is staler than the threshold allows: %o", async ({ bound, ...settings }) => {
    const { run, log } = asyncRun(settings, { rollout: slow(8) });
    const outcome = await train(run);
    expect(outcome.isComplete).toBe(true);
    const steps = log.of("train").map(({ metrics }) => metrics);
    expect(Math.max(...steps.map((metrics) => metrics["async/staleness_max"]!))).toBeLessThanOrEqual(bound);
    for (const metrics of steps) {
      expect(metrics["async/quota_used"]).toBeLessThanOrEqual(metrics["async/max_rollout_quota"]!);
      expect(metrics["async/groups_consumed"]).toBe(4);
    }
    expect(steps.at(-1)?.["async/buffer_consumed"]).toBe(48);
    expect(steps.at(-1)?.["async/total_syncs"]).toBe(Math.floor(11 / settings.trigger_parameter_sync_step));
  });

  test("samples from the weights of the last synchronisation, not from newer ones", async () => {
    const { run, log } = asyncRun({ staleness_threshold: 0, trigger_parameter_sync_step: 4 }, { rollout: slow(4) });
    await train(run);
    const versions = log
      .of("train")
      .map(({ episodes }) => [
        ...new Set(episodes?.flatMap((it) => it.trajectories.map((t) => t.steps[0]!.weight_version))),
      ]);
    expect(versions).toEqual([0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8].map((version) => [version]));
  });

  test("continues partial rollouts over a synchronisation, and waits for whole ones", async () => {
    /** Two calls with a pause between them, which is long for the letter `a`. */
    const twoTurns: Rollout = async (task, policy) => {
      const first = await policy.complete(task.instruction);
      await sleep(task.instruction === "a" ? 40 : 1);
      const second = await policy.complete(task.instruction);
      return {
        trajectories: [{ name: "copier", steps: [first, second].map((step) => ({ ...step, reward: 1 })) }],
      };
    };
    const mixed = async (partial_rollout: boolean) => {
      const { run, log } = asyncRun({ staleness_threshold: 2, partial_rollout }, { rollout: twoTurns });
      await train(run);
      const trajectories = log.of("train").flatMap(({ episodes }) => episodes?.flatMap((it) => it.trajectories) ?? []);
      return trajectories.filter(({ steps }) => steps[0]!.weight_version !== steps[1]!.weight_version).length;
    };
    expect(await mixed(false)).toBe(0);
    expect(await mixed(true)).toBeGreaterThan(0);
  });

  test("attempts the next tasks while the trainer takes a step", async () => {
    const runningAtUpdates = async (settings: Partly<LoopSettings>) => {
      const inner = singleTurn("copier", exactMatch);
      let [started, running] = [0, 0];
      const seen: number[] = [];
      let update = () => {};
      const firstUpdate = new Promise<void>((resolve) => {
        update = resolve;
      });
      const rollout: Rollout = async (task, policy) => {
        if (policy.isValidation) return inner(task, policy);
        running++;
        if (started++ >= 32) await firstUpdate;
        const result = await inner(task, policy);
        running--;
        return result;
      };
      const { run, backend } = letterRun({ settings, rollout });
      const step = backend.optimStep.bind(backend);
      backend.optimStep = (params) => {
        seen.push(running);
        update();
        return step(params);
      };
      await train(run);
      return seen;
    };
    expect(await runningAtUpdates(LETTER_SETTINGS)).toEqual(Array(12).fill(0));
    const [first] = await runningAtUpdates(settingsOf({ staleness_threshold: 1, partial_rollout: true }));
    expect(first).toBe(32);
  });

  test("learns from stale rollouts", async () => {
    const { run, log } = asyncRun(
      { staleness_threshold: 1 },
      { rollout: slow(5) },
      {
        trainer: { total_batches: 30, test_freq: 10 },
        algorithm: { rollout_correction: { bypass_mode: true } },
      },
    );
    await train(run);
    expect(log.of("val").at(-1)?.metrics["val/copy/pass@1"]).toBe(1);
  });

  test("counts the groups that the filters drop", async () => {
    const more = {
      trainer: { total_batches: 3, test_freq: 0 },
      rejection_sample: { min_trajs_per_group: 9 },
    };
    const { run, log } = asyncRun({}, {}, more);
    await expect(train(run)).rejects.toThrow("the last 3 steps trained no group");
    expect(log.of("train").map(({ metrics }) => metrics["async/buffer_filtered"])).toEqual([4, 8, 12]);
  });

  test("counts a failing rollout, and times out hanging ones", async () => {
    const inner = singleTurn("copier", exactMatch);
    let calls = 0;
    const bad: Rollout = (task, policy) => {
      calls++;
      if (calls % 7 === 0) throw new Error("bad luck");
      return calls % 11 === 0 ? new Promise(() => {}) : inner(task, policy);
    };
    const { run, log } = asyncRun(
      { staleness_threshold: 1 },
      { rollout: bad },
      {
        workflow: { raise_on_error: false, retry_limit: 1, workflow_args: { timeout: 0.05 } },
        trainer: { total_batches: 5 },
      },
    );
    const outcome = await train(run);
    expect(outcome.isComplete).toBe(true);
    const shares = (reason: string) =>
      log.of("train").map(({ metrics }) => metrics[`batch/termination_reason/${reason}`]!);
    expect(Math.max(...shares("error"))).toBeGreaterThan(0);
    expect(Math.max(...shares("timeout"))).toBeGreaterThan(0);
  });

  test("a failing rollout ends the run with raise_on_error", async () => {
    const { run } = asyncRun(
      { staleness_threshold: 1 },
      {
        rollout: () => {
          throw new Error("bad luck");
        },
      },
    );
    await expect(train(run)).rejects.toThrow("bad luck");
  });

  test("keeps waiting episodes on disk, and removes them in the end", async () => {
    const dir = join(mkdtempSync(join(tmpdir(), "grpu-async-")), "waiting");
    onTestFinished(() => rmSync(join(dir, ".."), { recursive: true }));
    const [memory, disk] = [asyncRun({}), asyncRun({ episode_offload_dir: dir })];
    await train(memory.run);
    await train(disk.run);
    expect(disk.backend.text()).toBe(memory.backend.text());
    expect(existsSync(dir) && readdirSync(dir)).toEqual([]);
    const store = new EpisodeStore<object>(dir);
    const odd = [{ reward: Number.NaN, far: [Number.NEGATIVE_INFINITY, -0.1] }];
    await store.put(3, odd);
    expect(await store.take(3)).toEqual(odd);
    await expect(store.take(3)).rejects.toThrow();
  });

  test("a folder of waiting episodes belongs to one run, which removes files of a killed one", async () => {
    const dir = mkdtempSync(join(tmpdir(), "grpu-async-"));
    onTestFinished(() => rmSync(dir, { recursive: true }));
    writeFileSync(join(dir, "task_8.json"), "[");
    writeFileSync(join(dir, "mine.txt"), "");
    const [first, second] = [new EpisodeStore<string>(dir), new EpisodeStore<string>(dir)];
    await first.put(1, ["first"]);
    await expect(second.put(1, ["second"])).rejects.toThrow(/in use by PID .*episode_offload_dir=DIR/);
    expect(await first.take(1)).toEqual(["first"]);
    await second.clear();
    await first.clear();
    expect(readdirSync(dir)).toEqual(["mine.txt"]);
    await second.put(1, ["second"]);
    expect(await second.take(1)).toEqual(["second"]);
    await second.clear();
    const held = new EpisodeStore<string>(dir);
    await held.put(0, []);
    const refused = asyncRun({ episode_offload_dir: dir });
    await expect(train(refused.run)).rejects.toThrow(/in use by PID/);
    await held.clear();
  });

  test("a stopped run resumes: no task is lost, none is trained on twice", async () => {
    const seen: number[][] = [];
    const tasks = { train: letterTasks(16), val: [] };
    const saves = new Map<string, { state: unknown; weights: string }>();
    const runOnce = async (stopAfter: number | undefined) => {
      const stopper = new AbortController();
      const it = asyncRun(
        { staleness_threshold: 1 },
        { tasks, rollout: slow(3), signal: stopper.signal },
        {
          trainer: { total_batches: 4, test_freq: 0, save_freq: 0 },
        },
      );
      const last = [...saves.values()].at(-1);
      const outcome = await train({
        ...it.run,
        loggers: [
          {
            log({ episodes = [], step }) {
              seen.push([...new Set(episodes.map(({ task }) => Number(task.id.slice(5))))]);
              if (step === stopAfter) stopper.abort(new Error("stop"));
            },
          },
        ],
        checkpoints: {
          find: async () => last && { dir: "", state: structuredClone(last.state) as never },
          save: async (name, { state }) => void saves.set(name, { state, weights: "" }),
        },
        backend: Object.assign(it.backend, { load: async () => {} }) as Backend,
      });
      return outcome;
    };
    expect((await runOnce(2)).isComplete).toBe(false);
    expect(saves.get("global_step_2")?.state).toMatchObject({ generation: { pending: expect.anything() } });
    expect((await runOnce(undefined)).state.step).toBe(4);
    // One epoch of 16 rows: each is trained on once.
    expect(seen.flat().sort((a, b) => a - b)).toEqual(tasks.train.map((_, i) => i));
  });

  test("refuses a backend without publishWeights, unless nothing overlaps", async () => {
    const without = (it: ReturnType<typeof letterRun>) =>
      train({ ...it.run, backend: Object.assign(it.backend, { publishWeights: undefined }) });
    await expect(without(asyncRun({ staleness_threshold: 1 }))).rejects.toThrow("publishWeights");
    expect((await without(asyncRun({}))).isComplete).toBe(true);
  });
});

test("a window never holds more than its quota, over any order of events", () => {
  for (let seed = 0; seed < 200; seed++) {
    const next = uniform(seed);
    const [batchSize, trigger, threshold] = [1 + Math.floor(next() * 5), 1 + Math.floor(next() * 4), next() * 3];
    const window = new SyncWindow({
      batchSize,
      trigger_parameter_sync_step: trigger,
      staleness_threshold: threshold,
    });
    const waiting: number[] = [];
    for (let event = 0; event < 300; event++) {
      if (window.isOpen && next() < 0.6) {
        window.dispatch();
        waiting.push(window.version);
      } else if (window.isSyncDue) window.sync();
      else if (waiting.length >= batchSize) {
        for (const version of waiting.splice(0, batchSize))
          expect(window.version - version).toBeLessThanOrEqual(Math.ceil(threshold));
        window.consume(batchSize);
      } else expect(window.isOpen, "a step's tasks can always be begun").toBe(true);
      expect(window.used).toBeLessThanOrEqual(window.quota);
      expect(window.inFlight).toBe(waiting.length);
    }
  }
});
