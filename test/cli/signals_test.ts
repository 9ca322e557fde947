/** Signals to a real process, in code of the user's that never yields. */

import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../fixtures/folder.ts";
import { startTrain } from "../fixtures/train_child.ts";

const dir = temporaryFolder("signals");

/** Printed a second after a signal that the main thread did not handle. */
const ADVICE = /press Ctrl-C again/;

/** Rewards run in a thread by default. */
const IN_PROCESS = ["task.judge_timeout=null"];
const IN_THREAD: readonly string[] = [];

/** Starts a run whose module holds `code`, sends the signals once it has printed `ready`, and waits for its end. */
async function interrupted(
  code: string,
  { ready, signals, more = IN_PROCESS }: { ready: RegExp; signals: NodeJS.Signals[]; more?: readonly string[] },
) {
  const place = join(dir, Math.random().toString(36).slice(2));
  const module = `import { registerReward } from "grpu";\n${code}\n`;
  const { child, err, ended, said } = startTrain(place, module, ["task.reward=mine", ...more]);
  await said(ready);
  for (const [i, signal] of signals.entries()) {
    if (i > 0) await said(ADVICE);
    child.kill(signal);
  }
  return { ...(await ended), err: err() };
}

const HANG = 'process.stderr.write("hanging\\n");';

test.concurrent.each<[string, string, NodeJS.Signals, number]>([
  ["a loop", `registerReward("mine", () => { ${HANG} for (;;); });`, "SIGINT", 130],
  ["a loop after an await", `registerReward("mine", async () => { await null; ${HANG} for (;;); });`, "SIGTERM", 143],
  [
    "a regular expression",
    `registerReward("mine", () => { ${HANG} return Number(/^(a+)+$/.test("a".repeat(60) + "!")); });`,
    "SIGINT",
    130,
  ],
  ["a module that never ends", `${HANG} for (;;);`, "SIGINT", 130],
])(
  "two signals end %s",
  async (_, code, signal, expected) => {
    const { status, err } = await interrupted(code, { ready: /hanging/, signals: [signal, signal] });
    expect(err).not.toMatch(/DeprecationWarning|debugger/);
    expect(status).toBe(expected);
  },
  60_000,
);

test("what swallows the interruption too is killed", async () => {
  const code = `registerReward("mine", () => { ${HANG} process.on("exit", () => { for (;;); }); for (;;); });`;
  const ended = await interrupted(code, { ready: /hanging/, signals: ["SIGINT", "SIGINT"] });
  expect(ended.err).toMatch(/does not react to signals and is killed/);
  expect(ended.signal).toBe("SIGKILL");
}, 60_000);

test("one signal in code that never yields says how to end it", async () => {
  const code = `let end = 0; registerReward("mine", () => { ${HANG} end ||= Date.now() + 3000; while (Date.now() < end); return 1; });`;
  const ended = await interrupted(code, { ready: /hanging/, signals: ["SIGINT"] });
  expect(ended.err).toMatch(/a function does not return; press Ctrl-C again to end the process/);
  expect(ended.status).toBe(130);
}, 60_000);

test("one signal ends a run whose reward hangs in its thread", async () => {
  const code = `registerReward("mine", () => { ${HANG} for (;;); });`;
  const limit = ["task.judge_timeout=50"];
  const ended = await interrupted(code, { ready: /hanging/, signals: ["SIGINT"], more: limit });
  expect(ended.status).toBe(130);
}, 40_000);

test("one signal between steps saves, and says how to go on", async () => {
  const code = 'registerReward("mine", (response) => response.length / 4);';
  const ended = await interrupted(code, { ready: /step 2\//, signals: ["SIGTERM"] });
  expect(ended.err).toMatch(/stopped after step \d+; continue with: .*resume_mode=auto/);
  expect(ended.err).not.toMatch(/does not yield/);
  expect(ended.status).toBe(143);
}, 60_000);

test.concurrent.each([
  ["a floating promise", "Promise.reject(new RangeError('lost'));", IN_PROCESS],
  ["a timer", "setTimeout(() => { throw new RangeError('lost'); });", IN_PROCESS],
  ["a floating promise of the thread", "Promise.reject(new RangeError('lost'));", IN_THREAD],
  ["a timer of the thread", "setTimeout(() => { throw new RangeError('lost'); });", IN_THREAD],
])(
  "an uncaught error in %s is printed; the run is saved and ends with status 1",
  async (_, fault, more) => {
    const code = `let n = 0; registerReward("mine", (response) => { if (n++ === 20) ${fault} return response.length / 4; });`;
    const { status, err } = await interrupted(code, { ready: /nothing else/, signals: [], more });
    expect(err).toMatch(/an uncaught error ends the command: RangeError: lost\n +at /);
    expect(err).toMatch(/stopped after step \d+; continue with: .*resume_mode=auto/);
    expect(status).toBe(1);
  },
  60_000,
);
