/** The executable: the status that it ends with, and what it says when its command never ends. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { EXIT_FAILED } from "../src/cli/process/exit.ts";

const { exitCode, argv } = process;
let told: string[];
let closed: number;
let ended: (code: number) => void;
let finish: (code: number) => void;
let onExit: (code: number) => void;
let program: unknown[];
const interrupt = { aborted: false };

beforeEach(async () => {
  [told, closed, interrupt.aborted] = [[], 0, false];
  const whole = new Promise<number>((resolve) => (finish = resolve));
  vi.doMock("../src/cli/front.ts", () => ({
    runProgram: (...given: unknown[]) => {
      program = given;
      return whole;
    },
  }));
  vi.doMock("../src/cli/program.ts", () => ({ PROGRAM: "the program" }));
  vi.doMock("../src/cli/process/io.ts", () => ({
    processIo: () => ({ err: (text: string) => void told.push(text), signal: interrupt }),
  }));
  vi.doMock("../src/train/run/task/judges.ts", () => ({ closeJudges: () => void closed++ }));
  vi.spyOn(process, "on").mockImplementation(((name: string, listener: (code: number) => void) => {
    if (name === "exit") onExit = listener;
    return process;
  }) as never);
  process.argv = ["node", "grpu", "train", "run.yaml"];
  vi.resetModules();
  await import("../src/cli.ts");
  ended = (code) => onExit(code);
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.resetModules();
  Object.assign(process, { argv, exitCode });
});

test("runs the program with the arguments after its own name", () => {
  expect(program).toEqual(["the program", ["train", "run.yaml"], expect.objectContaining({ signal: interrupt })]);
});

test("ends with the command's status, and lets go of its judges", async () => {
  expect(process.exitCode).toBe(EXIT_FAILED);
  finish(4);
  await vi.waitFor(() => expect(closed).toBe(1));
  expect(process.exitCode).toBe(4);
  ended(EXIT_FAILED);
  expect(told).toEqual([]);
});

test("says so where the process ends before its command", () => {
  ended(EXIT_FAILED);
  expect(told.join("")).toMatch(
    /^grpu: Cannot finish the command: it waits for a promise that never settles\. Check .*\n$/,
  );
  expect(closed).toBe(0);
});

test("says nothing where another status ends the process, or Ctrl-C did", () => {
  ended(0);
  interrupt.aborted = true;
  ended(EXIT_FAILED);
  expect(told).toEqual([]);
});
