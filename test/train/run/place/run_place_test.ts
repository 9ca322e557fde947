/** What commands do to the folder of a run: a refused one nothing, a second one at the same time nothing. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, beforeEach, describe, expect, test } from "vitest";
import { FolderLock } from "../../../../src/train/log/folder/lock.ts";
import { grpu } from "../../../fixtures/cli.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { rewardModule, smallRun, treeOf } from "../../../fixtures/small_run.ts";

const dir = temporaryFolder("place");
/** A finished run of two steps, with a checkpoint of each. */
let run: string;
let before: ReturnType<typeof treeOf>;

beforeAll(async () => {
  run = join(dir, "run");
  expect((await smallRun(run)).code).toBe(0);
  expect(readdirSync(run)).toEqual(expect.arrayContaining(["global_step_1", "global_step_2", "report.html"]));
  // A line that no checkpoint holds, as a killed run leaves it.
  writeFileSync(join(run, "metrics.jsonl"), '{"phase":"train","step":3}\n', { flag: "a" });
  mkdirSync(join(run, ".writing-global_step_3"));
});
beforeEach(() => {
  before = treeOf(run);
});

const throws = (name: string) => rewardModule(dir, { name, body: 'throw new Error("no reward");' });
/** A model without tokenizer.json. */
function dumbModel(): string {
  const folder = join(dir, "dumb");
  mkdirSync(folder, { recursive: true });
  for (const name of ["config.json", "model.safetensors"])
    writeFileSync(join(folder, name), readFileSync(join(run, "global_step_2", name)));
  return folder;
}
const auto = "training.resume_mode=auto";
const more = "rllm.trainer.total_batches=4";
const resumeFirst = () => [
  "training.resume_mode=resume_path",
  `training.resume_from_path=${join(run, "global_step_1")}`,
];

describe("a command that is refused leaves a finished run, or a place without one, as it was", () => {
  test.each<[string, () => string[], RegExp]>([
    ["a batch larger than the data", () => ["rllm.data.train_batch_size=100000"], /one needs 100000 rows/],
    ["a reward that throws", () => throws("thrower"), /no reward/],
    ["a reward that throws, after a warm-up", () => ["warmup.steps=2", ...throws("late")], /no reward/],
    ["a reward that is NaN", () => rewardModule(dir, { name: "nan", body: "return Number.NaN;" }), /finite number/],
    ["a module that cannot be loaded", () => ["--import", join(dir, "none.ts")], /none\.ts/],
    ["a model without a tokenizer", () => [`model.name=${dumbModel()}`, "model.lora_rank=0"], /tokenizer/],
    ["a model that is not there", () => ["model.name=/nowhere"], /does not exist/],
    ["an adapter on a new model", () => ["model.lora_rank=4"], /adapter on a new model/],
    [
      "a checkpoint that is not there",
      () => ["training.resume_mode=resume_path", "training.resume_from_path=/none"],
      /not a checkpoint/,
    ],
    ["a logger that does not exist", () => ["rllm.trainer.logger=[mlflow]"], /mlflow/],
    [
      "a metric for the best model that is not measured",
      () => ["training.metric_for_best_model=val/x"],
      /does not measure/,
    ],
  ])("%s", async (what, args, message) => {
    const over = await smallRun(run, args());
    expect(over.err).toMatch(message);
    expect(over.code).toBeGreaterThan(0);
    expect(treeOf(run)).toEqual(before);
    const fresh = join(dir, "above", "fresh");
    const { err, code } = await smallRun(fresh, args());
    expect([err, code > 0]).toEqual([expect.stringMatching(message), true]);
    const isWarmedUp = /warm-up/.test(what);
    expect(existsSync(join(dir, "above"))).toBe(isWarmedUp);
    expect(readdirSync(dir).filter((name) => /^run\.|^fresh\./.test(name))).toEqual([]);
    rmSync(join(dir, "above"), { recursive: true, force: true });
  });

  test.each<[string, () => string[], RegExp]>([
    ["a reward that throws", () => [auto, more, ...throws("again")], /no reward/],
    ["a reward that throws, from an earlier step", () => [...resumeFirst(), ...throws("earlier")], /no reward/],
    [
      "another shape",
      () => [auto, more, "model.init.hidden_size=32"],
      /hidden_size is 16, and the configuration says 32/,
    ],
    ["other tokens", () => [auto, more, "model.init.alphabet='0123456789+= abcdefgh'"], /its tokens are not those/],
  ])("a run to be continued with %s", async (_, args, message) => {
    const { err, code } = await smallRun(run, args());
    expect(err).toMatch(message);
    expect(code).toBeGreaterThan(0);
    expect(treeOf(run)).toEqual(before);
  });

  test("a reward that throws, and writes to the run's folder first: what it wrote is kept beside", async () => {
    const body = `fs.writeFileSync(${JSON.stringify(join(run, "debug.txt"))}, response); throw new Error("no reward");`;
    const { err } = await smallRun(run, rewardModule(dir, { name: "writer", body }));
    expect(err).toContain(`Files that other code wrote meanwhile are in ${run}.2\n`);
    expect(treeOf(run)).toEqual(before);
    expect(readdirSync(`${run}.2`)).toEqual(["debug.txt"]);
    rmSync(`${run}.2`, { recursive: true });
  });

  test.each([
    ["Ctrl-C before its first step", [auto, more]],
    ["nothing left to do", [auto]],
  ])("a run to be continued with %s", async (what, args) => {
    const interrupt = new AbortController();
    const err = (text: string) => void (/^run /m.test(text) && /Ctrl/.test(what) && interrupt.abort());
    await smallRun(run, args, { signal: interrupt.signal, err });
    const rest = (tree = {}) => Object.entries(tree).filter(([name]) => name !== "report.html");
    expect(rest(treeOf(run))).toEqual(rest(before));
  });

  test("Ctrl-C before the first attempts are scored", async () => {
    const interrupt = new AbortController();
    const err = (text: string) => void (/Moved the earlier run/.test(text) && interrupt.abort());
    const { code } = await smallRun(run, [], { signal: interrupt.signal, err });
    expect(code).toBe(130);
    expect(treeOf(run)).toEqual(before);
  });
});

describe("a folder in use", () => {
  test("is refused, with the process that uses it and what to do, and nothing in it changes", async () => {
    const lock = await FolderLock.take(run, { advice: "", command: "grpu train mine.yaml" });
    for (const args of [[], [auto, more]]) {
      const { err, code } = await smallRun(run, args);
      expect(err).toMatch(/in use by PID \d+ on .*\(grpu train mine\.yaml\)\. Wait .*training\.default_local_dir=DIR/);
      expect(code).toBe(3);
    }
    await lock.release();
    expect(treeOf(run)).toEqual(before);
  });

  test.each([
    ["moved away", "fs.renameSync(at, at + '.away'); fs.mkdirSync(at);", /moved or deleted/],
    [
      "taken by another process",
      "fs.writeFileSync(at + '/.owner.json', JSON.stringify({ pid: 77, host: 'h', since: 's', command: 'c', nonce: 'n' }));",
      /another process took it, PID 77/,
    ],
  ])("that is %s meanwhile ends the run, which writes nothing more there", async (what, act, message) => {
    const place = join(dir, what.replaceAll(" ", "_"));
    const name = `lose_${what.length}`;
    // The last attempt of the first step: its log lines and its checkpoint would be next.
    const body = `globalThis.${name} = (globalThis.${name} ?? 0) + 1; const at = ${JSON.stringify(place)}; if (globalThis.${name} === 16) { ${act} } return response.length / 9;`;
    const { err, code } = await smallRun(place, [
      ...rewardModule(dir, { name, body }),
      "rllm.trainer.val_before_train=false",
    ]);
    expect(err).toMatch(message);
    expect(code).toBe(1);
    const left = readdirSync(place).filter((each) => each !== ".owner.json");
    expect(left).toEqual(what === "moved away" ? [] : ["config.yaml", "run.json"]);
  });
});

test("a checkpoint of another run is continued in a folder of its own, from which an earlier run makes way", async () => {
  const place = join(dir, "second");
  await smallRun(place, ["rllm.trainer.total_batches=1"]);
  const { err, code } = await smallRun(place, [...resumeFirst(), "training.learning_rate=0.5"]);
  expect(code).toBe(0);
  expect(err).toContain(`Moved the earlier run from ${place} to ${place}.1`);
  expect(err).toContain("training.learning_rate was 0.0015 and is now 0.5");
  const steps = readFileSync(join(place, "metrics.jsonl"), "utf8").match(/"phase":"train","step":\d+/g);
  expect(steps).toEqual(['"phase":"train","step":2']);
  expect(treeOf(run)).toEqual(before);
});

test("a run's stored configuration trains again, with the keys that were added on the command line", async () => {
  const [first, again] = [join(dir, "added"), join(dir, "again")];
  const added = ["+my.own=3", "+my.other={a b:1}", "+actor_rollout_ref.actor.mine=x", "rllm.trainer.total_batches=1"];
  expect((await smallRun(first, added)).code).toBe(0);
  const stored = readFileSync(join(first, "config.yaml"), "utf8");
  const { code, err } = await grpu([
    ...["train", join(first, "config.yaml"), "--device", "cpu"],
    `training.default_local_dir=${again}`,
  ]);
  expect(err).toContain("my.own is not a known setting");
  expect(code).toBe(0);
  expect(readFileSync(join(again, "config.yaml"), "utf8")).toBe(stored.replace(first, again));
});
