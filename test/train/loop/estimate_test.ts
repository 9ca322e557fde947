import { expect, onTestFinished, test, vi } from "vitest";
import { estimatorNames, registerEstimator } from "../../../src/engine/algorithm/advantage/estimators.ts";
import type { Advantages } from "../../../src/engine/contract/backend.ts";
import type { EstimatedAdvantages } from "../../../src/train/loop/contract.ts";
import { estimateAdvantages, estimateAdvantagesOn } from "../../../src/train/loop/stages/estimate.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { expectClose } from "../../fixtures/numbers.ts";

const REWARDS = Float32Array.of(1, 0.5, 0, 1, 0, 0.25, 1, 1, 1, 0, 0.75);
/** Interleaved, uneven, one alone. */
const GROUPS = Uint32Array.of(0, 1, 0, 1, 0, 1, 2, 2, 2, 3, 0);
const LENGTHS = Uint32Array.of(3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5);
const NAMES = ["grpo", "rloo", "reinforce", "reinforce_plus_plus_baseline", "prpo", "opo", "gpg"];
const TOKEN_NAMES = ["reinforce_plus_plus", "remax"];
/** What a greedy attempt earned. */
const BASELINES = Float32Array.of(1, 0.5, 1, 0.5, 1, 0.5, -2, -2, -2, 0.25, 1);
registerEstimator({
  name: "plain_for_tests",
  settings: {},
  scope: "row",
  estimate: ({ scores }) => ({ level: "row", values: Float64Array.from(scores) }),
});

test("verl's estimators weight trained tokens, rLLM's weight trajectories equally", () => {
  const of = (name: string, lengths?: Uint32Array) =>
    (
      estimateAdvantages(Float32Array.of(1, 0), Uint32Array.of(0, 0), {
        name,
        norm_adv_by_std_in_grpo: true,
        lengths,
      }) as Advantages
    ).values;
  expect([...of("opo", Uint32Array.of(1, 3))]).toEqual([0.75, -0.25]);
  expect([...of("opo")]).toEqual([0.5, -0.5]);
  const [a, b] = [undefined, Uint32Array.of(1, 3)].map((lengths) => of("reinforce_plus_plus_baseline", lengths));
  expect(a).toEqual(b);
  expect(of("reinforce_plus_plus", Uint32Array.of(1, 3))).toHaveLength(4);
});

test("ReMax measures a trajectory from the reward of its greedy attempt, and needs one", () => {
  const of = (baselines?: Float32Array) =>
    estimateAdvantages(Float32Array.of(1, 0), Uint32Array.of(0, 0), {
      ...{ name: "remax", norm_adv_by_std_in_grpo: true, lengths: Uint32Array.of(1, 2) },
      baselines,
    }) as EstimatedAdvantages;
  const { level, values, returns } = of(Float32Array.of(0.25, -1));
  expect([level, [...values], [...returns!]]).toEqual(["token", [0.75, 1, 1], [1, 0, 0]]);
  expect(() => of()).toThrow(/Cannot estimate remax: it needs reward_baselines/);
});

test("an estimator uses its arguments and refuses unknown ones", () => {
  const options = { name: "grpo", norm_adv_by_std_in_grpo: true };
  const of = (settings: Record<string, unknown>) =>
    (estimateAdvantages(Float32Array.of(1, 0), Uint32Array.of(0, 0), { ...options, settings }) as Advantages).values;
  expect(of({ epsilon: 0.5 })[0]).toBeCloseTo(0.5, 6);
  expect(() => of({ gamma: 1 })).toThrow(/Cannot set gamma of the estimator rllm.grpo: it has .*epsilon/);
  expect(() => estimateAdvantages.check?.("grpo", { epsilon: "x" })).toThrow(/takes a number/);
  expect(() => estimateAdvantages.check?.("nonesuch", {})).toThrow(/"nonesuch"/);
});

overDevices("advantages where the loop takes them", (device) => {
  for (const name of [...NAMES, ...TOKEN_NAMES])
    for (const norm_adv_by_std_in_grpo of name === "grpo" ? [true, false] : [true])
      test(`${name}${norm_adv_by_std_in_grpo ? "" : " without the deviation"}`, async () => {
        const baselines = name === "remax" ? BASELINES : undefined;
        const options = { name, norm_adv_by_std_in_grpo, lengths: LENGTHS, baselines };
        const before = device.memory.live;
        const got = await estimateAdvantagesOn(device)(REWARDS, GROUPS, options);
        const expected = await estimateAdvantages(REWARDS, GROUPS, options);
        expect(got.level).toBe(TOKEN_NAMES.includes(name) ? "token" : "row");
        expect(got.level).toBe(expected.level);
        expectClose(got.values, expected.values, { relative: 2e-5, absolute: 2e-6 });
        expect(device.memory.live).toBe(before);
      });

  // The group 2 has no trained token; then one token is left in all, and last none.
  const MASKED = [LENGTHS.map((n, i) => (GROUPS[i] === 2 ? 0 : n)), LENGTHS.map((_, i) => (i === 5 ? 1 : 0))];
  test.each(estimatorNames().filter((name) => !/grpo_passk|token_baseline$/.test(name)))(
    "%s takes masked rows",
    async (name) => {
      for (const lengths of [...MASKED, new Uint32Array(LENGTHS.length)]) {
        const tokens = lengths.reduce((sum, n) => sum + n, 0);
        const values = new Float32Array(tokens).fill(0.25);
        const options = { name, norm_adv_by_std_in_grpo: true, lengths, baselines: BASELINES, values };
        const estimates = [estimateAdvantagesOn(device), estimateAdvantages].map((of) => of(REWARDS, GROUPS, options));
        const [got, expected] = await Promise.all(estimates);
        expectClose(got!.values, expected!.values, { relative: 2e-5, absolute: 2e-6 });
        expect([...got!.values, ...expected!.values].every(Number.isFinite)).toBe(true);
      }
    },
  );

  test("a group without a trained token changes no other group of opo, and one token has nothing to be whitened with", async () => {
    const of = async (name: string, lengths: Uint32Array) =>
      (await estimateAdvantagesOn(device)(REWARDS, GROUPS, { name, norm_adv_by_std_in_grpo: true, lengths })).values;
    const isOf = (group: number) => (_: number, row: number) => GROUPS[row] === group;
    const [whole, cut] = [await of("opo", LENGTHS), await of("opo", MASKED[0]!)];
    expect([...cut.filter(isOf(2))]).toEqual([0, 0, 0]);
    for (const group of [0, 1, 3]) expect(cut.filter(isOf(group))).toEqual(whole.filter(isOf(group)));
    for (const name of ["reinforce_plus_plus", "gdpo"])
      expect(new Set(await of(name, MASKED[1]!)), name).toEqual(new Set([0]));
  });

  test.each([
    ["runs on the device", "grpo", REWARDS.length, true],
    ["without a kernel runs on the host", "plain_for_tests", REWARDS.length, false],
    ["of no rewards runs on the host", "grpo", 0, false],
  ])("an estimator %s", async (_, name, count, isOnDevice) => {
    const upload = vi.spyOn(device, "upload");
    onTestFinished(() => upload.mockRestore());
    const options = { name, norm_adv_by_std_in_grpo: true };
    const given = [REWARDS.subarray(0, count), GROUPS.subarray(0, count)] as const;
    const { values } = await estimateAdvantagesOn(device)(...given, options);
    expect(values).toHaveLength(count);
    expect(upload.mock.calls.length > 0).toBe(isOnDevice);
  });

  test("no advantages for no rewards", async () => {
    const none = await estimateAdvantagesOn(device)(new Float32Array(0), new Uint32Array(0), {
      name: "grpo",
      norm_adv_by_std_in_grpo: true,
    });
    expect(none).toEqual({ level: "row", values: new Float32Array(0) });
  });
});
