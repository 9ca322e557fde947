import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import { MetricsFile } from "../../../src/train/log/loggers/jsonl.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import { train } from "../../../src/train/loop/train.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../../fixtures/loop.ts";

const dir = temporaryFolder("warm");

const SETTINGS = { ...LETTER_SETTINGS, warmup: { steps: 5, batch_size: 4, learning_rate: 1 } };

function fileRun(name: string, trainer: object, keep?: number) {
  const folder = join(dir, name);
  const made = letterRun({
    settings: { ...SETTINGS, trainer: { ...SETTINGS.trainer, ...trainer } },
    examples: Array.from(LETTERS, (letter) => ({ prompt: letter, response: letter })),
    checkpoints: new FolderCheckpoints<LoopState>(folder, { resumeMode: "auto", keep }),
    loggers: [new MetricsFile(join(folder, "metrics.jsonl"))],
  });
  const lines = () => readFileSync(join(folder, "metrics.jsonl"), "utf8").replace(/"(time|perf)\/[^"]*":[^,}]*,?/g, "");
  return { ...made, folder, lines };
}

test.each([
  ["at the first validation", {}],
  ["in step 1", { val_before_train: false }],
])("a run that dies %s resumes after its warm-up, and ends with the same bits", async (what, trainer) => {
  const name = what.replaceAll(" ", "_");
  const whole = fileRun(`${name}_whole`, trainer);
  await train(whole.run);
  const killed = fileRun(name, trainer);
  killed.backend.sample = () => Promise.reject(new Error("killed"));
  await expect(train(killed.run)).rejects.toThrow("killed");
  expect(existsSync(join(killed.folder, "warmup_step_5"))).toBe(true);

  const resumed = fileRun(name, trainer);
  const draw = resumed.backend.sample.bind(resumed.backend);
  let stepsBefore: number | undefined;
  resumed.backend.sample = (requests, options) => {
    stepsBefore ??= resumed.backend.batches.length;
    return draw(requests, options);
  };
  await train(resumed.run);
  expect(stepsBefore).toBe(0);
  expect(resumed.backend.text()).toBe(whole.backend.text());
  expect(resumed.lines()).toBe(whole.lines());
});

test("the warm-up's checkpoint counts as the oldest of those kept", async () => {
  const { run, folder } = fileRun("kept", {}, 1);
  await train(run);
  expect(existsSync(join(folder, "warmup_step_5"))).toBe(false);
  expect(existsSync(join(folder, "global_step_12"))).toBe(true);
});
