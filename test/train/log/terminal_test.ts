/** What others wrote does not steer the terminal; what the program draws itself does. */
import { expect, onTestFinished, test, vi } from "vitest";
import { processIo } from "../../../src/cli/process/io.ts";
import { ConsoleLogger } from "../../../src/train/log/loggers/console.ts";
import { forTerminal } from "../../../src/train/log/terminal.ts";

test.each<[string, string, string]>([
  ["a window's title", "\x1b]0;owned\x07", "\\x1b]0;owned\\x07"],
  ["a cleared screen", "a\x1b[2J\x1b[Hb", "a\\x1b[2J\\x1b[Hb"],
  ["text that hides", "\x1b[8msecret\x1b[0m", "\\x1b[8msecret\x1b[0m"],
  ["a line that is written over", "reward 0\rreward 1", "reward 0\\rreward 1"],
  ["a redraw that is not the program's", "key \r\x1b[2Kall good", "key \\r\\x1b[2Kall good"],
  ["a C1 introducer", "\x9b31m", "\\x9b31m"],
  ["backspaces", "rm\b\bls", "rm\\x08\\x08ls"],
  ["reordered text", "a\u202eb\u2066", "a\\u202eb\\u2066"],
  ["a sequence cut off", "\x1b[3", "\\x1b[3"],
  ["lines, tabs and other scripts", "a\tb\nc\r\n日本語 🙂 é", "a\tb\nc\r\n日本語 🙂 é"],
  ["the program's colours", "\x1b[1m1.000\x1b[0m", "\x1b[1m1.000\x1b[0m"],
])("%s", (_, text, expected) => expect(forTerminal(text)).toBe(expected));

test("the console's own lines are as they were", () => {
  const written: string[] = [];
  const screen = { err: (text: string) => written.push(text), isTerminal: true, color: true, columns: 120 };
  const logger = new ConsoleLogger(screen);
  const metrics = { "reward/a/mean": 1, "perf/throughput": 10, "actor/entropy": 2 };
  for (let step = 1; step <= 3; step++) logger.log({ phase: "train", step, totalSteps: 3, metrics });
  logger.log({ phase: "val", step: 3, totalSteps: 3, metrics: { "val/math/pass@1": 0.5 } });
  expect(written.length).toBeGreaterThan(4);
  expect(written.map(forTerminal)).toEqual(written);
});

test("the process's streams are where it happens: always for people, for programs only on a terminal", () => {
  const before = {
    int: process.listeners("SIGINT"),
    term: process.listeners("SIGTERM"),
    exit: process.listeners("exit"),
  };
  const isTerminal = process.stdout.isTTY;
  const err = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  const out = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  onTestFinished(() => {
    vi.restoreAllMocks();
    process.stdout.isTTY = isTerminal;
    for (const [name, kept] of [
      ["SIGINT", before.int],
      ["SIGTERM", before.term],
      ["exit", before.exit],
    ] as const)
      for (const listener of process.listeners(name as "exit"))
        if (!(kept as unknown[]).includes(listener)) process.off(name, listener as () => void);
  });
  const io = processIo();
  io.err("key \x1b[2J");
  for (const tty of [true, false]) {
    process.stdout.isTTY = tty;
    io.out("sample \x1b[2J");
  }
  expect(err.mock.calls[0]![0]).toBe("key \\x1b[2J");
  expect(out.mock.calls.map(([text]) => text)).toEqual(["sample \\x1b[2J", "sample \x1b[2J"]);
});
