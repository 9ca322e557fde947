/** Signals to a real process, in code of the user's that never yields. */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "grpu-signals-"));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const SMALL = [
  "examples/arithmetic/run.yaml",
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
  "warmup.steps=0",
  "rllm.data.train_batch_size=4",
  "rllm.rollout.n=2",
  "rllm.trainer.test_freq=0",
  "rllm.trainer.val_before_train=false",
  "--device",
  "cpu",
];

/** Starts a run whose module holds `code`, sends the signals once it has printed `ready`, and waits for its end. */
async function interrupted(
  code: string,
  { ready, signals, more = [] }: { ready: RegExp; signals: NodeJS.Signals[]; more?: string[] },
) {
  const file = join(dir, `${Math.random().toString(36).slice(2)}.ts`);
  writeFileSync(file, `import { registerReward } from "grpu";\n${code}\n`);
  const run = `training.default_local_dir=${file.replace(".ts", "")}`;
  const child = spawn(process.execPath, [
    CLI,
    "train",
    ...SMALL,
    run,
    "--import",
    file,
    "task.reward=mine",
    ...more,
  ]);
  let err = "";
  const isReady = new Promise<void>((resolve) => {
    child.stderr.on("data", (text) => {
      err += text;
      if (ready.test(err)) resolve();
    });
  });
  const ended = new Promise<{ status: number | null; signal: string | null }>((resolve) => {
    child.on("close", (status, signal) => resolve({ status, signal }));
  });
  await Promise.race([isReady, ended]);
  for (const signal of signals) {
    child.kill(signal);
    await pause(300);
  }
  return { ...(await ended), err };
}

const HANG = 'process.stderr.write("hanging\\n");';

test.concurrent.each<[string, string, NodeJS.Signals, number]>([
  ["a loop", `registerReward("mine", () => { ${HANG} for (;;); });`, "SIGINT", 130],
  [
    "a loop after an await",
    `registerReward("mine", async () => { await null; ${HANG} for (;;); });`,
    "SIGTERM",
    143,
  ],
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
}, 120_000);

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
  ["a floating promise", "Promise.reject(new RangeError('lost'));"],
  ["a timer", "setTimeout(() => { throw new RangeError('lost'); });"],
])(
  "an uncaught error in %s is printed; the run is saved and ends with status 1",
  async (_, fault) => {
    const code = `let n = 0; registerReward("mine", (response) => { if (n++ === 20) ${fault} return response.length / 4; });`;
    const { status, err } = await interrupted(code, { ready: /nothing else/, signals: [] });
    expect(err).toMatch(/an uncaught error ends the command: RangeError: lost\n +at /);
    expect(err).toMatch(/stopped after step \d+; continue with: .*resume_mode=auto/);
    expect(status).toBe(1);
  },
  60_000,
);
