/** Progress on a terminal and elsewhere, with a clock of the test's. */
import { expect, test } from "vitest";
import { Progress } from "../../../src/train/log/progress.ts";

function progress(isTerminal: boolean, columns = 100) {
  const clock = { ms: 5000 };
  const lines: string[] = [];
  const screen = { err: (text: string) => void lines.push(text), isTerminal, color: false, columns };
  const it = new Progress(screen, "eval", { unit: "attempts", now: () => clock.ms });
  const at = (ms: number, done: number) => {
    clock.ms = 5000 + ms;
    it.update(done, 40);
  };
  return { it, at, said: () => lines.splice(0) };
}

test("a terminal's line is redrawn every tenth of a second, and cleared once", () => {
  const { it, at, said } = progress(true);
  it.finish();
  at(99, 1);
  expect(said()).toEqual([]);
  at(100, 0);
  at(199, 1);
  expect(said()).toEqual(["\r\x1b[2Keval  0/40 attempts  0/s"]);
  at(10_000, 20);
  it.finish();
  it.finish();
  expect(said()).toEqual(["\r\x1b[2Keval  20/40 attempts  2/s  eta 10 s", "\r\x1b[2K"]);
});

test("elsewhere, a line comes every ten seconds, and none is cleared", () => {
  const { it, at, said } = progress(false, 10);
  at(9999, 1);
  expect(said()).toEqual([]);
  at(10_000, 5);
  at(19_999, 6);
  at(20_000, 40);
  it.finish();
  expect(said()).toEqual(["eval  5/40 attempts  0.5/s  eta 1:10\n", "eval  40/40 attempts  2/s  eta 0 s\n"]);
});

test("how long it takes is not said of the first to end", () => {
  const { at, said } = progress(false);
  at(10_000, 1);
  at(20_000, 2);
  expect(said()).toEqual(["eval  1/40 attempts  0.1/s\n", "eval  2/40 attempts  0.1/s  eta 6:20\n"]);
});

test("a rate of bytes has its unit", () => {
  const lines: string[] = [];
  const clock = { ms: 0 };
  const screen = { err: (text: string) => void lines.push(text), isTerminal: false, color: false, columns: 80 };
  const it = new Progress(screen, "loading big", { unit: "MiB", now: () => clock.ms });
  clock.ms = 10_000;
  it.update(450, 900);
  expect(lines).toEqual(["loading big  450/900 MiB  45 MiB/s  eta 10 s\n"]);
});

test("a terminal's line is cut one character before its edge", () => {
  const { at, said } = progress(true, 10);
  at(1000, 1);
  expect(said()).toEqual(["\r\x1b[2Keval  1/4"]);
});
