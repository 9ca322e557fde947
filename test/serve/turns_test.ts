import { expect, test } from "vitest";
import { type Lane, Turns } from "../../src/serve/turns.ts";

/** A lane whose turns take `ms` each; notes its name at each. */
function lane(name: string, of: { turns: number; ms: number; log: string[] }): Lane {
  let left = of.turns;
  return {
    name,
    hasWork: () => left > 0,
    async turn() {
      left--;
      of.log.push(name);
      await new Promise((resolve) => setTimeout(resolve, of.ms));
    },
  };
}

test("lanes share the time: short turns come more often than long ones, nobody waits for long", async () => {
  const turns = new Turns();
  const log: string[] = [];
  for (const it of [
    lane("long", { turns: 10, ms: 20, log }),
    lane("short", { turns: 40, ms: 5, log }),
    lane("other", { turns: 40, ms: 5, log }),
  ])
    turns.wake(it);
  await turns.idle();
  expect(log).toHaveLength(90);
  const half = log.slice(0, 45);
  const count = (name: string) => half.filter((it) => it === name).length;
  expect(count("long")).toBeGreaterThanOrEqual(3);
  expect(count("long")).toBeLessThanOrEqual(8);
  expect(Math.abs(count("short") - count("other"))).toBeLessThanOrEqual(3);
});

test("a lane that was away does not take the device for what it missed", async () => {
  const turns = new Turns();
  const log: string[] = [];
  turns.wake(lane("busy", { turns: 20, ms: 3, log }));
  await new Promise((resolve) => setTimeout(resolve, 30));
  const before = log.length;
  turns.wake(lane("late", { turns: 10, ms: 3, log }));
  await turns.idle();
  const [late, busy] = ["late", "busy"].map(
    (name) => log.slice(before, before + 10).filter((it) => it === name).length,
  );
  expect(late).toBeGreaterThanOrEqual(3);
  expect(busy).toBeGreaterThanOrEqual(3);
});

test("stop lets the turn in hand end and takes no other", async () => {
  const turns = new Turns();
  const log: string[] = [];
  turns.wake(lane("a", { turns: 5, ms: 10, log }));
  await new Promise((resolve) => setTimeout(resolve, 5));
  await turns.stop();
  expect(log).toEqual(["a"]);
});
