/** GDPO beside verl's own function, whose figures test/fixtures/gdpo/make.py records, and what it refuses. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import type { AdvantageBatch } from "../../../src/engine/algorithm/advantage/definition.ts";
import { numberGroups, packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages, perToken } from "../../../src/engine/algorithm/advantage/host.ts";
import { computeAdvantages } from "../../../src/engine/algorithm/run.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { F64, furthest, offsetsOf } from "./golden.ts";

interface Case {
  readonly groups: string[];
  readonly mask: number[][];
  readonly components: Record<string, number[]>;
  readonly settings: { gdpo_reward_keys: string[]; gdpo_reward_weights: number[] | null };
  readonly advantages: number[][];
}

const CASES = JSON.parse(
  readFileSync(new URL("../../fixtures/gdpo/cases.json", import.meta.url), "utf8"),
) as readonly Case[];

function batchOf({ groups, mask, components }: Case): AdvantageBatch {
  const { groupOfRow, names } = numberGroups(groups);
  return {
    offsets: offsetsOf(mask.map((row) => ({ mask: row }))),
    mask: Uint32Array.from(mask.flat()),
    groups: packGroups(groupOfRow, names.length),
    // Their sum, which must not matter.
    scores: groups.map((_, i) => Object.values(components).reduce((sum, each) => sum + each[i]!, 0)),
    rewardComponents: components,
  };
}

test.each(CASES)("$settings in float64", (golden) => {
  const batch = batchOf(golden);
  const got = perToken(batch, advantages(batch, "gdpo", golden.settings)).advantages;
  expect(furthest([...got], golden.advantages.flat(), F64)).toBeUndefined();
});

overDevices("components", (device) => {
  test.each(CASES)("$settings", async (golden) => {
    const batch = batchOf(golden);
    const { advantages: got } = await computeAdvantages(batch, "gdpo", { device, settings: golden.settings });
    expect(furthest([...got], golden.advantages.flat(), F64)).toBeUndefined();
  });
});

describe("without keys", () => {
  const { components, ...rest } = CASES[0]!;
  const batch = batchOf({ components, ...rest });

  test("all components count, in any order", () => {
    const all = advantages(batch, "gdpo").values;
    const named = advantages(batch, "gdpo", { gdpo_reward_keys: Object.keys(components) }).values;
    expect([...all]).toEqual([...named]);
  });

  test("and components the scores count", () => {
    const { rewardComponents: _, ...bare } = batch;
    const alone = { ...bare, rewardComponents: { all: bare.scores } };
    expect([...advantages(bare, "gdpo").values]).toEqual([...advantages(alone, "gdpo").values]);
  });
});

test("a key without a component and another number of weights are refused", () => {
  const batch = batchOf(CASES[0]!);
  expect(() => advantages(batch, "gdpo", { gdpo_reward_keys: ["accuracy", "style"] })).toThrow(
    /Cannot estimate gdpo: it needs rewardComponents\.style/,
  );
  expect(() => advantages(batch, "gdpo", { gdpo_reward_keys: ["accuracy"], gdpo_reward_weights: [1, 2] })).toThrow(
    /a weight for each of 1 rewards \(2\)/,
  );
});
