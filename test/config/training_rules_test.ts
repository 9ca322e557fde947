/** Rules between settings of one kind of training: ReMax's greedy baseline. */
import { describe, expect, test } from "vitest";
import { complaints } from "./disk.ts";

describe("ReMax", () => {
  const REMAX = "rllm.algorithm.adv_estimator=remax";
  const PER_STEP = ["rllm.stepwise_advantage.enable=true", "rllm.stepwise_advantage.mode=per_step"];

  test.each<[string[], RegExp]>([
    [PER_STEP, /^Cannot estimate remax with rllm\.stepwise_advantage\.mode=per_step: .* Set .*=broadcast/],
    [
      ["rllm.rollout.train.temperature=0"],
      /^Cannot estimate remax at rllm\.rollout\.train\.temperature=0: .* Set .*=1/,
    ],
  ])("refuses %j", (overrides, message) => {
    expect(complaints([REMAX, ...overrides])).toEqual([expect.stringMatching(message)]);
    expect(complaints(["rllm.algorithm.adv_estimator=rloo", ...overrides])).toEqual([]);
  });

  test("composes for every backend that plays the greedy attempt", () => {
    for (const backend of ["local", "tinker", "verl"])
      expect(complaints([`rllm/backend=${backend}`, REMAX]), backend).toEqual([]);
  });
});
