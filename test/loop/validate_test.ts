import { expect, test } from "vitest";
import type { Episode } from "../../src/data/types.ts";
import { train } from "../../src/loop/train.ts";
import { passAtK, passRates } from "../../src/loop/validate.ts";
import { letterRun } from "../fixtures/loop.ts";

/** Every way to choose k of the attempts, counted. */
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

test("passAtK() of many attempts does not overflow, and of too few says whether any is correct", () => {
  expect(passAtK(100, { attempts: 10_000, correct: 1 })).toBeCloseTo(0.01, 12);
  expect(passAtK(8, { attempts: 3, correct: 1 })).toBe(1);
  expect(passAtK(8, { attempts: 3, correct: 0 })).toBe(0);
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

test("passRates() are by data source, under the published names", () => {
  const outcomes = {
    gsm: [
      [1, 0, 0, 0],
      [0, 0, 0, 0],
    ],
    math: [[1, 1, 1, 1]],
  };
  const episodes = Object.entries(outcomes).flatMap(([source, tasks], s) =>
    tasks.flatMap((tries, t) =>
      tries.map((correct, rollout) =>
        episode(source, { task: s * 10 + t, rollout, is_correct: correct === 1 }),
      ),
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

test("val_only works alone, without val_before_train, and trains nothing", async () => {
  const settings = { rollout: { n_val: 3 }, trainer: { val_only: true, val_before_train: false } };
  const { run, backend, log } = letterRun({ settings });
  const outcome = await train(run);
  expect(outcome).toMatchObject({ isComplete: true, state: { step: 0, validated: 0 } });
  expect(log.records.map(({ phase }) => phase)).toEqual(["val"]);
  expect(Object.keys(log.records[0].metrics)).toEqual(
    expect.arrayContaining([
      "val/copy/pass@1",
      "val/copy/pass@2",
      "val/copy/pass@3",
      "val/reward/copier/mean",
    ]),
  );
  expect(backend.weightVersion).toBe(0);
});
