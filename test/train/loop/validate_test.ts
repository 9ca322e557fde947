import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import type { Episode } from "../../../src/train/data/types.ts";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import type { LoopSettings, Partly } from "../../../src/train/loop/settings.ts";
import { train } from "../../../src/train/loop/train.ts";
import { passAtK, passRates } from "../../../src/train/loop/validate.ts";
import { LETTER_SETTINGS, letterRun } from "../../fixtures/loop.ts";

/** Counts every way to choose k of the attempts. */
function byCounting(k: number, outcomes: readonly boolean[]): number {
  let [subsets, solved] = [0, 0];
  for (let bits = 0; bits < 1 << outcomes.length; bits++) {
    const chosen = outcomes.filter((_, i) => (bits >> i) & 1);
    if (chosen.length !== k) continue;
    subsets++;
    if (chosen.some(Boolean)) solved++;
  }
  return solved / subsets;
}

test("passAtK() is the share of k-subsets with a correct attempt", () => {
  for (let attempts = 1; attempts <= 8; attempts++) {
    for (let correct = 0; correct <= attempts; correct++) {
      const outcomes = Array.from({ length: attempts }, (_, i) => i < correct);
      for (let k = 1; k <= attempts; k++) {
        expect(passAtK(k, { attempts, correct }), `${k} of ${attempts}, ${correct} correct`).toBeCloseTo(
          byCounting(k, outcomes),
          12,
        );
      }
    }
  }
});

test("passAtK() of many attempts does not overflow; of too few it is whether any is correct", () => {
  expect(passAtK(100, { attempts: 10_000, correct: 1 })).toBeCloseTo(0.01, 12);
  expect(passAtK(8, { attempts: 3, correct: 1 })).toBe(1);
  expect(passAtK(8, { attempts: 3, correct: 0 })).toBe(0);
  // Of three attempts two are correct, and four were asked for.
  expect(passAtK(4, { attempts: 3, correct: 2 })).toBe(1);
});

function episode(source: string, at: { task: number; rollout: number; is_correct: boolean }): Episode {
  return {
    id: `${at.task}:${at.rollout}`,
    task: { id: String(at.task), instruction: "?", metadata: { data_source: source } },
    task_index: at.task,
    rollout_index: at.rollout,
    termination_reason: "env_done",
    is_correct: at.is_correct,
    trajectories: [],
    metrics: { turns: at.rollout },
    metadata: {},
  };
}

test("passRates() groups by data source, under the published names", () => {
  const outcomes = {
    gsm: [
      [1, 0, 0, 0],
      [0, 0, 0, 0],
    ],
    math: [[1, 1, 1, 1]],
  };
  const episodes = Object.entries(outcomes).flatMap(([source, tasks], s) =>
    tasks.flatMap((tries, t) =>
      tries.map((correct, rollout) => episode(source, { task: s * 10 + t, rollout, is_correct: correct === 1 })),
    ),
  );
  expect(passRates(episodes, 4)).toEqual({
    "val/gsm/pass@1": 0.125,
    "val/gsm/pass@2": 0.25,
    "val/gsm/pass@4": 0.5,
    "val/gsm/turns": 1.5,
    "val/math/pass@1": 1,
    "val/math/pass@2": 1,
    "val/math/pass@4": 1,
    "val/math/turns": 1.5,
  });
});

/** The draws and scores of a run's validations. */
async function validations(settings: Partly<LoopSettings>) {
  const { run, log } = letterRun({
    settings: {
      ...LETTER_SETTINGS,
      rollout: { n: 8, n_val: 4, train: { max_tokens: 2 }, val: { max_tokens: 2, temperature: 1 } },
      ...settings,
    },
  });
  await train(run);
  return log.of("val").map(({ metrics, episodes }) => ({
    passes: Object.entries(metrics).filter(([name]) => name.includes("pass@")),
    responses: episodes!.map(({ trajectories }) => trajectories[0]!.steps[0]!.response_ids),
  }));
}

test.each([1, 3, 4, 8, 100])("a validation in batches of %i tasks equals one of all tasks", async (size) => {
  const trainer = { total_batches: 8, test_freq: 8 };
  const whole = await validations({ trainer });
  const [one, two] = whole[1]!.passes.map(([, rate]) => rate) as [number, number];
  expect(two).toBeGreaterThan(one);
  expect(two).toBeLessThan(1);
  expect(whole[0]!.passes.map(([name]) => name)).toEqual(["val/copy/pass@1", "val/copy/pass@2", "val/copy/pass@4"]);
  expect(whole[0]!.responses).toHaveLength(32);
  const data = { train_batch_size: 4, val_batch_size: size };
  expect(await validations({ trainer, data })).toEqual(whole);
});

test("validations of the same weights draw the same, at any step", async () => {
  const training = { learning_rate: 0, seed: 1 };
  const drawn = await validations({ trainer: { total_batches: 3, test_freq: 1 }, training });
  expect(drawn).toHaveLength(4);
  for (const each of drawn) expect(each).toEqual(drawn[0]);
  const tries = drawn[0]!.responses.slice(0, 4).map(String);
  expect(new Set(tries).size).toBeGreaterThan(1);
});

test("val_only works alone, without val_before_train, and trains nothing", async () => {
  const settings = { rollout: { n_val: 3 }, trainer: { val_only: true, val_before_train: false } };
  const { run, backend, log } = letterRun({ settings });
  const outcome = await train(run);
  expect(outcome).toMatchObject({ isComplete: true, state: { step: 0, validated: 0 } });
  expect(log.records.map(({ phase }) => phase)).toEqual(["val"]);
  expect(Object.keys(log.records[0]!.metrics)).toEqual(
    expect.arrayContaining(["val/copy/pass@1", "val/copy/pass@2", "val/copy/pass@3", "val/reward/copier/mean"]),
  );
  expect(backend.weightVersion).toBe(0);
});

test("val_only of a resumed run validates the checkpoint's weights every time", async () => {
  const dir = mkdtempSync(join(tmpdir(), "grpu-validate-"));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  const checkpoints = new FolderCheckpoints<LoopState>(dir, { resumeMode: "auto" });
  const trained = letterRun({ settings: LETTER_SETTINGS, checkpoints });
  const { state } = await train(trained.run);
  expect(state).toMatchObject({ step: 12, validated: 12 });
  const scores = trained.log.of("val").at(-1)?.metrics["val/copy/pass@1"];
  expect(scores).toBeGreaterThan(trained.log.of("val")[0]!.metrics["val/copy/pass@1"]!);
  for (let time = 0; time < 2; time++) {
    const records: LogRecord[] = [];
    const { run, backend } = letterRun({
      settings: { ...LETTER_SETTINGS, trainer: { ...LETTER_SETTINGS.trainer, val_only: true } },
      checkpoints,
      loggers: [{ log: (record) => void records.push(record) }],
    });
    expect(await train(run)).toMatchObject({ isComplete: true, state: { step: 12 } });
    expect(records.map(({ phase, step }) => `${phase} ${step}`)).toEqual(["val 12"]);
    expect(records[0]!.metrics["val/copy/pass@1"]).toBe(scores);
    expect(backend.batches).toEqual([]);
  }
});

test("val_only without held-out tasks is refused; a stopped one is not complete", async () => {
  const settings = { ...LETTER_SETTINGS, trainer: { val_only: true } };
  const none = letterRun({ settings });
  await expect(train({ ...none.run, tasks: { ...none.run.tasks, val: [] } })).rejects.toThrow(
    /no held-out tasks. Set data\.val_files/,
  );
  const stopped = letterRun({ settings });
  const controller = new AbortController();
  stopped.backend.sample = async () => {
    controller.abort();
    throw controller.signal.reason;
  };
  expect((await train({ ...stopped.run, signal: controller.signal })).isComplete).toBe(false);
});
