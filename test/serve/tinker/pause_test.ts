/** Turns that run while a batch of samples pauses: training goes on without waiting for the batch to end. */
import { describe, expect, test } from "vitest";
import { Scheduler, type WorkQueue } from "../../../src/serve/tinker/scheduler.ts";

/** A batch of 10 ms a chunk, for the sessions that it runs, and other queues; a clock that only they move. */
function setUp({ chunks, running = ["s"] }: { chunks: number; running?: readonly string[] }) {
  let now = 0;
  const scheduler = new Scheduler(() => now);
  const log: string[] = [];
  const shares = new Map(running.map((owner) => [owner, 1]));
  let waits = true;
  const batch: WorkQueue = {
    name: "batch",
    owners: () => (waits ? running.slice(0, 1) : []),
    async turn() {
      waits = false;
      for (let chunk = 0; chunk < chunks; chunk++) {
        now += 10;
        log.push("chunk");
        const goesOn = await scheduler.pause(shares);
        if (goesOn) log.push("goes on");
      }
      log.push("end");
      return shares;
    },
  };
  function other(name: string, of: { turns: number; ms: number; fits?: boolean; also?: () => void }): WorkQueue {
    let left = of.turns;
    return {
      name,
      owners: () => (left > 0 ? [name] : []),
      ...(of.fits !== undefined && { fitsBetween: () => of.fits! }),
      async turn() {
        left--;
        now += of.ms;
        log.push(name);
        of.also?.();
        return undefined;
      },
    };
  }
  const start = async (...queues: WorkQueue[]) => {
    scheduler.wake(batch, running[0]!);
    for (const owner of running.slice(1)) scheduler.wake(batch, owner);
    for (const queue of queues) scheduler.wake(queue, queue.name);
    await scheduler.idle();
  };
  const more = () => {
    waits = true;
    scheduler.wake(batch, running[0]!);
  };
  return { scheduler, log, batch, other, start, time: () => now, more };
}

describe("a turn that pauses", () => {
  test("runs turns that fit, of sessions that have used no more than its own", async () => {
    const { log, other, start, scheduler, time } = setUp({ chunks: 4 });
    await start(other("t", { turns: 3, ms: 15, fits: true }));
    // Each time s has used 10, 20 and 30 ms, and t 0, 15 and 30.
    expect(log).toEqual(["chunk", "t", "chunk", "t", "chunk", "t", "chunk", "end"]);
    expect(scheduler.busyMs).toBe(time());
    expect(scheduler.current).toBeUndefined();
  });

  test("leaves others for its end", async () => {
    for (const fits of [undefined, false]) {
      const { log, other, start } = setUp({ chunks: 2 });
      await start(other("t", { turns: 1, ms: 15, ...(fits !== undefined && { fits }) }));
      expect(log).toEqual(["chunk", "chunk", "end", "t"]);
    }
  });

  test("compares with the session that has used the least of those that it works for", async () => {
    // Each of the two gets 5 ms a chunk.
    const { log, other, start } = setUp({ chunks: 6, running: ["a", "b"] });
    await start(other("t", { turns: 2, ms: 15, fits: true }));
    expect(log).toEqual(["chunk", "t", "chunk", "chunk", "t", "chunk", "chunk", "chunk", "end"]);
  });

  test("takes on work of its own where a turn that would fit has used more than what runs", async () => {
    const it = setUp({ chunks: 3 });
    const t = it.other("t", { turns: 2, ms: 100, fits: true, also: it.more });
    await it.start(t);
    expect(it.log.slice(0, 7)).toEqual(["chunk", "t", "goes on", "chunk", "goes on", "chunk", "goes on"]);
  });

  test("runs nothing between its parts when the scheduler stops, or urgent work waits", async () => {
    for (const ends of [(it: Scheduler) => void it.stop(), (it: Scheduler) => void it.first(async () => {})]) {
      const { log, batch, other, start, scheduler } = setUp({ chunks: 2 });
      const { turn } = batch;
      batch.turn = async (owner) => {
        ends(scheduler);
        return turn(owner);
      };
      await start(other("t", { turns: 1, ms: 1, fits: true }));
      expect(log.slice(0, 3)).toEqual(["chunk", "chunk", "end"]);
    }
  });
});
