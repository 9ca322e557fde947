/** What a run needs of its critic, checked before the first step. */
import { describe, expect, test } from "vitest";
import type { Backend } from "../../../src/engine/contract/backend.ts";
import { checkCritic } from "../../../src/train/loop/check_settings.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";

const backend = (hasCritic: boolean) => ({ name: "table", ...(hasCritic && { critic: {} }) }) as Backend;
const settingsWith = (betas: unknown) => loopSettings({ critic: { optim: { betas } } } as never);

describe("the decays of its optimiser", () => {
  test.each([[[0, 0]], [[0.9, 0.999]], [[0.5, 0]]])("may be %j", (betas) => {
    expect(() => checkCritic(settingsWith(betas), backend(false))).not.toThrow();
  });

  test.each([
    [[1, 0.9]],
    [[0.9, 1]],
    [[-0.1, 0.9]],
    [["0.9", 0.9]],
    [[0.9]],
    [[0.9, 0.9, 0.9]],
    [0.9],
    [[Number.NaN, 0.9]],
  ])("may not be %j", (betas) => {
    expect(() => checkCritic(settingsWith(betas), backend(true))).toThrow(
      expect.objectContaining({ path: "critic.optim.betas", message: expect.stringContaining("two numbers from 0") }),
    );
  });
});

test("an estimator that reads values needs one, but not to validate alone", () => {
  const gae = { algorithm: { adv_estimator: "gae" } } as const;
  expect(() => checkCritic(loopSettings(gae), backend(true))).not.toThrow();
  expect(() => checkCritic(loopSettings({ ...gae, trainer: { val_only: true } }), backend(false))).not.toThrow();
  expect(() => checkCritic(loopSettings(), backend(false))).not.toThrow();
  expect(() => checkCritic(loopSettings(gae), backend(false))).toThrow(
    expect.objectContaining({
      path: "rllm.algorithm.adv_estimator",
      message: expect.stringMatching(/^Cannot estimate gae: the backend table has no critic/),
    }),
  );
});
