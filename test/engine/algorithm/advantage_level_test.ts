import { describe, expect, test } from "vitest";
import type { Estimate } from "../../../src/engine/algorithm/advantage/definition.ts";
import { registerEstimator } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages } from "../../../src/engine/algorithm/advantage/host.ts";
import { checkAdvantages } from "../../../src/engine/algorithm/advantage/level.ts";
import { type LossBatch, policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { trlWeights } from "../../../src/engine/algorithm/loss/trl_weights.ts";
import { computePolicyLoss } from "../../../src/engine/algorithm/run.ts";
import type { Advantages, TrainBatch } from "../../../src/engine/contract/backend.ts";
import type { ConfigError } from "../../../src/leaves/errors.ts";
import { hostLoss, serviceLoss } from "../../../src/train/backend/tinker/service_loss.ts";
import { perRow, perToken } from "../../fixtures/advantages.ts";
import { overDevices } from "../../fixtures/devices.ts";

/** An empty rollout beside one of two tokens: as many rows as tokens. */
const ROWS = { offsets: Uint32Array.of(0, 0, 2), mask: Uint32Array.of(1, 1), logprobs: [-1, -2] };
const SPEC = { name: "vanilla", loss_agg_mode: "token-mean", settings: {} };

const READINGS: readonly [string, Advantages, readonly number[]][] = [
  ["token", perToken(1, -1), [-0.5, 0.5]],
  ["row", perRow(1, -1), [0.5, 0.5]],
];

/** As many again, without ties. */
const FOUR = {
  offsets: Uint32Array.of(0, 0, 2, 2, 4),
  mask: Uint32Array.of(1, 1, 1, 1),
  logprobs: [-1, -2, -0.5, -1.75],
  oldLogprobs: [-1.1, -1.9, -0.55, -2],
};

/** Losses that read advantages in each of the kernels: the pass, the row statistics, the selection. */
const LOSSES = ["vanilla", "geo_mean", "clip_cov", "kl_cov", "trl.luspo"];

describe("as many rows as tokens", () => {
  test.each(READINGS)("the host reads the level %s", (_, advantages, slopes) => {
    expect([...policyLoss({ ...ROWS, advantages }, SPEC).dlogprobs]).toEqual(slopes);
  });

  test.each(READINGS)("the level %s reaches a Tinker service", (_, advantages, slopes) => {
    const batch = { ...ROWS, advantages, tokens: Uint32Array.of(1, 2), oldLogprobs: Float32Array.of(-1, -2) };
    const loss = serviceLoss(batch, { ...SPEC, name: "ppo", entropy_coeff: 0, temperature: 1 });
    expect(Array.from(loss!.inputs.advantages!, (a) => -a)).toEqual(slopes);
  });

  overDevices("on a device", (device) => {
    test.each(READINGS)("the level %s is read", async (_, advantages, slopes) => {
      const { dlogprobs } = await computePolicyLoss({ ...ROWS, advantages }, SPEC, { device });
      expect([...dlogprobs]).toEqual(slopes);
    });

    test.each(LOSSES)("%s reads both levels and equals the host", async (name) => {
      for (const advantages of [perRow(9, 1, 9, -0.5), perToken(1, -0.5, 2, -1)]) {
        const batch = { ...FOUR, advantages };
        const [got, want] = [
          await computePolicyLoss(batch, { ...SPEC, name }, { device }),
          policyLoss(batch, { ...SPEC, name }),
        ];
        for (const [t, slope] of want.dlogprobs.entries())
          expect(got.dlogprobs[t], advantages.level).toBeCloseTo(slope, 5);
      }
    });

    test("a bare array is refused before anything is uploaded", async () => {
      const before = device.memory.live;
      const batch = { ...ROWS, advantages: [1, -1] } as unknown as LossBatch;
      await expect(computePolicyLoss(batch, SPEC, { device })).rejects.toThrow(/array of 2 numbers/);
      expect(device.memory.live).toBe(before);
    });
  });
});

test("the weights of a supervised batch replace its advantages", () => {
  const batch = {
    ...ROWS,
    tokens: Uint32Array.of(1, 2),
    advantages: perRow(7, 7),
    weights: Float32Array.of(0.5, 2),
  };
  const spec = {
    ...SPEC,
    name: "cross_entropy",
    loss_agg_mode: "token-sum",
    entropy_coeff: 0,
    temperature: 1,
  };
  expect(serviceLoss(batch, spec)?.inputs.weights).toEqual(batch.weights);
  expect([...hostLoss(batch, spec, Float32Array.of(-1, -2)).dlogprobs]).toEqual([-0.5, -2]);
});

const THREE = {
  ...ROWS,
  offsets: Uint32Array.of(0, 1, 3),
  mask: Uint32Array.of(1, 1, 1),
  logprobs: [-1, -1, -1],
};

const REFUSED: readonly [string, unknown, RegExp][] = [
  ["an array", [1, -1], /an array of 2 numbers does not say whether they are per row or per token\. Give \{ level/],
  ["a typed array", Float32Array.of(1, 2, 3), /an array of 3 numbers/],
  [
    "a row too many",
    perRow(1, 2, 3),
    /level "row" needs one value per row \(2\), and there are 3\. The batch has 2 rows and 3 tokens/,
  ],
  [
    "a token too few",
    perToken(1, 2),
    /level "token" needs one value per token \(3\), and there are 2\. The batch has 2 rows and 3 tokens/,
  ],
  ["another level", { level: "tokens", values: [1] }, /there is no level "tokens"/],
  ["no level", { values: [1, 2] }, /there is no level undefined/],
  ["no values", { level: "row" }, /level "row" needs one value per row \(2\), and there are none/],
  ["null for values", { level: "row", values: null }, /level "row" needs one value per row \(2\), and there are none/],
  ["nothing", undefined, /there is no level undefined/],
];

let careless: Estimate;
registerEstimator({ name: "careless", settings: {}, scope: "row", estimate: () => careless });

describe.each(REFUSED)("%s is refused", (_, given, message) => {
  const advantages = given as Advantages;

  test("by the loss", () => {
    expect(() => policyLoss({ ...THREE, advantages }, SPEC)).toThrow(message);
  });

  test("by the loss for a Tinker service", () => {
    const batch = { ...THREE, advantages, tokens: Uint32Array.of(1, 2, 3) } as unknown as TrainBatch;
    expect(() => serviceLoss(batch, { ...SPEC, name: "ppo", entropy_coeff: 0, temperature: 1 })).toThrow(message);
  });

  test.skipIf(given === undefined)("by TRL's weights", () => {
    const batch = { ...THREE, rolloutLogprobs: [0, 0, 0], advantages };
    expect(() => trlWeights(batch, { off_policy_mask_threshold: 1 })).toThrow(message);
  });

  test("from an estimator, which is named", () => {
    careless = given as Estimate;
    const batch = { ...THREE, groups: packGroups(Uint32Array.of(0, 0), 1), scores: [1, 0] };
    expect(() => estimated(batch)).toThrow(message);
    expect(() => estimated(batch)).toThrow(/Cannot take advantages from the estimator careless: /);
  });
});

test("a refusal names whose advantages they are, and is an error of the caller's code", () => {
  const refusal = (from?: string) => {
    try {
      checkAdvantages(perRow(1), { rows: 2, tokens: 3, from });
    } catch (error) {
      return error as ConfigError;
    }
    return undefined;
  };
  expect(refusal()?.message).toMatch(/^Cannot take advantages: level "row" needs/);
  expect(refusal("my stage")?.message).toMatch(/^Cannot take advantages from my stage: level "row" needs/);
  expect(refusal()).toMatchObject({ kind: "code", path: "advantages" });
});

function estimated(batch: Parameters<typeof advantages>[0]) {
  return advantages(batch, "careless");
}
