import { expect, test } from "vitest";
import { type Lane, Turns } from "../../src/serve/turns.ts";

/** A clock that only turns move, and lanes whose turns take `ms` each and note their name. */
function timed() {
  let time = 0;
  const log: string[] = [];
  const lane = (name: string, of: { turns: number; ms: number }): Lane => {
    let left = of.turns;
    return {
      name,
      hasWork: () => left > 0,
      async turn() {
        left--;
        log.push(name);
        time += of.ms;
      },
    };
  };
  return { turns: new Turns(() => time), log, lane };
}

const countIn = (log: readonly string[], name: string) => log.filter((it) => it === name).length;

test("lanes share the time: short turns come more often than long ones, nobody waits for long", async () => {
  const { turns, log, lane } = timed();
  for (const it of [
    lane("long", { turns: 10, ms: 20 }),
    lane("short", { turns: 40, ms: 5 }),
    lane("other", { turns: 40, ms: 5 }),
  ])
    turns.wake(it);
  await turns.idle();
  expect(log).toHaveLength(90);
  const half = log.slice(0, 45);
  expect(["long", "short", "other"].map((name) => countIn(half, name))).toEqual([5, 20, 20]);
  expect(turns.busyMs).toBe(600);
});

test("a lane that was away does not take the device for what it missed", async () => {
  const { turns, log, lane } = timed();
  const late = lane("late", { turns: 10, ms: 3 });
  const busy = lane("busy", { turns: 20, ms: 3 });
  const { turn } = busy;
  busy.turn = async () => {
    await turn();
    if (log.length === 10) turns.wake(late);
  };
  turns.wake(busy);
  await turns.idle();
  const after = log.slice(10, 20);
  expect(countIn(after, "late")).toBe(5);
  expect(countIn(after, "busy")).toBe(5);
});

test("stop lets the turn in hand end and takes no other", async () => {
  const { turns, log, lane } = timed();
  const it = lane("a", { turns: 5, ms: 10 });
  const { turn } = it;
  const stopped: Promise<void>[] = [];
  it.turn = async () => {
    await turn();
    stopped.push(turns.stop());
  };
  turns.wake(it);
  await turns.idle();
  await Promise.all(stopped);
  expect(log).toEqual(["a"]);
});
