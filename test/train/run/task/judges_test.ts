/** Rewards and evaluators in a thread with a time limit, in a real process: the thread loads dist/. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { startTrain } from "../../../fixtures/train_child.ts";

const dir = temporaryFolder("judges");

/** One step of 8 rollouts, all at once. */
const ONE_STEP = ["rllm.trainer.total_batches=1", "rllm.workflow.raise_on_error=false", "rllm.workflow.retry_limit=1"];
const LIMIT = "task.judge_timeout=1.5";

async function trained(name: string, code: string, args: readonly string[] = ["task.reward=mine", LIMIT]) {
  const run = join(dir, name);
  const module = `import * as grpu from "grpu";\nlet n = 0;\n${code}\n`;
  const started = startTrain(run, module, [...ONE_STEP, ...args]);
  const { status } = await started.ended;
  const err = started.err();
  const lines = () => readFileSync(join(run, "metrics.jsonl"), "utf8").trim().split("\n");
  return { status, err, failed: status === 0 ? JSON.parse(lines()[0]!)["batch/rollouts_failed"] : undefined };
}

const HANGS: readonly (readonly [string, string, RegExp])[] = [
  ["a loop", "for (;;);", /reward "mine" did not return within task\.judge_timeout=1\.5 s/],
  [
    "an expression",
    'return Number(/^(a+)+$/.test("a".repeat(60) + "!"));',
    /Cannot judge the task \S*train-\d+: the reward/,
  ],
  ["a promise", "return new Promise(() => {});", /did not return within/],
  ["an exit", "process.exit(0);", /The thread that judges ended during the call/],
  ["a throw", 'throw new RangeError("bad row");', /failed: RangeError: bad row\n +at /],
  ["a function", "return { reward: 1, metrics: () => 1 };", /could not be cloned/],
];

test.concurrent.each(HANGS)(
  "a reward that ends in %s fails alone; training goes on",
  async (name, code, message) => {
    // The file is there for the first call of all threads only: a call that is made again returns.
    const marker = JSON.stringify(join(dir, `${name} ran`));
    const reward = `grpu.registerReward("mine", (response) => {
    const fs = process.getBuiltinModule("node:fs");
    try { fs.writeFileSync(${marker}, "", { flag: "wx" }); } catch { return response.length / 4; }
    ${code}
  });`;
    const { status, err, failed } = await trained(name.replace(" ", "_"), reward);
    expect(err).toMatch(message);
    expect(err).toMatch(/step 1\/1/);
    expect([status, failed]).toEqual([0, 1]);
  },
  120_000,
);

test.concurrent("evaluators and an environment's own reward run there too", async () => {
  const code = `grpu.registerEvaluator("judge", (task, episode) => ({ reward: episode.trajectories[0].steps[0].response_ids.length }));
    grpu.registerEnvironment({ name: "own", describe: "own", alphabet: "0123456789+=", train_files: "examples/arithmetic/arithmetic_train.jsonl",
      reward: () => Number(process.getBuiltinModule("node:worker_threads").threadId > 0) });`;
  const judged = await trained("evaluated", code, ["task.evaluator=judge", "task.name=own", LIMIT]);
  expect([judged.status, judged.failed]).toEqual([0, 0]);
  const own = await trained("owned", code, ["task.name=own", LIMIT]);
  expect(own.err).toMatch(/reward 1\.000/);
  expect([own.status, own.failed]).toEqual([0, 0]);
}, 120_000);

test.concurrent("a module that cannot be used in a thread says so", async () => {
  const code = `if (process.getBuiltinModule("node:worker_threads").threadId > 0) throw new Error("main thread only");
    grpu.registerReward("mine", () => 1);`;
  const { status, err } = await trained("main_only", code);
  expect(err).toMatch(/modules of --import cannot be used there: .*main thread only.*task\.judge_timeout=null/s);
  expect(status).toBe(1);
}, 120_000);

test.concurrent("a reward of a module runs in a thread by default, and in the process where there is no limit", async () => {
  const code = `const { threadId } = process.getBuiltinModule("node:worker_threads");
    grpu.registerReward("mine", () => Number(threadId > 0));`;
  const limited = await trained("by_default", code, ["task.reward=mine"]);
  expect([limited.status, limited.failed]).toEqual([0, 0]);
  expect(limited.err).toMatch(/reward 1\.000/);
  const unlimited = await trained("unlimited", code, ["task.reward=mine", "task.judge_timeout=null"]);
  expect(unlimited.err).toMatch(/reward 0\.000/);
}, 120_000);
