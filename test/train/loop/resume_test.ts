import fs from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Task } from "../../../src/train/data/types.ts";
import { FolderCheckpoints, readCheckpoint } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import { placeAside } from "../../../src/train/log/folder/place_aside.ts";
import { MetricsFile } from "../../../src/train/log/loggers/jsonl.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import type { LoopSettings, Partly } from "../../../src/train/loop/settings.ts";
import { train } from "../../../src/train/loop/train.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../../fixtures/loop.ts";
import { TableBackend } from "../../fixtures/table_backend.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "grpu-resume-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const SETTINGS: Partly<LoopSettings> = {
  ...LETTER_SETTINGS,
  warmup: { steps: 5, batch_size: 4, learning_rate: 1 },
  rejection_sample: { enable: true, mode: "episode", min_partial_solve_tasks: 6 },
};
const EXAMPLES = Array.from(LETTERS, (letter) => ({ prompt: letter, response: letter }));

type Options = Partial<ConstructorParameters<typeof FolderCheckpoints>[1]>;

function fileRun(name: string, options: Options = {}, settings = SETTINGS) {
  const folder = join(dir, name);
  const checkpoints = new FolderCheckpoints<LoopState>(folder, { resumeMode: "auto", ...options });
  const file = join(folder, "metrics.jsonl");
  const made = letterRun({ settings, examples: EXAMPLES, checkpoints, loggers: [new MetricsFile(file)] });
  const lines = async () => (await readFile(file, "utf8")).replace(/"(time|perf)\/[^"]*":[^,}]*,?/g, "").trim();
  return { ...made, folder, checkpoints, lines };
}

/** The same policy, and the same lines of metrics. */
async function expectEqual(run: ReturnType<typeof fileRun>, other: ReturnType<typeof fileRun>) {
  expect(run.backend.text()).toBe(other.backend.text());
  expect(await run.lines()).toBe(await other.lines());
}

/** Stops a run before its backend samples for the nth time. */
function abortAtDraw(backend: TableBackend, draw: number): AbortSignal {
  const controller = new AbortController();
  const sample = backend.sample.bind(backend);
  let draws = 0;
  backend.sample = (requests, options) => {
    if (++draws === draw) controller.abort();
    return sample(requests, options);
  };
  return controller.signal;
}

test.each([1, 2, 4, 7, 13])("a run stopped at draw %i and resumed equals the uninterrupted one", async (draw) => {
  const whole = fileRun("whole");
  await train(whole.run);
  const stopped = fileRun("parts");
  const first = await train({ ...stopped.run, signal: abortAtDraw(stopped.backend, draw) });
  expect(first.isComplete).toBe(false);
  const resumed = fileRun("parts");
  const outcome = await train(resumed.run);
  expect(outcome.isComplete).toBe(true);
  await expectEqual(resumed, whole);
});

test("log lines after the last checkpoint of a killed run are written once", async () => {
  const whole = fileRun("whole");
  await train(whole.run);
  const killed = fileRun("killed");
  const sample = killed.backend.sample.bind(killed.backend);
  let draws = 0;
  // Step 5: after the checkpoint of step 3, the lines of step 4 and a validation.
  killed.backend.sample = async (requests, options) => {
    if (++draws === 7) throw new Error("killed");
    return sample(requests, options);
  };
  await expect(train(killed.run)).rejects.toThrow("killed");
  expect(await killed.lines()).toContain('"phase":"val","step":4');
  const resumed = fileRun("killed");
  await train(resumed.run);
  await expectEqual(resumed, whole);
});

test("a run stopped during warm-up resumes within it", async () => {
  const whole = fileRun("whole");
  await train(whole.run);
  const stopped = fileRun("parts");
  const controller = new AbortController();
  const step = stopped.backend.optimStep.bind(stopped.backend);
  stopped.backend.optimStep = async (params) => {
    const metrics = await step(params);
    if (stopped.backend.weightVersion === 3) controller.abort();
    return metrics;
  };
  const { state } = await train({ ...stopped.run, signal: controller.signal });
  expect(state).toMatchObject({ warmup: 3, step: 0 });
  expect(await readdir(stopped.folder)).toContain("warmup_step_3");
  const resumed = fileRun("parts");
  await train(resumed.run);
  await expectEqual(resumed, whole);
});

test("save_freq counts steps, the last step is always saved, and only the newest are kept", async () => {
  const { run, folder } = fileRun("kept", { keep: 2 });
  await train(run);
  expect((await readdir(folder)).filter((name) => name.startsWith("global_step_")).sort()).toEqual([
    "global_step_12",
    "global_step_9",
  ]);
  expect(await readFile(join(folder, "latest_checkpointed_iteration.txt"), "utf8")).toBe("12\n");
});

test("a full disk leaves the previous checkpoint intact, with a message", async () => {
  const { run, backend, folder } = fileRun("full");
  const save = backend.save.bind(backend);
  let saves = 0;
  backend.save = async (target) => {
    await save(target);
    if (++saves < 3) return;
    await writeFile(join(target, "half"), "written");
    throw Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
  };
  await expect(train(run)).rejects.toThrow(/disk is full.*previous checkpoint is whole: .*global_step_3/s);
  expect((await readdir(folder)).filter((name) => name.includes("step_")).sort()).toEqual([
    "global_step_3",
    "warmup_step_5",
  ]);
  const resumed = fileRun("full");
  const whole = fileRun("whole");
  await train(resumed.run);
  await train(whole.run);
  expect(resumed.backend.text()).toBe(whole.backend.text());
});

test("the best checkpoint by a metric is kept, and a resumed run knows it", async () => {
  const settings = {
    ...LETTER_SETTINGS,
    trainer: { total_batches: 24, test_freq: 1, save_freq: 6 },
    training: { learning_rate: 8, seed: 1, metric_for_best_model: "val/copy/pass@1" },
  };
  const { run, folder, checkpoints } = fileRun("best", { keep: 1 }, settings);
  const { state } = await train(run);
  const measured = (await readFile(join(folder, "metrics.jsonl"), "utf8"))
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line))
    .filter(({ phase, step }) => phase === "val" && step > 0);
  const values = measured.map((line) => line["val/copy/pass@1"] as number);
  const first = measured[values.indexOf(Math.max(...values))];
  expect(first.step).toBeLessThan(24);
  const best = {
    checkpoint: `global_step_${first.step}`,
    metric: "val/copy/pass@1",
    value: Math.max(...values),
  };
  expect(await checkpoints.best()).toEqual(best);
  expect(JSON.parse(await readFile(join(folder, "best_checkpoint.json"), "utf8"))).toEqual(best);
  expect((await readdir(folder)).filter((name) => name.startsWith("global_step_")).sort()).toEqual(
    [best.checkpoint, "global_step_24"].sort(),
  );
  expect(state.best).toEqual({ step: first.step, value: best.value });
  expect((await readCheckpoint<LoopState>(join(folder, "global_step_24"))).state.best).toEqual(state.best);
});

/** The logged validations after the first step. */
async function measured(run: ReturnType<typeof fileRun>, metric: string) {
  const lines = (await run.lines()).split("\n").map((line) => JSON.parse(line.replace(/,}$/, "}")));
  const after = lines.filter(({ phase, step }) => phase === "val" && step > 0);
  return after.map((line) => ({ step: line.step as number, value: line[metric] as number }));
}

test.each([
  ["never beats its start", false, true, 1],
  ["never beats its start, which was not validated", false, false, 1],
  ["beats its start", true, true, 1],
  ["beats its start, which was not validated", true, false, 3],
])("a run that %s keeps the best of its own steps", async (_, greater_is_better, val_before_train, test_freq) => {
  const metric = "val/copy/pass@1";
  const trainer = { total_batches: 12, test_freq, save_freq: 0, val_before_train };
  const training = { learning_rate: 8, seed: 1, metric_for_best_model: metric, greater_is_better };
  const made = fileRun("own", {}, { ...LETTER_SETTINGS, trainer, training });
  const { state } = await train(made.run);
  const values = await measured(made, metric);
  const extreme = Math[greater_is_better ? "max" : "min"](...values.map(({ value }) => value));
  const best = values.find(({ value }) => value === extreme)!;
  expect(state.best).toEqual(best);
  expect(await made.checkpoints.best()).toEqual({
    checkpoint: `global_step_${best.step}`,
    metric,
    value: best.value,
  });
});

test("greater_is_better=false keeps the smallest value; an unknown metric is refused with the known ones", async () => {
  const training = { learning_rate: 8, seed: 1, metric_for_best_model: "val/reward/copier/mean" };
  const trainer = { total_batches: 6, test_freq: 1, save_freq: 0 };
  const least = fileRun("least", {}, { ...SETTINGS, trainer, training: { ...training, greater_is_better: false } });
  const { state } = await train(least.run);
  const values = await measured(least, "val/reward/copier/mean");
  expect(state.best?.value).toBe(Math.min(...values.map(({ value }) => value)));
  const unknown = fileRun("unknown", {}, { ...SETTINGS, training: { metric_for_best_model: "val/nothing" } });
  await expect(train(unknown.run)).rejects.toThrow(
    /does not measure val\/nothing\. Set training.metric_for_best_model to one of .*val\/copy\/pass@1/,
  );
});

test.each([
  ["a file cut short", async (at: string) => writeFile(join(at, "table.json"), "{"), /table\.json has 1 bytes of \d+/],
  ["a file gone", async (at: string) => rm(join(at, "table.json")), /table\.json is missing/],
  [
    "a flipped bit",
    async (at: string) => {
      const bytes = await readFile(join(at, "table.json"));
      bytes[3]! ^= 1;
      await writeFile(join(at, "table.json"), bytes);
    },
    /table\.json is not what was written/,
  ],
])("a checkpoint with %s is skipped with a message, and the run ends the same", async (_, damage, message) => {
  const whole = fileRun("whole");
  await train(whole.run);
  const broken = fileRun("broken");
  await train({ ...broken.run, signal: abortAtDraw(broken.backend, 13) });
  const newest = (await broken.checkpoints.latest())!;
  await damage(join(broken.folder, newest));
  const said: string[] = [];
  const resumed = fileRun("broken", { onSkip: (text) => said.push(text) });
  await train(resumed.run);
  expect(said).toHaveLength(1);
  expect(said[0]).toMatch(message);
  expect(said[0]).toContain(newest);
  await expectEqual(resumed, whole);
});

test("when every checkpoint is damaged, the run does not start over by itself", async () => {
  const { run, folder } = fileRun("lost");
  await train(run);
  for (const name of await readdir(folder))
    if (name.includes("_step_")) await writeFile(join(folder, name, "table.json"), "");
  await expect(fileRun("lost").checkpoints.find()).rejects.toThrow(
    /no checkpoint in the folder is whole.*resume_mode=disable/,
  );
});

test("an unfinished checkpoint is reported, and removed when the next one is saved", async () => {
  const { run, folder } = fileRun("torn");
  await train(run);
  const torn = [".writing-global_step_15", ".deleting-global_step_3"];
  for (const name of torn) await mkdir(join(folder, name));
  const said: string[] = [];
  const again = fileRun("torn", { onSkip: (text) => said.push(text) });
  const found = await again.checkpoints.find();
  expect(found?.state.step).toBe(12);
  expect(said).toEqual([expect.stringContaining("while it wrote global_step_15")]);
  expect(await readdir(folder)).toEqual(expect.arrayContaining(torn));
  await again.checkpoints.save("global_step_13", { state: found!.state, write: async () => {} });
  expect((await readdir(folder)).filter((name) => name.startsWith("."))).toEqual([]);
});

test("a checkpoint gets its checksums before its name", async () => {
  const { checkpoints, folder } = fileRun("sealed");
  const listed: string[][] = [];
  const { rename } = fs.promises;
  fs.promises.rename = async (from, to) => {
    if (String(to).endsWith("global_step_1")) listed.push(await readdir(String(from)));
    return rename(from, to);
  };
  syncBuiltinESMExports();
  try {
    await checkpoints.save("global_step_1", {
      state: {} as LoopState,
      write: (at) => writeFile(join(at, "weights"), "1"),
    });
  } finally {
    fs.promises.rename = rename;
    syncBuiltinESMExports();
  }
  expect(listed).toEqual([["files.json", "loop.json", "weights"]]);
  expect(await readdir(join(folder, "global_step_1"))).toEqual(listed[0]);
});

test("a folder that another process has taken keeps its checkpoints, and the unfinished one gets no name", async () => {
  const allowed = [true, false];
  const beforeWrite = async () => {
    if (!allowed.shift()) throw new Error("taken");
  };
  const { checkpoints, folder } = fileRun("taken", { beforeWrite });
  const contents = { state: {} as LoopState, write: (at: string) => writeFile(join(at, "weights"), "1") };
  await expect(checkpoints.save("global_step_1", contents)).rejects.toThrow("taken");
  expect(await readdir(folder)).toEqual([]);
  await expect(checkpoints.save("global_step_1", contents)).rejects.toThrow("taken");
});

test.each([
  ["fewer rows", (tasks: Task[]) => tasks.slice(0, 12), /has changed from 16 rows to 12 rows/],
  [
    "rows in another order",
    (tasks: Task[]) => [...tasks].reverse(),
    /from 16 rows to rows with other content or in another order/,
  ],
  [
    "another answer",
    (tasks: Task[]) => tasks.map((task, i) => (i === 7 ? { ...task, metadata: { answer: "a" } } : task)),
    /rows with other content/,
  ],
])("a resumed run warns of data with %s", async (_, change, message) => {
  const stopped = fileRun("data");
  await train({ ...stopped.run, signal: abortAtDraw(stopped.backend, 7) });
  for (const isChanged of [false, true]) {
    const said: string[] = [];
    const { run } = fileRun("data");
    const tasks = isChanged ? { ...run.tasks, train: change([...run.tasks.train]) } : run.tasks;
    const warn = (text: string) => void said.push(text);
    await train({ ...run, tasks, warn, signal: AbortSignal.abort() });
    if (isChanged) expect(said.join()).toMatch(message);
    else expect(said).toEqual([]);
  }
});

test("a logger added on resume does not change the others' positions", async () => {
  const stopped = fileRun("loggers");
  await train({ ...stopped.run, signal: abortAtDraw(stopped.backend, 7) });
  const resumed = fileRun("loggers");
  const other = new MetricsFile(join(resumed.folder, "other.jsonl"));
  await train({ ...resumed.run, loggers: [other, ...resumed.run.loggers!] });
  const whole = fileRun("whole");
  await train(whole.run);
  expect(await resumed.lines()).toBe(await whole.lines());
});

test("a half-written folder is not a checkpoint", async () => {
  const { run, checkpoints, folder } = fileRun("crash");
  await train(run);
  const temporary = join(folder, ".writing-global_step_99");
  await checkpoints.save("global_step_12", {
    state: (await checkpoints.find())!.state,
    write: (at) => new TableBackend(LETTERS).save(at),
  });
  await writeFile(temporary, "");
  expect(await checkpoints.latest()).toBe("global_step_12");
});

test("resume modes", async () => {
  const { run, folder } = fileRun("modes");
  await train(run);
  const step = async (options: Options) => (await fileRun("modes", options).checkpoints.find())?.state.step;
  expect(await step({ resumeMode: "auto" })).toBe(12);
  expect(await step({ resumeMode: "disable" })).toBeUndefined();
  expect(await step({ resumeMode: "resume_path", resumeFrom: join(folder, "global_step_6") })).toBe(6);
  await rm(join(folder, "global_step_12"), { recursive: true });
  expect(await step({ resumeMode: "auto" })).toBe(9);
  await expect(step({ resumeMode: "resume_path", resumeFrom: dir })).rejects.toThrow(/not a checkpoint of grpu train/);
});

test("resume_path continues exactly from an earlier checkpoint", async () => {
  const whole = fileRun("whole");
  await train(whole.run);
  const other = fileRun("other", {
    resumeMode: "resume_path",
    resumeFrom: join(whole.folder, "global_step_6"),
  });
  await train(other.run);
  expect(other.backend.text()).toBe(whole.backend.text());
});

test.each([
  [[], "run.1"],
  [["run.1"], "run.2"],
  [["run.3"], "run.4"],
  [["run.9", "run.10", "run.2"], "run.11"],
  [["run.old", "run", "runs.7", "run.1.tar"], "run.1"],
])("next to %j an earlier run is renamed to %s", async (siblings, place) => {
  for (const name of siblings) await mkdir(join(dir, name));
  expect(await placeAside(join(dir, "run"))).toBe(join(dir, place));
});

test("the reference of the KL term is frozen only at the start, not on resume", async () => {
  const frozenAt: number[] = [];
  const open = () => {
    const made = fileRun("kl", {}, { ...SETTINGS, algorithm: { kl_beta: 0.1 } });
    Object.assign(made.backend, { freezeReference: () => void frozenAt.push(made.backend.weightVersion) });
    return made;
  };
  const stopped = open();
  const { state } = await train({ ...stopped.run, signal: abortAtDraw(stopped.backend, 7) });
  expect(state.step).toBeGreaterThan(0);
  await train(open().run);
  expect(frozenAt).toEqual([5]);
});

test("a run killed before its first checkpoint restarts its log", async () => {
  const whole = fileRun("whole");
  await train(whole.run);
  const killed = fileRun("killed");
  killed.backend.sample = async () => {
    throw new Error("killed");
  };
  await expect(train(killed.run)).rejects.toThrow("killed");
  expect(await killed.lines()).toContain('"phase":"warmup"');
  const again = fileRun("killed");
  await train(again.run);
  expect(await again.lines()).toBe(await whole.lines());
});
