/** The numbers of coupled rows, and whole losses of small batches, in figures. */
import { describe, expect, test } from "vitest";
import { planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { findLoss } from "../../../src/engine/algorithm/loss/losses.ts";
import { rowSums } from "../../../src/engine/algorithm/loss/row_statistic.ts";
import { perRow, perToken } from "../../fixtures/advantages.ts";
import { builtInPlans } from "../../fixtures/loss_kernels.ts";

describe("the statistic of a row", () => {
  // Tokens 1 to 4 are the row's; token 3 is not trained on.
  const of = (
    kind: string,
    d: readonly number[],
    {
      mask = [1, 1, 1, 0, 1],
      weights,
      advantages = [0, 1, 1, 1, 1],
      settings = {},
      old = true,
    }: Partial<{
      mask: number[];
      weights: number[];
      advantages: number[];
      settings: object;
      old: boolean;
    }> = {},
  ) => {
    const streams = {
      ...{ logprobs: d, mask, isWeights: weights, old: old ? [0, 0, 0, 0, 0] : undefined },
      advantage: (t: number) => advantages[t]!,
    };
    const bounds = { low: 0.5, high: 1.5, delta: Infinity, ...settings };
    const statistic = builtInPlans().find(({ rows }) => rows?.name === kind)!.rows!;
    const { a, b } = statistic.numbers(rowSums(streams, { row: 0, first: 1, end: 5 }), bounds);
    return [Number(a.toFixed(7)) + 0, Number(b.toFixed(7)) + 0];
  };
  const D = [9, 0.1, 0.2, 9, 0.3];
  const NONE = { mask: [1, 0, 0, 0, 0] };

  test("is the mean log-ratio of trained tokens; 0 of none, and without old log-probs", () => {
    expect(of("mean-log-ratio", D)).toEqual([0.2, 0]);
    expect(of("mean-log-ratio", D, NONE)).toEqual([0, 0]);
    expect(of("mean-log-ratio", D, { old: false })).toEqual([0, 0]);
  });

  test("is the surrogate's slope at the mean or the sum of the log-ratios, with the weights", () => {
    const mean = -Math.exp(0.2);
    expect(of("sequence-surrogate", D)).toEqual([0.2, Number(mean.toFixed(7))]);
    const weighted = of("sequence-surrogate", D, { weights: [9, 1, 2, 9, 6] });
    expect(weighted).toEqual([0.2, Number((3 * mean).toFixed(7))]);
    expect(of("sequence-surrogate", D, NONE)).toEqual([0, 0]);
    const open = { settings: { high: 9 } };
    expect(of("sequence-sum-surrogate", D, open)).toEqual([0.6, Number((-3 * Math.exp(0.6)).toFixed(7))]);
    expect(of("sequence-sum-surrogate", D)).toEqual([0.6, 0]);
    const signs = { advantages: [0, 1, -2, 1, 3] };
    expect(of("sequence-surrogate", D, signs)[1]).toBeCloseTo((-2 * Math.exp(0.2)) / 3, 6);
  });

  test("is the geometric mean of ratios, each clipped where that makes the objective worse", () => {
    const settings = { low: -0.25, high: 0.25 };
    // 0.1, 0.2 and 0.25 of 0.3 upwards; downwards 0.3 stays, and -0.5 becomes -0.25.
    const up = -Math.exp(0.55 / 3);
    expect(of("geometric-mean", D, { settings })[0]).toBeCloseTo(up / 3, 6);
    expect(of("geometric-mean", D, { settings })[1]).toBeCloseTo(up / 3, 6);
    const down = { settings, advantages: [0, -1, -1, -1, -1] };
    expect(of("geometric-mean", [9, -0.5, 0.2, 9, 0.3], down)[0]).toBeCloseTo(Math.exp(0.25 / 3) / 3, 6);
    expect(of("geometric-mean", [9, -0.5, 0.2, 9, 0.3], { settings })[0]).toBeCloseTo(-Math.exp(-0.05 / 3) / 3, 6);
    const weights = [9, 1, 2, 9, 4];
    expect(of("geometric-mean", D, { settings, weights })[0]).toBeCloseTo((2 * up) / 3, 6);
    expect(of("geometric-mean", D, { settings, ...NONE })).toEqual([0, 0]);
    const mixed = { settings, advantages: [0, 2, 2, 2, 5] };
    expect(of("geometric-mean", D, mixed)[0]).toBeCloseTo(up, 6);
  });

  test("is VESPO's bounded sum, with the logarithms of the weights", () => {
    const lowest = Math.log(1e-8);
    expect(of("vespo", D)).toEqual([0.6, 0]);
    expect(of("vespo", D, { weights: [9, 1, Math.E, 9, 1] })).toEqual([1.6, 0]);
    expect(of("vespo", [9, 30, -19, 9, 0])[0]).toBe(1);
    expect(of("vespo", [9, -30, 19, 9, 0])[0]).toBe(-1);
    expect(of("vespo", [9, 15, 15, 9, 0])[0]).toBe(20);
    expect(of("vespo", [9, -15, -15, 9, 0])[0]).toBeCloseTo(lowest, 6);
    expect(of("vespo", [9, 19, 0, 9, 0], { weights: [9, 0, 1, 9, 1] })[0]).toBeCloseTo(19 + lowest, 6);
    expect(of("vespo", [9, -19, 0, 9, 0], { weights: [9, 1e30, 1, 9, 1] })[0]).toBeCloseTo(1, 6);
    expect(of("vespo", D, NONE)).toEqual([0, 0]);
  });
});

describe("a whole loss", () => {
  // Rows of 2, 0 and 1 trained tokens.
  const batch = {
    offsets: Uint32Array.of(0, 3, 3, 4),
    mask: Uint32Array.of(1, 0, 1, 1),
    logprobs: [-1, -9, -2, -4],
    refLogprobs: [-2, 0, -2, -3],
    entropy: [1, 9, 2, 3],
    advantages: perRow(1, 5, 2),
  };
  const spec = { name: "gpg", loss_agg_mode: "token-mean" };
  const figures = ({ loss, dlogprobs }: { loss: number; dlogprobs: Float64Array }) => [
    Number(loss.toFixed(6)),
    Array.from(dlogprobs, (x) => Number(x.toFixed(6)) + 0),
  ];

  test.each([
    ["token-mean", 11 / 3, [-1 / 3, 0, -1 / 3, -2 / 3]],
    ["token-sum", 11, [-1, 0, -1, -2]],
    ["seq-mean-token-sum", 5.5, [-0.5, 0, -0.5, -1]],
    ["seq-mean-token-mean", 4.75, [-0.25, 0, -0.25, -1]],
    ["seq-mean-token-sum-norm", 11 / 6, [-1 / 6, 0, -1 / 6, -1 / 3]],
  ])("in %s", (loss_agg_mode, loss, slopes) => {
    const rounded = slopes.map((x) => Number(x.toFixed(6)));
    expect(figures(policyLoss(batch, { ...spec, loss_agg_mode }))).toEqual([Number(loss.toFixed(6)), rounded]);
  });

  test("adds the KL term and takes off the entropy bonus, and reports both", () => {
    const { loss, dlogprobs, dentropy, metrics } = policyLoss(batch, {
      ...{ ...spec, kl: { type: "k2", coef: 0.5 }, entropy_coeff: 0.25 },
    } as never);
    expect(loss).toBeCloseTo(11 / 3 + 0.5 * (1 / 3) - 0.25 * 2, 6);
    expect(Array.from(dlogprobs)).toEqual([-1 / 3 + 0.5 / 3, 0, -1 / 3, -2 / 3 - 0.5 / 3]);
    expect(Array.from(dentropy!)).toEqual([-0.25 / 3, 0, -0.25 / 3, -0.25 / 3]);
    expect(metrics).toEqual({
      "actor/kl_loss": expect.closeTo(1 / 3, 6) as number,
      "actor/kl_coef": 0.5,
      "actor/entropy": expect.closeTo(2, 6) as number,
      "actor/pg_loss": expect.closeTo(11 / 3, 6) as number,
    });
  });

  test("weighs KL and entropy by row in that mode", () => {
    const mode = { ...spec, loss_agg_mode: "seq-mean-token-mean", kl: { type: "k1", coef: 2 }, entropy_coeff: 1 };
    const { loss, metrics, dentropy } = policyLoss(batch, mode as never);
    expect(metrics["actor/kl_loss"]).toBeCloseTo((0.5 - 1) / 2, 6);
    expect(metrics["actor/entropy"]).toBeCloseTo((1.5 + 3) / 2, 6);
    expect(loss).toBeCloseTo(4.75 + 2 * -0.25 - 2.25, 6);
    expect(dentropy![0]).toBeCloseTo(-0.25, 6);
    expect(dentropy![3]).toBeCloseTo(-0.5, 6);
  });

  test("reports an entropy that has no coefficient, and no term that is off", () => {
    const { loss, metrics, dentropy } = policyLoss(batch, spec);
    expect(loss).toBeCloseTo(11 / 3, 6);
    expect(dentropy).toBeUndefined();
    expect(Object.keys(metrics).sort()).toEqual(["actor/entropy", "actor/pg_loss"]);
    const without = policyLoss({ ...batch, entropy: undefined }, { ...spec, kl: { type: "k1", coef: 0 } } as never);
    expect(without.metrics).toEqual({});
  });

  test("multiplies by importance weights, and the KL term not", () => {
    const weighted = { ...batch, rolloutIsWeights: [2, 9, 0, 3] };
    expect(figures(policyLoss(weighted, spec))).toEqual([8.666667, [-0.666667, 0, 0, -2]]);
    const { metrics } = policyLoss(weighted, { ...spec, kl: { type: "k2", coef: 0.5 } } as never);
    expect(metrics["actor/kl_loss"]).toBeCloseTo(1 / 3, 6);
  });

  test("takes weights into the row's numbers once where the loss couples rows", () => {
    const old = { ...batch, oldLogprobs: batch.logprobs, rolloutIsWeights: [2, 9, 4, 3], entropy: undefined };
    // -A n_i^-1 sum w: rows -(2 + 4) / 2 and -2 3, each divided by three rows.
    const sequence = policyLoss(old, { ...spec, name: "trl.luspo" });
    expect(figures(sequence)).toEqual([-4, [-1, 0, -1, -2]]);
    // GMPO: geometric means of the weights, sqrt 8 and 3.
    expect(policyLoss(old, { ...spec, name: "geo_mean" }).loss).toBeCloseTo(-(Math.sqrt(8) + 6) / 3, 6);
  });

  test.each([
    [{ refLogprobs: undefined }, { kl: { type: "k1", coef: 1 } }, /the KL term needs refLogprobs.*\(refLogprobs\)\.$/],
    [{ entropy: undefined }, { entropy_coeff: 0.1 }, /the entropy bonus needs entropy.*\(entropy\)\.$/],
    [{ logprobs: [Number.NaN, 0, -1, -1] }, {}, /loss gpg: 1 trained tokens hold a NaN or an infinity/],
    [{ advantages: perToken(1, Infinity, Infinity, Infinity) }, {}, /gpg: 2 trained tokens hold/],
    [{ rolloutIsWeights: [Number.NaN, 1, 1, 1] }, {}, /gpg: 1 trained tokens hold/],
    [{ refLogprobs: [-Infinity, 1, 1, 1] }, {}, /gpg: 1 trained tokens hold/],
    [{ mask: new Uint32Array(4) }, {}, /batch_num_tokens must be above 0 \(0\)\..*drop it.*\(batch_num_tokens\)\.$/],
    [{}, { global_batch_size: 0, loss_agg_mode: "seq-mean-token-sum" }, /global_batch_size must be above 0 \(0\)/],
    [{}, { batch_num_tokens: Infinity }, /batch_num_tokens must be above 0 \(Infinity\)/],
    [{}, { loss_scale_factor: 0, loss_agg_mode: "seq-mean-token-sum-norm" }, /loss_scale_factor must be above 0/],
    [{}, { name: "vanilla", settings: { clip_ratio_c: 1 } }, /clip_ratio_c must be above 1 \(1\) \(clip_ratio_c\)\.$/],
    [{}, { name: "dro", settings: { dro_beta: 0 } }, /dro_beta must be above 0 \(0\)/],
  ])("of a batch with %j under %j is refused", (given, own, message) => {
    expect(() => policyLoss({ ...batch, ...given } as never, { ...spec, ...own } as never)).toThrow(message);
  });

  test.each([
    ["trl.grpo", {}, -3 / 3],
    ["trl.bnpo", {}, -4 / 3],
    ["trl.dr_grpo", {}, -4 / 3 / 3],
    ["trl.dr_grpo", { max_completion_length: 8 }, -4 / 3 / 8],
    ["trl.dapo", {}, -4 / 3],
    ["trl.dapo", { num_items_in_batch: 8 }, -4 / 8],
    ["trl.luspo", {}, -4 / 3],
    ["trl.rloo", {}, -3 / 3],
    ["geo_mean", {}, -3 / 3],
    ["gspo", {}, -3 / 2],
    // 4 / tau sigmoid(0) is 2.
    ["sapo", {}, -6 / 2],
    ["trl.sapo", {}, -6 / 3],
    // TRL's CISPO takes its upper epsilon for the ratio itself.
    ["trl.cispo", {}, (0.2 * 11) / 3],
    ["trl.cispo", { num_items_in_batch: 8, epsilon_high: 5 }, 11 / 8],
    ["trl.vespo", { num_items_in_batch: 8 }, 11 / 8],
  ])("of %s with %j brings its own aggregation", (name, settings, loss) => {
    expect(policyLoss(batch, { name, settings, loss_agg_mode: "token-sum" }).loss).toBeCloseTo(loss, 6);
  });

  test("of VESPO takes its own settings, and lambdas of 1e-4 at least", () => {
    const settings = { vespo_k_pos: 5, vespo_lambda_pos: 0, vespo_k_neg: 6, vespo_lambda_neg: 7 };
    expect(planLoss(findLoss("trl.vespo"), settings).params).toEqual({
      ...{ k_pos: 5, lambda_pos: 1e-4, k_neg: 6, lambda_neg: 7 },
    });
    expect(planLoss(findLoss("trl.vespo"), { vespo_lambda_neg: -1 }).params).toEqual({
      ...{ k_pos: 2, lambda_pos: 3, k_neg: 3, lambda_neg: 1e-4 },
    });
  });

  test.each([
    ["vanilla", ["actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"]],
    ["reinforce", ["actor/ppo_kl"]],
    ["gpg", []],
    ["clip_cov", ["actor/pg_clipfrac", "actor/ppo_kl"]],
    ["cross_entropy", []],
    ["importance_sampling", ["actor/ppo_kl"]],
    ["ppo", ["actor/pg_clipfrac", "actor/pg_clipfrac_high", "actor/pg_clipfrac_low", "actor/ppo_kl"]],
    ["tinker.cispo", ["actor/pg_clipfrac", "actor/ppo_kl"]],
    ["tinker.dro", ["actor/ppo_kl"]],
    ["trl.grpo", ["clip_ratio/high_mean", "clip_ratio/low_mean", "clip_ratio/region_mean"]],
    ["trl.cispo", ["cispo_clip_ratio"]],
    ["trl.sapo", []],
  ])("of %s reports %j", (name, metrics) => {
    const found = policyLoss({ ...batch, entropy: undefined }, { name, loss_agg_mode: "token-mean" }).metrics;
    expect(Object.keys(found).sort()).toEqual(metrics);
  });

  // Ratios of 1.5: `epsilon_high` -1 takes the other side's, 0 is a bound of its own, and `delta` cuts negative ones.
  test.each([
    [{}, 1, 1.2],
    [{ epsilon: 0.25 }, 1, 1.25],
    [{ epsilon_high: 0 }, 1, 1],
    [{ epsilon_high: 0.375 }, 1, 1.375],
    [{}, -1, 1.5],
    [{ delta: 1.25 }, -1, 1.25],
  ])("of trl.bnpo with %j at the advantage %f stops at the ratio %f", (settings, advantage, ratio) => {
    const old = batch.logprobs.map((x) => x - Math.log(1.5));
    const given = { ...batch, entropy: undefined, oldLogprobs: old, advantages: perRow(advantage, 0, advantage) };
    const { loss, metrics } = policyLoss(given, { name: "trl.bnpo", settings, loss_agg_mode: "token-mean" });
    expect(loss).toBeCloseTo(-advantage * ratio, 6);
    const high = advantage > 0 ? 1 : 0;
    expect(metrics["clip_ratio/high_mean"]).toBeCloseTo(high, 6);
    expect(metrics["clip_ratio/region_mean"]).toBeCloseTo(high, 6);
  });

  test("of TRL has no bound on k3, and verl's has", () => {
    const far = { ...batch, entropy: undefined, refLogprobs: [2, 0, -2, -4], advantages: perRow(0, 0, 0) };
    const kl = (name: string) =>
      policyLoss(far, { name, loss_agg_mode: "token-sum", kl: { type: "k3", coef: 1 } } as never).loss;
    expect(kl("vanilla")).toBeCloseTo(10, 6);
    expect(kl("trl.bnpo")).toBeCloseTo(Math.exp(3) - 4, 6);
  });

  test.each([
    // Ratios of 5 and 0.5: Tinker's thresholds are 0.8 and 1.2, and CISPO's 0 and 4.
    ["tinker.ppo", 5, 1, -1.2, 0],
    ["tinker.ppo", 0.5, -1, 0.8, 0],
    ["tinker.cispo", 5, 1, -4 * Math.log(5), -4],
    ["tinker.cispo", 0.5, 1, -0.5 * Math.log(0.5), -0.5],
    ["tinker.dro", Math.E, 1, -1 + 0.05 / 2, -0.95],
  ])(
    "of %s at a ratio of %f and the advantage %i has its published defaults",
    (name, ratio, advantage, value, slope) => {
      const one = { offsets: Uint32Array.of(0, 1), mask: Uint32Array.of(1), logprobs: [Math.log(ratio)] };
      const given = { ...one, oldLogprobs: [0], advantages: perRow(advantage) };
      const { loss, dlogprobs } = policyLoss(given, { name, loss_agg_mode: "token-sum" });
      expect(loss).toBeCloseTo(value, 9);
      expect(dlogprobs[0]).toBeCloseTo(slope, 9);
    },
  );
});
