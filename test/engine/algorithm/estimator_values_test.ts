/** Advantages and returns of small batches in figures: groups of one, equal scores, masked rows. */
import { describe, expect, test } from "vitest";
import { gaeRow } from "../../../src/engine/algorithm/advantage/estimators/gae.ts";
import {
  baselineAdvantages,
  runningPower,
} from "../../../src/engine/algorithm/advantage/estimators/optimal_token_baseline.ts";
import { byGroup, numberGroups, packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages, groupAdvantages, perToken } from "../../../src/engine/algorithm/advantage/host.ts";
import { advantageMetrics, summarizeGroups } from "../../../src/engine/algorithm/advantage/metrics.ts";
import { whiten } from "../../../src/engine/algorithm/advantage/whitening.ts";
import { computeAdvantages, streamAdvantages } from "../../../src/engine/algorithm/run.ts";

const rounded = (values: Iterable<number>) => Array.from(values, (x) => Number(x.toFixed(7)) + 0);

describe("the advantages of groups", () => {
  const S2 = Math.SQRT2;
  // Deviations of 1, 4, 2: 1.527525 of the sample, 1.247219 of the population.
  test.each<[name: string, settings: object, rewards: number[][], wanted: number[]]>([
    ["grpo", {}, [[1, 3], [2]], [-1 / (S2 + 1e-6), 1 / (S2 + 1e-6), 2 / (1 + 1e-6)]],
    ["grpo", { epsilon: 1 }, [[1, 3], [2]], [-1 / (S2 + 1), 1 / (S2 + 1), 1]],
    ["grpo", { epsilon: 1, ddof: 0 }, [[1, 3]], [-0.5, 0.5]],
    ["grpo", {}, [[2, 2, 2]], [0, 0, 0]],
    ["grpo", { norm_adv_by_std_in_grpo: false }, [[1, 3], [2]], [-1, 1, 2]],
    ["grpo_vectorized", {}, [[1, 3], [2]], [-1 / (S2 + 1e-6), 1 / (S2 + 1e-6), 2 / (1 + 1e-6)]],
    ["rllm.grpo", {}, [[1, 3], [2]], [-1 / (1 + 1e-6), 1 / (1 + 1e-6), 2 / (1 + 1e-6)]],
    ["trl.grpo", {}, [[1, 3], [2]], [-1 / (S2 + 1e-4), 1 / (S2 + 1e-4), 0]],
    ["trl.grpo", { norm_adv_by_std_in_grpo: false }, [[1, 3], [2]], [-1, 1, 0]],
    ["grpo_passk", {}, [[1, 4, 2]], [0, 2 / (Math.sqrt(7 / 3) + 1e-6), 0]],
    ["grpo_passk", { norm_adv_by_std_in_grpo: false }, [[1, 4, 2]], [0, 2, 0]],
    ["grpo_passk", {}, [[1, 4, 4]], [0, 0, 0]],
    ["rloo", {}, [[1, 3, 8], [5]], [-4.5, -1.5, 6, 5]],
    ["rloo", {}, [[1, 3]], [-2, 2]],
    ["rloo_vectorized", {}, [[1, 3, 8], [5]], [-4.5, -1.5, 6, 0]],
    ["reinforce", {}, [[1, 3], [5]], [1, 3, 5]],
    [
      "gpg",
      {},
      [
        [1, 0],
        [0, 0],
      ],
      [2, -2, 0, 0],
    ],
    [
      "gpg",
      { f_norm: 4 },
      [
        [1, 0],
        [0, 0],
      ],
      [0.5, -0.5, 0, 0],
    ],
    ["gpg", {}, [[3], [0]], [6, 0]],
    ["gpg", {}, [[0, 0]], [0, 0]],
    [
      "gpg",
      {},
      [
        [-1, 0],
        [1, 0],
      ],
      [-1, 1, 1, -1],
    ],
    // Centred to -1, 1 and 5, whose mean is 5 / 3 and whose sample variance 28 / 3.
    ["reinforce_plus_plus_baseline", {}, [[1, 3], [5]], [-8, -2, 10].map((x) => x / 3 / Math.sqrt(28 / 3))],
    ["rllm.reinforce_plus_plus_baseline", { epsilon: 0 }, [[1, 3], [5]], [-Math.sqrt(1.5), Math.sqrt(1.5), 0]],
    ["rllm.reinforce_plus_plus_baseline", { epsilon: 1 }, [[1, 3]], [-0.5, 0.5]],
    ["prpo", { epsilon: 1 }, [[1], [3]], [-0.5, 0.5]],
    ["prpo", {}, [[1], [3]], [-1 / (1 + 1e-6), 1 / (1 + 1e-6)]],
    [
      "gdpo",
      {},
      [
        [1, 3],
        [2, 2],
      ],
      [-Math.sqrt(1.5), Math.sqrt(1.5), 0, 0],
    ],
    ["opo", {}, [[1, 3], [5]], [-1, 1, 5]],
  ])("by %s with %j of %j", (name, settings, rewards, wanted) => {
    expect(rounded(groupAdvantages(rewards, name, settings as never).flat())).toEqual(rounded(wanted));
  });

  test("weigh rows by their trained tokens in OPO, and a group without one trains nothing", () => {
    const batch = {
      offsets: Uint32Array.of(0, 2, 6, 7),
      mask: Uint32Array.of(1, 0, 1, 1, 1, 0, 0),
      groups: packGroups(Uint32Array.of(0, 0, 1), 2),
      scores: [4, 0, 9],
    };
    expect([...advantages(batch, "opo").values]).toEqual([3, -1, 9]);
    const none = { ...batch, mask: Uint32Array.of(0, 0, 0, 0, 0, 0, 1) };
    expect([...advantages(none, "opo").values]).toEqual([0, 0, 9]);
    expect(() => groupAdvantages([[1, 2], [3]], "grpo_passk")).toThrow(/every group needs two trajectories or more/);
  });

  test("of several rewards are whitened together by GDPO", () => {
    const batch = {
      offsets: Uint32Array.of(0, 1, 2, 5),
      mask: Uint32Array.of(1, 1, 1, 1, 0),
      groups: packGroups(Uint32Array.of(0, 0, 1), 2),
      scores: [9, 9, 9],
      rewardComponents: { a: [1, 3, 0], b: [2, 0, 0] },
    };
    const own = { norm_adv_by_std_in_grpo: false };
    // a: -1, 1, 0; b: 1, -1, 0.
    expect([...advantages(batch, "gdpo", own).values]).toEqual([0, 0, 0]);
    const other = { ...batch, rewardComponents: { a: [1, 3, 0], b: [0, 2, 2] } };
    // -2, 2 and 2 twice: mean 1, variance 12 / 3.
    expect(rounded(advantages(other, "gdpo", own).values)).toEqual([-1.5, 0.5, 0.5]);
  });

  test("are spread over trained tokens", () => {
    const batch = { offsets: Uint32Array.of(0, 2, 3), mask: Uint32Array.of(1, 0, 1) };
    const values = Float64Array.of(2, 3);
    expect([...perToken(batch, { level: "row", values }).advantages]).toEqual([2, 0, 3]);
    const returns = Float64Array.of(5, 6);
    expect([...perToken(batch, { level: "row", values, returns }).returns]).toEqual([5, 0, 6]);
    const tokens = Float64Array.of(7, 8, 9);
    expect(perToken(batch, { level: "token", values: tokens })).toEqual({ advantages: tokens, returns: tokens });
  });
});

describe("groups", () => {
  test("keep the order of their rows; equal and ordered ones are known as such", () => {
    expect(packGroups(Uint32Array.of(1, 0, 1), 3)).toEqual({
      ...{ offsets: Uint32Array.of(0, 1, 3, 3), members: Uint32Array.of(1, 0, 2) },
      ...{ fixedSize: 0, ordered: false },
    });
    expect(packGroups(Uint32Array.of(0, 0, 1, 1), 2)).toMatchObject({ fixedSize: 2, ordered: true });
    expect(packGroups(Uint32Array.of(0, 0, 1), 2)).toMatchObject({ fixedSize: 0, ordered: true });
    expect(packGroups(Uint32Array.of(1, 1, 0, 0), 2)).toMatchObject({ fixedSize: 0, ordered: false });
    expect(packGroups(new Uint32Array(), 0)).toMatchObject({ fixedSize: 0, ordered: true });
    expect(numberGroups(["b", "a", "b"])).toEqual({ groupOfRow: Uint32Array.of(0, 1, 0), names: ["b", "a"] });
  });

  test("without rows are passed over", () => {
    const groups = packGroups(Uint32Array.of(0, 2), 3);
    const sizes: number[] = [];
    byGroup({ groups, scores: [4, 5] }, (scores) => {
      sizes.push(scores.length);
      return scores;
    });
    expect(sizes).toEqual([1, 1]);
  });

  const batch = {
    offsets: Uint32Array.of(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    mask: Uint32Array.of(1, 1, 1, 1, 1, 1, 1, 1, 0),
    groups: packGroups(Uint32Array.of(0, 0, 1, 1, 2, 2, 3, 3, 4), 5),
    scores: [0, 1, 1, 1, 0, 0, 0.5, 0.5, 9],
  };
  const values = [-1, 1, 0, 0, 0, 0, 2, 3, 9];

  test("are informative, too easy, too hard or flat, and not judged where they hold one row", () => {
    const found = summarizeGroups(batch, values);
    expect(found.map(({ difficulty }) => difficulty)).toEqual([
      "informative",
      "too_easy",
      "too_hard",
      "flat",
      undefined,
    ]);
    expect(found[0]).toMatchObject({ size: 2, rewardMean: 0.5, rewardStd: 0.5, advantageMin: -1, advantageMax: 1 });
    expect(found[4]).toMatchObject({ size: 1, rewardMean: 9, advantageMin: Infinity, advantageMax: -Infinity });
    const distinct = (rewards: number[]) =>
      summarizeGroups({ ...batch, scores: [...rewards, ...batch.scores.slice(2)] }, values)[0]!.difficulty;
    expect([distinct([0, 4e-8]), distinct([0, 1e-8])]).toEqual(["informative", "flat"]);
    expect([distinct([2, 2]), distinct([-1, -1])]).toEqual(["too_easy", "too_hard"]);
  });

  test("are counted in the metrics, which leave rows without a trained token out", () => {
    const metrics = advantageMetrics(batch, { advantages: values, returns: values.map((x) => 2 * x) });
    expect(metrics).toMatchObject({
      ...{ "critic/score/mean": 0.5, "critic/score/max": 1, "critic/score/min": 0 },
      ...{ "critic/advantages/mean": 5 / 8, "critic/advantages/max": 3, "critic/returns/min": -2 },
      ...{ "batch/total": 4, "batch/informative": 1, "batch/fractions/effective": 0.25 },
      ...{ "batch/fractions/too_easy": 0.25, "batch/fractions/too_hard": 0.25 },
    });
    const alone = { ...batch, groups: packGroups(Uint32Array.from([0, 1, 2, 3, 4, 5, 6, 7, 8]), 9) };
    const none = advantageMetrics(alone, { advantages: values, returns: values });
    expect(none).toMatchObject({ "batch/total": 0, "batch/fractions/effective": 0 });
  });
});

describe("the advantages of tokens", () => {
  test("by GAE carry value and advantage over masked tokens", () => {
    const [advantage, returns] = [new Float64Array(4), new Float64Array(4)];
    const row = { row: 0, first: 1, end: 4, mask: [1, 1, 0, 1], reward: (t: number) => (t === 3 ? 4 : 0) };
    gaeRow(row, [9, 1, 9, 2], { gamma: 0.5, lam: 0.5 }, { advantages: advantage, returns });
    expect([[...advantage], [...returns]]).toEqual([
      [0, 0.5, 0, 2],
      [0, 1.5, 0, 4],
    ]);
  });

  const batch = {
    offsets: Uint32Array.of(0, 3, 4),
    mask: Uint32Array.of(1, 0, 1, 1),
    groups: packGroups(Uint32Array.of(0, 0), 1),
    scores: [4, 1],
    values: [1, 9, 2, 1],
    rewardBaselines: [1, 3],
  };

  test("by GAE are whitened, and returns are not", () => {
    const { values, returns } = advantages(batch, "gae", { gamma: 0.5, lam: 0.5 });
    // 0.5, 2 and 0: mean 5 / 6, sample variance 13 / 12.
    const wanted = [-1 / 3, 0, 7 / 6, -5 / 6].map((x, t) => (t === 1 ? 0 : x / Math.sqrt(13 / 12)));
    expect(rounded(values)).toEqual(rounded(wanted));
    expect([...returns!]).toEqual([1.5, 0, 4, 1]);
    expect([...advantages(batch, "gae").returns!]).toEqual([4, 0, 4, 1]);
  });

  test("by ReMax and REINFORCE++ come from rewards to go", () => {
    expect([...advantages(batch, "remax").values]).toEqual([3, 4, 3, -2]);
    const plus = (settings: object) => rounded(advantages(batch, "reinforce_plus_plus", settings as never).returns!);
    expect(plus({})).toEqual([4, 0, 4, 1]);
    expect(plus({ gamma: 0.5 })).toEqual([2, 0, 4, 1]);
    expect(plus({ gamma: 0.5, reset_at_masked: true })).toEqual([0, 2, 4, 1]);
    const { values } = advantages(batch, "reinforce_plus_plus");
    expect(rounded(values)).toEqual(rounded([1, 0, 1, -2].map((x) => x / Math.sqrt(3))));
  });

  test.each([
    ["gae", "values", "values"],
    ["remax", "rewardBaselines", "reward_baselines"],
    ["optimal_token_baseline", "oldLogprobs", "old_logprobs"],
  ])("by %s need %s", (name, field, published) => {
    const refused = () => advantages({ ...batch, [field]: undefined }, name);
    expect(refused).toThrow(`Cannot estimate ${name}: it needs ${published}, which the batch does not hold.`);
    expect(refused).toThrow(expect.objectContaining({ path: published }) as Error);
  });

  test("are whitened by weights; at tokens, masked ones are 0", () => {
    const values = Float64Array.of(1, 3, 9);
    expect(rounded(whiten(values, [1, 1, 0], "token"))).toEqual(rounded([-Math.SQRT1_2, Math.SQRT1_2, 0]));
    expect(rounded(whiten(values, [1, 1, 0], "row"))).toEqual(rounded([-1, 1, 7].map((x) => x * Math.SQRT1_2)));
    // Weights 1 and 3: mean 2.5, variance 3 / 3.
    expect(rounded(whiten(Float64Array.of(1, 3), [1, 3], "row"))).toEqual([-1.5, 0.5]);
    // The mean's divisor, 2 + 1e-8, counts where values differ.
    expect([...whiten(Float64Array.of(2, 2), [1, 1], "row")]).toEqual([0, 0]);
    const [low] = whiten(Float64Array.of(1e8 - 1, 1e8 + 1), [1, 1], "row");
    expect(low).toBeCloseTo(-0.5 / Math.SQRT2, 6);
    // 1e-8 stands beside a variance of that size.
    expect(whiten(Float64Array.of(0, Math.SQRT2 * 1e-4), [1, 1], "row")[1]).toBeCloseTo(0.5, 6);
  });

  test("of the host come in one call or in parts, whose statistics must not span the batch", async () => {
    const found = await computeAdvantages(batch, "grpo", { settings: { norm_adv_by_std_in_grpo: false } });
    expect([...found.advantages]).toEqual([1.5, 0, 1.5, -1.5]);
    const refused = streamAdvantages((async function* () {})(), "gae").next();
    await expect(refused).rejects.toThrow(/^Cannot stream gae: .*\(adv_estimator\)\.$/);
    await expect(streamAdvantages((async function* () {})(), "grpo").next()).resolves.toMatchObject({ done: true });
  });
});

describe("the optimal token baseline", () => {
  test("weighs by the running power of trained tokens", () => {
    const batch = {
      ...{ offsets: Uint32Array.of(0, 3, 4), mask: Uint32Array.of(1, 0, 1, 1) },
      ...{ oldLogprobs: [Math.log(0.5), 0, 0, Math.log(0.25)], sumPiSquared: [0.5, 9, 2, 0.5] },
    };
    expect(rounded(runningPower(batch))).toEqual([0.5, 0.5, 1.5, 1]);
    expect(rounded(runningPower({ ...batch, rolloutIsWeights: [2, 9, 3, 0.5] }))).toEqual([2, 2, 11, 0.25]);
  });

  // Rows of 2 and 3 tokens.
  const of = (options: object, { mask = [1, 1, 1, 1, 1], groups = [0, 0] } = {}) => {
    const table = {
      returns: Float64Array.of(2, 2, 4, 4, 4),
      power: Float64Array.of(1, 2, 1, 3, 3),
      advantages: new Float64Array(5),
    };
    const batch = { offsets: Uint32Array.of(0, 2, 5), mask: Uint32Array.from(mask) };
    const packed = packGroups(Uint32Array.from(groups), 2);
    baselineAdvantages({ ...batch, groups: packed }, table, { compact: false, zeroTail: false, ...options });
    return rounded(table.advantages);
  };

  test("compares the tokens of a column", () => {
    expect(of({})).toEqual([-1, -1.2, 1, 0.8, 0]);
    expect(of({ zeroTail: true })).toEqual([-1, -1.2, 1, 0.8, 4]);
    expect(of({}, { groups: [0, 1] })).toEqual([2, 2, 4, 4, 4]);
  });

  test("leaves masked tokens out, or closes up over them", () => {
    const mask = [1, 1, 0, 1, 1];
    expect(of({}, { mask })).toEqual([0, -1.2, 0, 0.8, 0]);
    expect(of({ compact: true }, { mask })).toEqual([-1.5, -1.2, 0, 0.5, 0.8]);
    expect(of({ compact: true }, { mask: [0, 0, 1, 1, 1] })).toEqual([0, 0, 4, 4, 4]);
    expect(of({ zeroTail: true }, { mask })).toEqual([0, -1.2, 0, 0.8, 0]);
  });
});
