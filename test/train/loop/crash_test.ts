/** Kills a run many times at random moments: it always resumes to the same end. */
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { beforeAll, expect, test } from "vitest";
import { randomStream } from "../../../src/leaves/random.ts";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const SOURCE = fileURLToPath(new URL("../../fixtures/crash_child.ts", import.meta.url));
/** The longest time until a process is killed from outside. */
const LONGEST_LIFE_MS = 100;
/** The most file operations of a process that kills itself: a few steps. */
const MOST_OPERATIONS = 60;

const dir = temporaryFolder("crash");
let child: string;
beforeAll(async () => {
  child = join(dir, "child.mjs");
  // One compiled file, so that a process starts in a tenth of a second.
  await build({ entryPoints: [SOURCE], bundle: true, platform: "node", format: "esm", outfile: child });
});

interface Life {
  readonly wasKilled: boolean;
  /** Its weights, if it finished. */
  readonly text: string | undefined;
}

/** Runs the child to its end, or until it is killed. */
function live(folder: string, death: { afterMs?: number; afterOperations?: number } = {}): Promise<Life> {
  return new Promise((resolve, reject) => {
    const operations = death.afterOperations === undefined ? [] : [String(death.afterOperations)];
    const mode = folder.endsWith("_async") ? "async" : "sync";
    const process_ = spawn(process.execPath, [child, folder, mode, ...operations], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    let out = "";
    let err = "";
    process_.stdout.on("data", (part) => {
      if (out === "" && death.afterMs !== undefined) setTimeout(() => process_.kill("SIGKILL"), death.afterMs);
      out += part;
    });
    process_.stderr.on("data", (part) => {
      err += part;
    });
    process_.on("close", (code, signal) => {
      if (signal === null && code !== 0) reject(new Error(err));
      else resolve({ wasKilled: signal === "SIGKILL", text: /^done (.*)$/m.exec(out)?.[1] });
    });
  });
}

/** Without the values that differ between equal runs: times, and those only of asynchronous training. */
function linesOf(folder: string, file: string): string[] {
  const hide = (key: string, value: unknown) => (/^(time|perf|async)\//.test(key) ? undefined : value);
  const lines = readFileSync(join(folder, file), "utf8").trimEnd().split("\n");
  return lines.map((line) => JSON.stringify(JSON.parse(line), hide));
}

/** Keeps the message short when two long files differ. */
function expectSameLines(folders: readonly [string, string], file: string): void {
  const [a, b] = folders.map((folder) => linesOf(folder, file));
  expect(b!.length).toBe(a!.length);
  const at = a!.findIndex((line, i) => line !== b![i]);
  expect(b![at]).toBe(a![at]);
}

function checkpointsOf(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder).filter((name) => /^(global|warmup)_step_\d+$/.test(name));
}

/** The step that a resumed run would continue from; checks that every checkpoint is whole. */
async function resumableStep(folder: string): Promise<number> {
  for (const name of checkpointsOf(folder)) {
    expect(JSON.parse(readFileSync(join(folder, name, "loop.json"), "utf8")).step).toBeGreaterThanOrEqual(0);
    expect(JSON.parse(readFileSync(join(folder, name, "table.json"), "utf8")).version).toBeGreaterThan(0);
  }
  const found = await new FolderCheckpoints<LoopState>(folder, { resumeMode: "auto" }).find();
  return found?.state.step ?? 0;
}

/** Kills a run `kills` times. @returns its weights at the end */
async function liveOn(folder: string, { kills, seed }: { kills: number; seed: number }): Promise<string | undefined> {
  const random = randomStream(seed);
  const reached: number[] = [];
  let [killed, lives] = [0, 0];
  let text: string | undefined;
  while (killed < kills && text === undefined) {
    const death =
      lives++ % 2 === 0
        ? { afterMs: random() * LONGEST_LIFE_MS }
        : { afterOperations: 1 + Math.floor(random() * MOST_OPERATIONS) };
    const life = await live(folder, death);
    killed += Number(life.wasKilled);
    text = life.text;
    reached.push(await resumableStep(folder));
    expect(reached.at(-1)).toBeGreaterThanOrEqual(reached.at(-2) ?? 0);
  }
  expect(killed, `came to its end after ${killed} kills at steps ${reached}`).toBe(kills);
  return (await live(folder)).text;
}

/** Tries of a test that fails start in folders of their own. */
let tries = 0;

test.each([
  ["sync", 50, 11],
  ["async", 20, 12],
])(
  "a run (%s) killed %d times, also in the middle of writes, ends bit for bit like an undisturbed one",
  async (mode, kills, seed) => {
    // One after the other: an asynchronous run that is killed must give the same result.
    const place = join(dir, String(++tries));
    mkdirSync(place);
    const [whole, killed] = [join(place, `${mode}_whole`), join(place, `killed_${mode}`)];
    const { text: expected } = await live(whole);
    expect(expected).toBeDefined();

    expect(await liveOn(killed, { kills, seed })).toBe(expected);
    for (const file of ["metrics.jsonl", "samples.jsonl"]) expectSameLines([whole, killed], file);
    expect(checkpointsOf(killed)).toEqual(checkpointsOf(whole));
    const own = mode === "async" ? ["waiting"] : [];
    expect(readdirSync(killed).sort()).toEqual([...readdirSync(whole), ...own].sort());
    for (const folder of own) expect(readdirSync(join(killed, folder))).toEqual([]);
    for (const name of checkpointsOf(whole)) {
      const [a, b] = [whole, killed].map((folder) => readFileSync(join(folder, name, "table.json"), "utf8"));
      expect(b).toBe(a);
    }
  },
);

const CLI = ["--import", "tsx", fileURLToPath(new URL("../../../src/cli.ts", import.meta.url))];
const SMALL = [
  ...["--device", "cpu"],
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
];

/** Real models on the reference device, through the command line. Most of their seconds are start-up. */
const TRAIN = [
  ...["train", "examples/arithmetic/run.yaml", ...SMALL],
  ...["warmup.steps=2", "warmup.batch_size=8", "rllm.data.train_batch_size=4", "rllm.rollout.n=4"],
  ...["rllm.trainer.total_batches=60", "rllm.trainer.save_freq=1", "rllm.trainer.test_freq=0"],
  ...["training.max_ckpt_to_keep=2", "training.resume_mode=auto", "rllm.trainer.val_before_train=false"],
];
const SFT = [
  ...["sft", "examples/sft/run.yaml", ...SMALL],
  ...["data.train_batch_size=4", "trainer.total_training_steps=60", "trainer.save_freq=1", "trainer.test_freq=7"],
  ...["trainer.max_ckpt_to_keep=2", "trainer.resume_mode=auto"],
];

/** Runs the command to its end, or kills it that long after its first output. True when killed. */
function runCommand(command: readonly string[], folder: string, killAfterMs?: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const args = [...CLI, ...command, `training.default_local_dir=${folder}`];
    const process_ = spawn(process.execPath, args, { stdio: ["ignore", "ignore", "pipe"] });
    let err = "";
    let isTimed = false;
    process_.stderr.on("data", (part) => {
      err += part;
      if (isTimed || killAfterMs === undefined || !err.includes("run     60 steps")) return;
      isTimed = true;
      setTimeout(() => process_.kill("SIGKILL"), killAfterMs);
    });
    process_.on("close", (code, signal) => {
      if (signal === null && code !== 0) reject(new Error(err));
      else resolve(signal === "SIGKILL");
    });
  });
}

test.each([
  ["train", TRAIN],
  ["sft", SFT],
])(
  "a real model of grpu %s killed four times ends with the same weights and optimiser, byte for byte",
  async (name, command) => {
    const place = join(dir, String(++tries));
    mkdirSync(place);
    const [whole, killed] = [join(place, `${name}_model`), join(place, `${name}_model_killed`)];
    await runCommand(command, whole);
    const deaths = await [150, 300, 60, 220].reduce<Promise<boolean[]>>(
      async (before, ms) => [...(await before), await runCommand(command, killed, ms)],
      Promise.resolve([]),
    );
    expect(deaths.filter(Boolean).length).toBeGreaterThan(1);
    await runCommand(command, killed);
    const last = "global_step_60";
    const files = readdirSync(join(whole, last), { recursive: true, encoding: "utf8" }).filter(
      // Both contain log positions, which depend on times in the lines.
      (file) => file !== "loop.json" && file !== "files.json",
    );
    expect(files.length).toBeGreaterThan(2);
    for (const file of files) {
      const [a, b] = [whole, killed].map((folder) => readFileSync(join(folder, last, file)));
      expect(b!.equals(a!), file).toBe(true);
    }
    expectSameLines([whole, killed], "metrics.jsonl");
  },
  120_000,
);
