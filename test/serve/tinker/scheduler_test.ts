import { expect, test } from "vitest";
import { Scheduler, type WorkQueue } from "../../../src/serve/tinker/scheduler.ts";

/** A clock that only turns move, and queues whose turns take `ms` each and log their owner. */
function timed() {
  let time = 0;
  const log: string[] = [];
  const queue = (name: string, of: { turns: number; ms: number }): WorkQueue => {
    let left = of.turns;
    return {
      name,
      owners: () => (left > 0 ? [name] : []),
      async turn(owner) {
        left--;
        log.push(owner);
        time += of.ms;
        return undefined;
      },
    };
  };
  return { scheduler: new Scheduler(() => time), log, queue };
}

const countIn = (log: readonly string[], name: string) => log.filter((it) => it === name).length;

test("queues share the time: short turns run more often than long ones, and no queue starves", async () => {
  const { scheduler, log, queue } = timed();
  for (const it of [
    queue("long", { turns: 10, ms: 20 }),
    queue("short", { turns: 40, ms: 5 }),
    queue("other", { turns: 40, ms: 5 }),
  ])
    scheduler.wake(it, it.name);
  await scheduler.idle();
  expect(log).toHaveLength(90);
  const half = log.slice(0, 45);
  expect(["long", "short", "other"].map((name) => countIn(half, name))).toEqual([5, 20, 20]);
  expect(scheduler.busyMs).toBe(600);
});

test("a session that was idle gets no credit for the time it did not use", async () => {
  const { scheduler, log, queue } = timed();
  const late = queue("late", { turns: 10, ms: 3 });
  const busy = queue("busy", { turns: 20, ms: 3 });
  const { turn } = busy;
  busy.turn = async () => {
    await turn("busy");
    if (log.length === 10) scheduler.wake(late, "late");
    return undefined;
  };
  scheduler.wake(busy, "busy");
  await scheduler.idle();
  const after = log.slice(10, 20);
  expect(countIn(after, "late")).toBe(5);
  expect(countIn(after, "busy")).toBe(5);
});

test("a session with many queues gets no more than one with a single queue", async () => {
  const { scheduler, log, queue } = timed();
  const own = (of: WorkQueue): WorkQueue => {
    const { owners, turn } = of;
    return { ...of, owners: () => ([...owners()].length > 0 ? ["greedy"] : []), turn: () => turn("greedy") };
  };
  for (let i = 0; i < 20; i++) scheduler.wake(own(queue(`queue ${i}`, { turns: 10, ms: 5 })), "greedy");
  scheduler.wake(queue("modest", { turns: 10, ms: 5 }), "modest");
  await scheduler.idle();
  expect(countIn(log.slice(0, 20), "modest")).toBe(10);
});

test("the time of a shared turn counts by share", async () => {
  const { scheduler, log, queue } = timed();
  const shared = queue("a", { turns: 3, ms: 100 });
  const { turn } = shared;
  shared.turn = async (owner) => {
    await turn(owner);
    return new Map([
      ["a", 10],
      ["b", 30],
    ]);
  };
  scheduler.wake(shared, "a");
  scheduler.wake(queue("b", { turns: 30, ms: 10 }), "b");
  await scheduler.idle();
  // Each shared turn costs a 25 ms and b 75 ms, although a owns all of them.
  expect(log.slice(0, 4)).toEqual(["a", "a", "a", "b"]);
});

test("urgent work runs right after the current turn, also after stop()", async () => {
  const { scheduler, log, queue } = timed();
  const it = queue("a", { turns: 5, ms: 10 });
  const { turn } = it;
  it.turn = async () => {
    if (log.length === 0) void scheduler.first(async () => void log.push("first"));
    return turn("a");
  };
  scheduler.wake(it, "a");
  await scheduler.idle();
  expect(log).toEqual(["a", "first", "a", "a", "a", "a"]);
  await scheduler.stop();
  scheduler.wake(queue("b", { turns: 1, ms: 1 }), "b");
  expect(await scheduler.first(async () => "saved")).toBe("saved");
  expect(log).not.toContain("b");
});

test("stop() waits for the current turn and starts no other", async () => {
  const { scheduler, log, queue } = timed();
  const it = queue("a", { turns: 5, ms: 10 });
  const { turn } = it;
  const stopped: Promise<void>[] = [];
  it.turn = async () => {
    await turn("a");
    stopped.push(scheduler.stop());
    return undefined;
  };
  scheduler.wake(it, "a");
  await scheduler.idle();
  await Promise.all(stopped);
  expect(log).toEqual(["a"]);
});

test("a deferred queue runs when the others have no work, and first again when it is not deferred", async () => {
  const { scheduler, log, queue } = timed();
  let isDeferred = true;
  const large: WorkQueue = { ...queue("large", { turns: 2, ms: 1 }), isDeferred: () => isDeferred };
  const small = queue("small", { turns: 4, ms: 5 });
  const { turn } = small;
  small.turn = async (owner) => {
    if (log.length === 2) isDeferred = false;
    return turn(owner);
  };
  for (const it of [large, small]) scheduler.wake(it, it.name);
  await scheduler.idle();
  expect(log).toEqual(["small", "small", "small", "large", "large", "small"]);
  isDeferred = true;
  const alone: WorkQueue = { ...queue("alone", { turns: 1, ms: 1 }), isDeferred: () => isDeferred };
  scheduler.wake(alone, "alone");
  await scheduler.idle();
  expect(log.at(-1)).toBe("alone");
});
