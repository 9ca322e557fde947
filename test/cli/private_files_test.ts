/** Files that hold what people said to a model are this user's alone, whatever the umask; those made for others are not. */
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { runProgram } from "../../src/cli/front.ts";
import { PROGRAM } from "../../src/cli/program.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const root = temporaryFolder("private");
let before: number;
beforeEach(() => {
  before = process.umask(0o022);
});
afterEach(() => {
  process.umask(before);
});

/** Of what lies below a folder, itself included: paths that others may read. */
function openTo(dir: string): string[] {
  const all = readdirSync(dir, { recursive: true, encoding: "utf8" }).map((path) => join(dir, path));
  return [dir, ...all].filter((path) => (statSync(path).mode & 0o077) !== 0);
}

test("a training run's folder, logs, samples, checkpoints and report", async () => {
  const dir = join(root, "run");
  const { code, err } = await grpu([
    "train",
    "examples/arithmetic/run.yaml",
    "--device",
    "cpu",
    `training.default_local_dir=${dir}`,
    "rllm.trainer.total_batches=1",
    "rllm.trainer.save_freq=1",
    "warmup.steps=1",

    "rllm.data.train_batch_size=2",
    "rllm.rollout.n=2",
  ]);
  expect([code, code === 0 ? "" : err]).toEqual([0, ""]);
  expect(readdirSync(dir, { recursive: true }).length).toBeGreaterThan(5);
  expect(openTo(dir)).toEqual([]);
  expect(process.umask()).toBe(0o022);
});

test.each(PROGRAM.commands)("$path writes with the mode that it should", async (command) => {
  let seen: number | undefined;
  const run = async () => {
    seen = process.umask();
  };
  const program = { ...PROGRAM, commands: [{ ...command, options: [], run }] };
  const io = { out: () => {}, err: () => {}, signal: new AbortController().signal, env: {}, columns: 80 };
  await runProgram(program, command.path.split(" "), io as never);
  expect(seen).toBe(["export", "import", "pull"].includes(command.path) ? 0o022 : 0o077);
});
