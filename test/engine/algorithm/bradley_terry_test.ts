/** A reward model's loss: TRL's formula on each device, sizes, parts of a step, and what is refused. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import {
  type RewardModelSpec,
  rewardModelLoss,
  type ScoredPairs,
} from "../../../src/engine/algorithm/preference/bradley_terry.ts";
import { computeRewardModelLoss, type ScoreLosses } from "../../../src/engine/algorithm/run.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { floats } from "../../fixtures/numbers.ts";
import { F32, F64, furthest } from "./golden.ts";

interface Golden extends ScoredPairs {
  readonly scores: number[];
  readonly spec: RewardModelSpec;
  readonly loss: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly dscores: ArrayLike<number>;
}

/** Of test/fixtures/preference/make_bradley_terry.py. */
const GOLDEN = JSON.parse(
  readFileSync(new URL("../../fixtures/preference/bradley_terry.json", import.meta.url), "utf8"),
) as Golden[];

function expectEqual(
  got: ScoreLosses,
  want: Pick<Golden, "loss" | "metrics" | "dscores">,
  tolerance: typeof F64,
): void {
  expect(furthest([got.loss], [want.loss], tolerance)).toBeUndefined();
  expect(furthest(got.dscores, want.dscores, tolerance)).toBeUndefined();
  expect(Object.keys(got.metrics).sort()).toEqual(Object.keys(want.metrics).sort());
  for (const [name, value] of Object.entries(want.metrics))
    expect(furthest([got.metrics[name]!], [value], tolerance), name).toBeUndefined();
}

test.each(GOLDEN)("$scores.length scores with $spec in float64 equal the figures", ({ spec, ...golden }) => {
  expectEqual(rewardModelLoss(golden, spec), golden, { ...F64, absolute: 1e-12 });
});

overDevices("a reward model's loss", (device) => {
  test.each(GOLDEN)("of $scores.length scores with $spec equals the figures", async ({ spec, ...golden }) => {
    expectEqual(await computeRewardModelLoss(golden, spec, { device }), golden, F32);
  });

  test.each([1, 65, 65_536])("of %i pairs, each with its own gradient", async (count) => {
    const scores = floats(2 * count, 3);
    const spec = { center_rewards_coefficient: 0.1, global_batch_size: 1 };
    expectEqual(await computeRewardModelLoss({ scores }, spec, { device }), rewardModelLoss({ scores }, spec), {
      relative: 2e-5,
      absolute: 1e-4,
    });
  });
});

test("a step split between pairs adds up to the whole one", () => {
  const { spec, scores, margins } = GOLDEN[3]!;
  const whole = rewardModelLoss({ scores, margins }, spec);
  const step = { ...spec, global_batch_size: 67 };
  const parts = [
    [0, 20],
    [20, 67],
  ].map(([from, to]) =>
    rewardModelLoss({ scores: scores.slice(2 * from!, 2 * to!), margins: Array.from(margins!).slice(from, to) }, step),
  );
  expect(parts.reduce((sum, { loss }) => sum + loss, 0)).toBeCloseTo(whole.loss, 12);
  expect(parts.flatMap(({ dscores }) => [...dscores])).toEqual([...whole.dscores]);
});

describe("what cannot be used is refused with its name", () => {
  test.each<[string, ScoredPairs, RewardModelSpec, RegExp]>([
    ["an odd score", { scores: [1, 2, 3] }, {}, /scores come in pairs.*there are 3/],
    ["no score", { scores: [] }, {}, /there are 0/],
    ["margins of other pairs", { scores: [1, 2], margins: [1, 2] }, {}, /one finite number per pair \(2 of 1\)/],
    ["a margin of NaN", { scores: [1, 2], margins: [Number.NaN] }, {}, /one finite number per pair/],
    ["a coefficient below 0", { scores: [1, 2] }, { center_rewards_coefficient: -1 }, /a number from 0 \(-1\)/],
    ["a score of NaN", { scores: [1, Number.NaN] }, {}, /score of row 1 is not finite \(NaN\)/],
  ])("%s", (_, pairs, spec, message) => {
    expect(() => rewardModelLoss(pairs, spec)).toThrow(message);
  });
});
