/** A reward model that scores rollouts: the scores of the model that was saved, whole or as an adapter, and what is refused. */
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { ValueModel } from "../../../src/engine/model/value_model.ts";
import { LocalRewardModel } from "../../../src/train/backend/local/reward_model.ts";
import { LocalRewardScorer } from "../../../src/train/backend/local/reward_scorer.ts";
import { devices, overDevices } from "../../fixtures/devices.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { expectClose } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const dir = temporaryFolder("reward_scorer");
const ROWS = pack([
  [1, 2, 3, 4, 5],
  [7, 8],
  [9, 10, 11],
]);
const LORA = { rank: 2, alpha: 4, targets: ["q_proj", "down_proj"] };
const OPTIM = { learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0, grad_clip_norm: 0 };

async function trainedOnce(model: LocalRewardModel): Promise<Float32Array> {
  await model.backward(ROWS, Float32Array.of(1, -1, 0.5));
  await model.optimStep(OPTIM);
  return model.scores(ROWS);
}

overDevices("the scores of a folder", (device) => {
  test("of all weights, and of an adapter with its base, are those of the model that was trained", async () => {
    const base = join(dir, `base_${device.info.kind}`);
    await saveModelFolder(base, { model: LanguageModel.create(device, SMALL_MODEL, { seed: 3 }) });
    for (const lora of [undefined, LORA]) {
      const trained = await LocalRewardModel.open(base, { device, lora, seed: 5 });
      const before = await trained.scores(ROWS);
      const scores = await trainedOnce(trained);
      expect(scores).not.toEqual(before);
      const folder = join(dir, `${lora ? "adapter" : "whole"}_${device.info.kind}`);
      await trained.save(folder);
      const scorer = await LocalRewardScorer.open(folder, { device });
      expectClose(await scorer.scores(ROWS), scores, { relative: 1e-6, absolute: 1e-7 }, folder);
      expect(scorer.vocabSize).toBe(SMALL_MODEL.vocabSize);
      scorer.close();
      trained.valueModel.release();
    }
  });
});

test("a row's score is that of its last token", async () => {
  const [device] = devices;
  const model = ValueModel.create(device!, SMALL_MODEL, { seed: 3 });
  const trained = new LocalRewardModel({ model, remake: async () => model, name: "new" });
  const all = await model.values({ ...ROWS, targets: ROWS.tokens });
  expect(await trained.scores(ROWS)).toEqual(Float32Array.of(all[4]!, all[6]!, all[9]!));
});

describe("a folder that does not score is refused", () => {
  test("a language model", async () => {
    const folder = join(dir, "policy");
    await saveModelFolder(folder, { model: LanguageModel.create(devices[0]!, SMALL_MODEL, { seed: 3 }) });
    expect((await openModelFolder(folder)).config.scoreHead).toBeUndefined();
    await expect(LocalRewardScorer.open(folder, { device: devices[0]! })).rejects.toThrow(
      /it has no scalar head \(score\.weight\)\. Train one with grpu reward-model/,
    );
  });
});
