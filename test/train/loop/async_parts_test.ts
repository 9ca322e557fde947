import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import type { Episode } from "../../../src/train/data/types.ts";
import { windowMetrics } from "../../../src/train/loop/rollout/async_metrics.ts";
import { GroupBuffer } from "../../../src/train/loop/rollout/group_buffer.ts";
import { JobPool } from "../../../src/train/loop/rollout/job_pool.ts";
import { SyncWindow } from "../../../src/train/loop/rollout/sync_window.ts";
import { TaskNumbers } from "../../../src/train/loop/rollout/task_numbers.ts";

/** Jobs that the test ends. */
function manualJobs(pool: JobPool) {
  const ends = new Map<string, { resolve: () => void; reject: (error: unknown) => void }>();
  const add = (name: string) =>
    pool.add(() => new Promise<void>((resolve, reject) => void ends.set(name, { resolve, reject })));
  return { add, ends, started: () => [...ends.keys()] };
}

/** Runs everything that waits only for promises. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

describe("JobPool", () => {
  test("starts jobs in order, at most `limit` at once", async () => {
    const pool = new JobPool(2);
    const { add, ends, started } = manualJobs(pool);
    for (const name of ["a", "b", "c", "d"]) add(name);
    expect(started()).toEqual(["a", "b"]);
    ends.get("b")!.resolve();
    await settle();
    expect(started()).toEqual(["a", "b", "c"]);
    const finished = pool.finish();
    for (const name of ["a", "c"]) ends.get(name)!.resolve();
    await settle();
    ends.get("d")!.resolve();
    await finished;
  });

  test("starts no job after a failure, and rejects with the first one when none runs", async () => {
    const pool = new JobPool(2);
    const { add, ends, started } = manualJobs(pool);
    for (const name of ["a", "b", "c"]) add(name);
    let hasEnded = false;
    const finished = pool.finish().finally(() => {
      hasEnded = true;
    });
    ends.get("a")!.reject(new Error("first"));
    await settle();
    expect(hasEnded).toBe(false);
    ends.get("b")!.reject(new Error("second"));
    await expect(finished).rejects.toThrow("first");
    add("d");
    expect(started()).toEqual(["a", "b"]);
  });

  test("until() waits for its condition, or until no job runs", async () => {
    const pool = new JobPool(3);
    const { add, ends } = manualJobs(pool);
    for (const name of ["a", "b", "c"]) add(name);
    let count = 0;
    const two = pool.until(() => ++count > 2);
    ends.get("a")!.resolve();
    await settle();
    expect(count).toBe(2);
    ends.get("b")!.resolve();
    await two;
    const never = pool.until(() => false);
    ends.get("c")!.resolve();
    await never;
  });

  test("until() throws a job's error or the signal's reason, unless its condition holds", async () => {
    const pool = new JobPool(1);
    pool.add(() => Promise.reject(new Error("broken")));
    await settle();
    await pool.until(() => true, AbortSignal.abort(new Error("stopped")));
    await expect(pool.until(() => false)).rejects.toThrow("broken");
    await expect(pool.until(() => false, AbortSignal.abort(new Error("stopped")))).rejects.toThrow("stopped");
  });

  test("stop() drops waiting jobs, and waits for the running ones without their errors", async () => {
    const pool = new JobPool(1);
    const { add, ends, started } = manualJobs(pool);
    for (const name of ["a", "b"]) add(name);
    const stopped = pool.stop();
    ends.get("a")!.reject(new Error("late"));
    await stopped;
    expect(started()).toEqual(["a"]);
  });
});

describe("TaskNumbers", () => {
  test("hands out the tasks of a checkpoint first, then new ones up to the last", () => {
    const numbers = new TaskNumbers(8);
    numbers.resume(6, [2, 5]);
    expect(numbers.take()).toBe(2);
    expect(numbers.state([2])).toEqual({ next: 6, pending: [2, 5] });
    expect([numbers.take(), numbers.take(), numbers.take(), numbers.take()]).toEqual([5, 6, 7, undefined]);
    expect(numbers.state([7, 5])).toEqual({ next: 8, pending: [5, 7] });
  });
});

describe("SyncWindow", () => {
  test.each([
    [0, 3],
    [0.5, 4],
    [0.9, 5],
    [1, 6],
  ])("with a threshold of %d holds %i tasks of batches of 3: no more than whole ones", (staleness_threshold, quota) => {
    expect(new SyncWindow({ batchSize: 3, staleness_threshold, trigger_parameter_sync_step: 1 }).quota).toBe(quota);
  });

  test("reports what it holds, and rLLM's difference of the two", () => {
    const window = new SyncWindow({ batchSize: 2, staleness_threshold: 1, trigger_parameter_sync_step: 2 });
    window.sync();
    for (let task = 0; task < 5; task++) window.dispatch();
    window.consume(2);
    expect(windowMetrics(window)).toEqual({
      "async/dispatched_since_sync": 2,
      "async/quota_used": 5,
      "async/in_flight_groups": 3,
      "async/steps_since_sync": 1,
      "async/max_rollout_quota": 8,
      "async/total_syncs": 0,
    });
  });

  test("is closed and due before its first synchronisation, which is number 0", () => {
    const window = new SyncWindow({ batchSize: 2, staleness_threshold: 0, trigger_parameter_sync_step: 2 });
    expect(window).toMatchObject({ isOpen: false, isSyncDue: true, quota: 4 });
    window.sync();
    expect(window).toMatchObject({ isOpen: true, isSyncDue: false, version: 0 });
    for (let i = 0; i < 4; i++) window.dispatch();
    expect(window.isOpen).toBe(false);
    window.consume(2);
    expect(window).toMatchObject({ isOpen: false, isSyncDue: false, inFlight: 2 });
    window.consume(2);
    expect(window.isSyncDue).toBe(true);
    window.sync();
    expect(window).toMatchObject({ isOpen: true, isSyncDue: false, version: 1, used: 0 });
  });
});

const episode = (id: string) => ({ id, task_index: 99 }) as unknown as Episode;

describe("GroupBuffer", () => {
  test("counts the groups that it hands out, not those that were asked for", async () => {
    const buffer = new GroupBuffer(null);
    const group = buffer.start(0, { version: 0, attempts: 1 });
    await buffer.add(group, 0, { task_index: 0 } as Episode);
    expect((await buffer.take(4)).groups).toHaveLength(1);
    expect(buffer.consumed).toBe(1);
  });

  const dir = () => {
    const made = mkdtempSync(join(tmpdir(), "grpu-buffer-"));
    onTestFinished(() => rmSync(made, { recursive: true }));
    return made;
  };

  test.each([
    ["in memory", () => null],
    ["on disk", dir],
  ])("hands out the groups that finished first, in the order of their numbers: %s", async (_, place) => {
    const folder = place();
    const buffer = new GroupBuffer(folder);
    const groups = [0, 1, 2].map((number) => buffer.start(number, { version: 3, attempts: 2 }));
    for (const number of [2, 0]) {
      await buffer.add(groups[number]!, 1, episode(`${number}:1`));
      expect(buffer.numbers).toEqual([0, 1, 2]);
      await buffer.add(groups[number]!, 0, episode(`${number}:0`));
    }
    expect(buffer).toMatchObject({ finished: 2, unfinished: 1, consumed: 0 });
    const { groups: taken, episodes } = await buffer.take(2);
    expect(taken.map(({ number, version }) => [number, version])).toEqual([
      [0, 3],
      [2, 3],
    ]);
    expect(episodes.map(({ id, task_index }) => [id, task_index])).toEqual([
      ["0:0", 0],
      ["0:1", 0],
      ["2:0", 1],
      ["2:1", 1],
    ]);
    expect(buffer).toMatchObject({ finished: 0, unfinished: 1, consumed: 2, numbers: [1] });
    await buffer.clear();
    if (folder !== null) expect(readdirSync(folder)).toEqual([]);
  });
});
