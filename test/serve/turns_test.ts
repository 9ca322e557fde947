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
      owners: () => (left > 0 ? [name] : []),
      async turn(owner) {
        left--;
        log.push(owner);
        time += of.ms;
        return undefined;
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
    turns.wake(it, it.name);
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
    await turn("busy");
    if (log.length === 10) turns.wake(late, "late");
    return undefined;
  };
  turns.wake(busy, "busy");
  await turns.idle();
  const after = log.slice(10, 20);
  expect(countIn(after, "late")).toBe(5);
  expect(countIn(after, "busy")).toBe(5);
});

test("a session with many lanes gets no more than one with a single lane", async () => {
  const { turns, log, lane } = timed();
  const own = (of: Lane): Lane => {
    const { owners, turn } = of;
    return { ...of, owners: () => ([...owners()].length > 0 ? ["greedy"] : []), turn: () => turn("greedy") };
  };
  for (let i = 0; i < 20; i++) turns.wake(own(lane(`lane ${i}`, { turns: 10, ms: 5 })), "greedy");
  turns.wake(lane("modest", { turns: 10, ms: 5 }), "modest");
  await turns.idle();
  expect(countIn(log.slice(0, 20), "modest")).toBe(10);
});

test("who shared a turn pays its share of it", async () => {
  const { turns, log, lane } = timed();
  const shared = lane("a", { turns: 3, ms: 100 });
  const { turn } = shared;
  shared.turn = async (owner) => {
    await turn(owner);
    return new Map([
      ["a", 10],
      ["b", 30],
    ]);
  };
  turns.wake(shared, "a");
  turns.wake(lane("b", { turns: 30, ms: 10 }), "b");
  await turns.idle();
  // Each of the shared turns costs a 25 ms and b 75 ms, though all were a's.
  expect(log.slice(0, 4)).toEqual(["a", "a", "a", "b"]);
});

test("work that comes first runs after the turn in hand, and when no turns are taken any more", async () => {
  const { turns, log, lane } = timed();
  const it = lane("a", { turns: 5, ms: 10 });
  const { turn } = it;
  it.turn = async () => {
    if (log.length === 0) void turns.first(async () => void log.push("first"));
    return turn("a");
  };
  turns.wake(it, "a");
  await turns.idle();
  expect(log).toEqual(["a", "first", "a", "a", "a", "a"]);
  await turns.stop();
  turns.wake(lane("b", { turns: 1, ms: 1 }), "b");
  expect(await turns.first(async () => "saved")).toBe("saved");
  expect(log).not.toContain("b");
});

test("stop lets the turn in hand end and takes no other", async () => {
  const { turns, log, lane } = timed();
  const it = lane("a", { turns: 5, ms: 10 });
  const { turn } = it;
  const stopped: Promise<void>[] = [];
  it.turn = async () => {
    await turn("a");
    stopped.push(turns.stop());
    return undefined;
  };
  turns.wake(it, "a");
  await turns.idle();
  await Promise.all(stopped);
  expect(log).toEqual(["a"]);
});
