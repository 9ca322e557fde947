import { expect, test } from "vitest";
import { trlWeights } from "../../../src/engine/algorithm/loss/trl_weights.ts";
import { perRow, perToken } from "../../fixtures/advantages.ts";

const batch = {
  offsets: Uint32Array.of(0, 3, 5),
  mask: Uint32Array.of(1, 1, 0, 1, 1),
  logprobs: [-1, -1, -1, -2, -2],
  oldLogprobs: [-1, -1, -9, -2, -1],
  rolloutLogprobs: [-1.5, -1, 0, -1, -1],
  entropy: [1, 2, 9, 3, 4],
  advantages: perRow(1, -1),
};

test("top_entropy_quantile keeps the tokens at or above the interpolated quantile of trained ones", () => {
  expect(Array.from(trlWeights(batch, { top_entropy_quantile: 0.5 }))).toEqual([0, 0, 0, 1, 1]);
  expect(Array.from(trlWeights(batch, { top_entropy_quantile: 0.25 }))).toEqual([0, 0, 0, 0, 1]);
  expect(Array.from(trlWeights(batch, {}))).toEqual([1, 1, 0, 1, 1]);
});

test("off_policy_mask_threshold drops tokens only in drifted rows, and only those of negative advantage", () => {
  expect(Array.from(trlWeights(batch, { off_policy_mask_threshold: 0.9 }))).toEqual([1, 1, 0, 0, 0]);
  expect(Array.from(trlWeights(batch, { off_policy_mask_threshold: 1.1 }))).toEqual([1, 1, 0, 1, 1]);
  const mixed = { ...batch, advantages: perToken(1, 1, 1, 1, -1) };
  expect(Array.from(trlWeights(mixed, { off_policy_mask_threshold: 0.9 }))).toEqual([1, 1, 0, 1, 0]);
});

test.each([
  ["token_truncate", 1.2, [1.2, 1, 0, Math.exp(-1), 1]],
  ["token_mask", 1.2, [0, 1, 0, Math.exp(-1), 1]],
  ["sequence_truncate", 1.2, [1.2, 1.2, 0, Math.exp(-1), Math.exp(-1)]],
  ["sequence_mask", 1.2, [0, 0, 0, Math.exp(-1), Math.exp(-1)]],
])("%s at %f", (mode, bound, want) => {
  const got = trlWeights(batch, {
    vllm_importance_sampling_mode: mode,
    vllm_importance_sampling_clip_max: bound,
  });
  for (const [t, weight] of want.entries()) expect(got[t]).toBeCloseTo(weight, 12);
});

test("an unknown mode and a missing input are refused", () => {
  expect(() => trlWeights(batch, { vllm_importance_sampling_mode: "row_mask" })).toThrow(/sequence_mask/);
  expect(() => trlWeights({ ...batch, entropy: undefined }, { top_entropy_quantile: 0.5 })).toThrow(/entropy/);
});
