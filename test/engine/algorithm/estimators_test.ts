/** Every estimator that is built in: its two forms agree on every device, and a name belongs to one of them. */
import { readdirSync } from "node:fs";
import { expect, test } from "vitest";
import type {
  AdvantageBatch,
  AdvantageBuffers,
  Estimator,
} from "../../../src/engine/algorithm/advantage/definition.ts";
import { hasAdvantageKernel, recordAdvantages } from "../../../src/engine/algorithm/advantage/device.ts";
import {
  builtInEstimators,
  estimatorNames,
  estimatorsOfVerlAndTrinity,
  registerEstimator,
  verlEstimatorNames,
} from "../../../src/engine/algorithm/advantage/estimators.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages } from "../../../src/engine/algorithm/advantage/host.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { F32, furthest } from "./golden.ts";
import { randomBatch } from "./random_batch.ts";

const random = randomBatch(5, { rows: 12, longest: 20 });
const batch: AdvantageBatch = {
  ...random,
  oldLogprobs: random.oldLogprobs!,
  groups: packGroups(
    Uint32Array.from({ length: 12 }, (_, row) => row % 3),
    3,
  ),
};
/** A boolean setting the other way. */
const CASES = builtInEstimators().flatMap(({ name, settings }) => [
  { name, settings: {} },
  ...Object.entries(settings)
    .filter(([, value]) => typeof value === "boolean")
    .map(([key, value]) => ({ name, settings: { [key]: !value } })),
]);

overDevices("the host form and the device's", (device) => {
  test.each(CASES)("of $name $settings agree", async ({ name, settings }) => {
    expect(hasAdvantageKernel(name)).toBe(true);
    const want = advantages(batch, name, settings);
    const upload = (of: ArrayLike<number>, label: string) => device.upload(Float32Array.from(of), label);
    const buffers: AdvantageBuffers = {
      scores: upload(random.scores, "scores"),
      mask: device.upload(batch.mask, "mask"),
      offsets: device.upload(batch.offsets, "offsets"),
      values: upload(random.values, "values"),
      tokenRewards: upload(random.tokenRewards, "rewards"),
      rewardBaselines: upload(random.rewardBaselines, "baselines"),
      oldLogprobs: upload(batch.oldLogprobs!, "old"),
      sumPiSquared: upload(random.sumPiSquared, "power"),
    };
    const counts = countRows(batch.offsets, batch.mask);
    const got = recordAdvantages(device, name, { buffers, groups: batch.groups, counts, settings });
    expect(got.advantages.level).toBe(want.level);
    expect(
      furthest(await readFloats(device, got.advantages.values, want.values.length), want.values, F32),
    ).toBeUndefined();
    if (got.returns)
      expect(furthest(await readFloats(device, got.returns, batch.mask.length), want.returns!, F32)).toBeUndefined();
    expect([...want.values].some((value) => value !== 0)).toBe(true);
    got.release();
  });
});

test("each has a description and a source, and each file an estimator", () => {
  for (const { name, describe, sources } of builtInEstimators()) {
    expect(describe, name).toMatch(/\w/);
    expect(sources?.length, name).toBeGreaterThan(0);
  }
  const folder = new URL("../../../src/engine/algorithm/advantage/estimators/", import.meta.url);
  const files = readdirSync(folder).map((file) => file.replace(".ts", ""));
  // What two of them share.
  expect(files.filter((file) => file !== "returns").length).toBeLessThanOrEqual(builtInEstimators().length);
  expect(new Set(estimatorNames()).size).toBe(estimatorNames().length);
});

test.each(builtInEstimators().map(({ name }) => name))("another one named %s is refused", (name) => {
  const other: Estimator = {
    ...{ name, settings: {}, scope: "row" },
    estimate: () => ({ level: "row", values: new Float64Array() }),
  };
  expect(() => registerEstimator(other)).toThrow(name);
});

test("verl's and Trinity's names are those of the estimators", () => {
  expect([...verlEstimatorNames()].sort()).toEqual(
    [
      ...["gae", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo", "optimal_token_baseline"],
      ...["reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "rloo_vectorized"],
      "tir_optimal_token_baseline",
    ].sort(),
  );
  expect(Object.fromEntries(estimatorsOfVerlAndTrinity().map(([verl, ...rest]) => [verl, rest]))).toEqual({
    grpo: ["grpo", true],
    rloo: ["rloo", true],
    gae: ["ppo", true],
    reinforce_plus_plus: ["reinforceplusplus", true],
    remax: ["remax", false],
  });
});
