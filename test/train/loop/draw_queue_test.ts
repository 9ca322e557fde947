/** Which model calls of concurrent rollouts are sampled together, in which order, and how failures and losses are counted. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Backend, SampleRequest } from "../../../src/engine/contract/backend.ts";
import { DeviceLostError, RemoteError } from "../../../src/leaves/errors.ts";
import type { Run } from "../../../src/train/loop/contract.ts";
import { advance, comeBack, countLoss, cursorAt } from "../../../src/train/loop/device_lost.ts";
import { DrawQueue } from "../../../src/train/loop/rollout/draw_queue.ts";
import { START_STATE } from "../../../src/train/loop/state.ts";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

describe("a queue of model calls", () => {
  function opened(weights?: "published", sample?: (names: string[]) => Promise<unknown[]>) {
    const batches: { names: string[]; options: unknown }[] = [];
    const backend = {
      sample: (requests: readonly SampleRequest[], options: unknown) => {
        const names = requests as unknown as string[];
        batches.push({ names: [...names], options });
        return sample ? sample(names) : Promise.resolve(names.map((name) => `${name}!`));
      },
    } as unknown as Backend;
    const { signal } = new AbortController();
    const queue = weights ? new DrawQueue(backend, signal, { weights }) : new DrawQueue(backend, signal);
    const draw = (name: string, rank: number) => queue.draw(name as unknown as SampleRequest, rank) as Promise<unknown>;
    return { queue, draw, batches, signal, drawn: () => batches.map(({ names }) => names) };
  }

  test("samples the calls of all running rollouts together, in the order of their ranks", async () => {
    const { queue, draw, batches, signal } = opened();
    const results = [2, 0, 1].map((rank) => queue.during(() => draw(`r${rank}`, rank)));
    await vi.runAllTimersAsync();
    expect(await Promise.all(results)).toEqual(["r2!", "r0!", "r1!"]);
    expect(batches).toEqual([{ names: ["r0", "r1", "r2"], options: { signal, weights: "current" } }]);
    expect(queue.failure).toBeUndefined();
  });

  test("waits ten milliseconds for a rollout that does not sample", async () => {
    const { queue, draw, drawn } = opened("published");
    void queue.during(() => new Promise(() => {}));
    const only = queue.during(() => draw("a", 0));
    await vi.advanceTimersByTimeAsync(9);
    expect(drawn()).toEqual([]);
    await vi.advanceTimersByTimeAsync(3);
    expect(drawn()).toEqual([["a"]]);
    expect(await only).toBe("a!");
  });

  test("does not wait for one that has ended, or that failed", async () => {
    for (const end of [async () => 1, () => Promise.reject(new Error("broke"))]) {
      const { queue, draw, drawn } = opened();
      const other = queue.during<unknown>(end).catch(() => {});
      void queue.during(() => draw("a", 0));
      await other;
      await vi.advanceTimersByTimeAsync(2);
      expect(drawn()).toEqual([["a"]]);
    }
  });

  test("keeps calls that arrive during a batch for the next one", async () => {
    let release = () => {};
    const { queue, draw, drawn } = opened("published", async (names) => {
      await new Promise<void>((resolve) => (release = resolve));
      return names;
    });
    void queue.during(() => draw("a", 0));
    await vi.advanceTimersByTimeAsync(1);
    void queue.during(() => draw("c", 2));
    void queue.during(() => draw("b", 1));
    await vi.advanceTimersByTimeAsync(100);
    expect(drawn()).toEqual([["a"]]);
    release();
    await vi.advanceTimersByTimeAsync(100);
    expect(drawn()).toEqual([["a"], ["b", "c"]]);
  });

  test("a failure of the backend is that of every call in the batch, and the first one is kept", async () => {
    let count = 0;
    const { queue, draw, batches } = opened("published", () => Promise.reject(new Error(`lost ${++count}`)));
    const results = Promise.allSettled(["a", "b"].map((name, i) => queue.during(() => draw(name, i))));
    await vi.advanceTimersByTimeAsync(20);
    expect((await results).map((each) => (each as PromiseRejectedResult).reason.message)).toEqual(["lost 1", "lost 1"]);
    const later = queue.during(() => draw("c", 0)).catch(({ message }: Error) => message);
    await vi.advanceTimersByTimeAsync(20);
    expect(await later).toBe("lost 2");
    expect(queue.failure).toEqual(new Error("lost 1"));
    expect(batches[0]!.options).toMatchObject({ weights: "published" });
  });
});

describe("a lost device", () => {
  const lost = new DeviceLostError("reset");
  const opened = (backend: object = {}, more: object = {}) => {
    const warned: string[] = [];
    const run = {
      backend: { recover: async () => true, ...backend },
      loggers: [],
      warn: (text: string) => warned.push(text),
      ...more,
    };
    return { run: run as unknown as Run, warned };
  };
  const at = (step: number) => ({ ...START_STATE, step });

  test("weights are kept at most once a second, before the state they belong to counts", async () => {
    vi.spyOn(performance, "now").mockImplementation(() => Date.now());
    let kept = 0;
    const { run } = opened({ keep: async () => void kept++ });
    const cursor = cursorAt(at(0));
    await advance(run, cursor, at(1));
    expect([kept, cursor.kept.step, cursor.state.step]).toEqual([1, 1, 1]);
    vi.setSystemTime(Date.now() + 1000);
    await advance(run, cursor, at(2));
    expect([kept, cursor.kept.step, cursor.state.step]).toEqual([1, 1, 2]);
    vi.setSystemTime(Date.now() + 1);
    await advance(run, cursor, at(3));
    expect([kept, cursor.kept.step, cursor.state.step]).toEqual([2, 3, 3]);
    await advance(opened().run, cursor, at(4));
    expect([kept, cursor.kept.step, cursor.state.step]).toEqual([2, 3, 4]);
    vi.restoreAllMocks();
  });

  test("the third loss without a further step ends the run; a step between them starts the count again", () => {
    const { run, warned } = opened();
    const cursor = cursorAt(at(0));
    const lose = () => countLoss(lost, run, cursor);
    lose();
    lose();
    cursor.state = at(1);
    lose();
    lose();
    expect(warned.map((text) => /after (.*) \(reset\).* loss (\d) of at most 3/.exec(text)?.slice(1))).toEqual([
      ["step 0", "1"],
      ["step 0", "2"],
      ["step 1", "1"],
      ["step 1", "2"],
    ]);
    expect(lose).toThrow(/lost 3 times in a row after step 1 \(reset\)/);
    expect(lose).toThrow(expect.objectContaining({ retryable: false }) as Error);
  });

  test("a run that was thrown back still counts from the farthest step, validation and warm-up included", () => {
    const counts = (...states: object[]) => {
      const { run, warned } = opened();
      const cursor = cursorAt(START_STATE);
      for (const state of states) {
        cursor.state = { ...START_STATE, ...state };
        countLoss(lost, run, cursor);
      }
      return warned.map((text) => Number(/loss (\d)/.exec(text)![1]));
    };
    expect(counts({ step: 5 }, { step: 3 })).toEqual([1, 2]);
    expect(counts({ step: 5 }, { step: 5, validated: 5 }, { step: 6 })).toEqual([1, 1, 2]);
    expect(counts({ warmup: 2 }, { warmup: 3 })).toEqual([1, 1]);
    expect(counts({ warmup: 2, validated: 0 }, { warmup: 2 })).toEqual([1, 2]);
  });

  test("another error, and one that the backend cannot recover from, is the run's own", () => {
    const other = new RemoteError("x", { retryable: true });
    expect(() => countLoss(other, opened().run, cursorAt(START_STATE))).toThrow(other);
    expect(() => countLoss(lost, opened({ recover: undefined }).run, cursorAt(START_STATE))).toThrow(lost);
  });

  test("warm-up steps are named until the first training step", () => {
    const { run, warned } = opened();
    for (const state of [{ warmup: 3 }, { warmup: 3, step: 1 }])
      countLoss(lost, run, cursorAt({ ...START_STATE, ...state }));
    expect(warned.map((text) => /after (.*?) \(/.exec(text)![1])).toEqual(["warm-up step 3", "step 1"]);
  });

  test("the run returns to the kept weights, else to the last checkpoint, else to where it began", async () => {
    const back = async (isKept: boolean, checkpoints?: object) => {
      const rewound: number[] = [];
      const logger = {
        name: "a",
        log: () => {},
        rewind: async (to: number) => void rewound.push(to),
        position: async () => 1,
      };
      const backend = { recover: async () => isKept, load: async () => {}, weightVersion: 0 };
      const { run, warned } = opened(backend, { checkpoints, loggers: [logger], tasks: { train: [] } });
      const cursor = cursorAt({ ...at(1), logged: { a: 10 } });
      cursor.kept = { ...at(2), logged: { a: 20 } };
      cursor.state = { ...at(3), logged: { a: 30 } };
      await comeBack(run, cursor);
      expect(warned).toEqual([`The GPU device is open again. The run continues after step ${cursor.state.step}.`]);
      return [cursor.state.step, cursor.kept.step, cursor.saved.step, rewound];
    };
    const saved = { dir: "d", state: { ...at(5), logged: { a: 50 } } };
    expect(await back(true)).toEqual([2, 2, 1, [20]]);
    expect(await back(false, { lastSaved: saved })).toEqual([5, 5, 5, [50]]);
    expect(await back(false, { find: async () => saved })).toEqual([5, 5, 5, [50]]);
    expect(await back(false, { find: async () => undefined })).toEqual([1, 1, 1, [10]]);
    expect(await back(false)).toEqual([1, 1, 1, [10]]);
  });
});
