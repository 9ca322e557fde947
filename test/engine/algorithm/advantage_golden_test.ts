import { describe, expect, test } from "vitest";
import type { AdvantageBatch, AdvantageBuffers } from "../../../src/engine/algorithm/advantage/definition.ts";
import { recordAdvantages } from "../../../src/engine/algorithm/advantage/device.ts";
import { numberGroups, packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages, groupAdvantages, perToken } from "../../../src/engine/algorithm/advantage/host.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { type Buffer, type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { BATCHES, F32, F64, furthest, type GoldenRow, offsetsOf, pack, readGolden, readRows } from "./golden.ts";

interface AdvantageCase {
  estimator: string;
  params: Record<string, number | boolean | number[]>;
  advantages: number[][];
  returns: number[][];
}

function batchOf(rows: readonly GoldenRow[], golden: AdvantageCase): AdvantageBatch {
  const { groupOfRow, names } = numberGroups(rows.map(({ group }) => group));
  return {
    offsets: offsetsOf(rows),
    mask: Uint32Array.from(pack(rows, "mask")),
    groups: packGroups(groupOfRow, names.length),
    scores: rows.map(({ reward }) => reward),
    tokenRewards: pack(rows, "token_rewards"),
    values: pack(rows, "values"),
    oldLogprobs: pack(rows, "old_logprobs"),
    sumPiSquared: pack(rows, "sum_pi_squared"),
    rewardBaselines: golden.params.reward_baselines as number[] | undefined,
  };
}

function settingsOf({ params }: AdvantageCase) {
  const { reward_baselines: _, ...settings } = params;
  return settings as Record<string, number | boolean>;
}

/** verl's grpo_vectorized computes in float32 whatever it is given. */
const FROM_F32 = { relative: 1e-6, absolute: 1e-7 };

const trained = (values: ArrayLike<number>, mask: Uint32Array) => Array.from(values).filter((_, t) => mask[t] !== 0);

describe.each(BATCHES)("advantages in float64 equal the published ones on %s", (name) => {
  const rows = readRows(name);
  const cases = readGolden<AdvantageCase[]>(`${name}.advantages.json`);
  test.each(cases.map((c) => ({ title: `${c.estimator} ${JSON.stringify(settingsOf(c))}`, c })))("$title", ({ c }) => {
    const batch = batchOf(rows, c);
    const got = perToken(batch, advantages(batch, c.estimator, settingsOf(c)));
    const tolerance = c.estimator === "grpo_vectorized" ? FROM_F32 : F64;
    const at = (values: ArrayLike<number>) => trained(values, batch.mask);
    expect(furthest(at(got.advantages), at(c.advantages.flat()), tolerance)).toBeUndefined();
    expect(furthest(at(got.returns), at(c.returns.flat()), tolerance)).toBeUndefined();
  });
});

const uploadable = (device: Device, batch: AdvantageBatch): AdvantageBuffers => {
  const floats = (data: ArrayLike<number> | undefined) => data && device.upload(Float32Array.from(data), "input");
  return {
    scores: floats(batch.scores),
    tokenRewards: floats(batch.tokenRewards),
    mask: device.upload(batch.mask, "mask"),
    offsets: device.upload(batch.offsets, "offsets"),
    values: floats(batch.values),
    rewardBaselines: floats(batch.rewardBaselines),
    oldLogprobs: floats(batch.oldLogprobs),
    sumPiSquared: floats(batch.sumPiSquared),
  };
};

overDevices("advantages equal the published ones", (device) => {
  describe.each(BATCHES)("on %s", (name) => {
    const rows = readRows(name);
    const cases = readGolden<AdvantageCase[]>(`${name}.advantages.json`);
    test.each(cases.map((c) => ({ title: `${c.estimator} ${JSON.stringify(settingsOf(c))}`, c })))(
      "$title",
      async ({ c }) => {
        const batch = batchOf(rows, c);
        const buffers = uploadable(device, batch);
        const { groups } = batch;
        const counts = countRows(batch.offsets, batch.mask);
        const recorded = recordAdvantages(device, c.estimator, {
          buffers,
          groups,
          counts,
          settings: settingsOf(c),
        });
        const read = async (buffer: Buffer) => Float64Array.from(await readFloats(device, buffer));
        const estimate = {
          level: recorded.advantages.level,
          values: await read(recorded.advantages.values),
          returns: recorded.returns && (await read(recorded.returns)),
        };
        recorded.release();
        device.release(...Object.values(buffers).filter((buffer) => buffer !== undefined));
        const got = perToken(batch, estimate);
        const at = (values: ArrayLike<number>) => trained(values, batch.mask);
        expect(furthest(at(got.advantages), at(c.advantages.flat()), F32)).toBeUndefined();
        expect(furthest(at(got.returns), at(c.returns.flat()), F32)).toBeUndefined();
      },
    );
  });
});

describe("advantages equal rLLM's", () => {
  const golden = readGolden<{ rewards: number[][]; expected: Record<string, number[][]> }>("rllm.advantages.json");
  const names: Record<string, [string, Record<string, boolean>]> = {
    grpo: ["rllm.grpo", {}],
    grpo_no_std: ["rllm.grpo", { norm_adv_by_std_in_grpo: false }],
    rloo: ["rloo", {}],
    reinforce: ["reinforce", {}],
    reinforce_plus_plus_baseline: ["rllm.reinforce_plus_plus_baseline", {}],
    prpo: ["prpo", {}],
  };
  test.each(Object.keys(golden.expected))("%s", (name) => {
    const [estimator, settings] = names[name]!;
    const got = groupAdvantages(golden.rewards, estimator, settings);
    expect(furthest(got.flat(), golden.expected[name]!.flat(), F64)).toBeUndefined();
  });
});
