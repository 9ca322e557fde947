import { expect, test } from "vitest";
import { validationScores } from "../../../src/train/evaluation/scores.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";
import { train } from "../../../src/train/loop/train.ts";
import { singleTurn } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, letterRun } from "../../fixtures/loop.ts";

test.each([-1, 3])(
  "validationScores() are what a validation in batches of %i logs of the same episodes",
  async (size) => {
    const data = { train_batch_size: 4, val_batch_size: size };
    const rollout = { ...LETTER_SETTINGS.rollout, n_val: 2 };
    const settings = { ...LETTER_SETTINGS, data, rollout, trainer: { total_batches: 1, test_freq: 1 } };
    // Another reward for every task, so that batches differ.
    const play = singleTurn("copier", (_, { id }) => Number(id.replace("copy-", "")) ** 2);
    const { run, log } = letterRun({ settings, rollout: play });
    await train(run);
    const records = log.of("val");
    expect(records.length).toBeGreaterThan(0);
    for (const { metrics, episodes } of records) {
      const { "time/testing": _, ...scores } = metrics;
      expect(validationScores(episodes!, loopSettings(settings))).toEqual(scores);
    }
  },
);
