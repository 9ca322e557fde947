/** Corrections, the critic's loss, the KL loss and TRL's weights in figures: at their bounds exactly, and beyond. */
import { describe, expect, test } from "vitest";
import { correctionPreset } from "../../../src/engine/algorithm/correction/config.ts";
import { rolloutCorrection } from "../../../src/engine/algorithm/correction/host.ts";
import { offPolicyMetrics, probabilityMetrics } from "../../../src/engine/algorithm/correction/metrics.ts";
import { klLoss } from "../../../src/engine/algorithm/loss/kl_loss.ts";
import { trlWeights } from "../../../src/engine/algorithm/loss/trl_weights.ts";
import { valueLoss } from "../../../src/engine/algorithm/loss/value_loss.ts";
import { perRow } from "../../fixtures/advantages.ts";

const rounded = (values: Iterable<number>) => Array.from(values, (x) => Number(x.toFixed(7)) + 0);

describe("a correction", () => {
  // Rows of 2, 0 and 1 trained tokens, with the given ratios.
  const of = (ratios: number[], config: object, mask = [1, 0, 1, 1]) =>
    rolloutCorrection(
      {
        ...{ offsets: Uint32Array.of(0, 3, 3, 4), mask: Uint32Array.from(mask) },
        ...{ logprobs: ratios.map(Math.log), rolloutLogprobs: [0, 0, 0, 0] },
      },
      config as never,
    );
  const metric = (ratios: number[], config: object, name: string) => of(ratios, config).metrics[`rollout_corr/${name}`];

  test("keeps weights at its bounds", () => {
    const icepop = { rollout_is: "token", rollout_is_threshold: "0.5_2" };
    expect(rounded(of([2, 1, 0.5, 4], icepop).weights!)).toEqual([2, 0, 0.5, 0]);
    expect(metric([2, 1, 0.5, 4], icepop, "rollout_is_oob_ratio")).toBeCloseTo(1 / 3, 6);
    const capped = { rollout_is: "token", rollout_is_threshold: 2 };
    expect(rounded(of([2, 1, 0.5, 4], capped).weights!)).toEqual([2, 0, 0.5, 2]);
    expect(metric([2, 1, 0.5, 4], capped, "rollout_is_ratio_fraction_high")).toBeCloseTo(1 / 3, 6);
    expect(metric([2, 1, 0.5, 4], capped, "rollout_is_ratio_fraction_low")).toBe(0);
    expect(metric([2, 1, 0.25, 4], capped, "rollout_is_ratio_fraction_low")).toBeCloseTo(1 / 3, 6);
    expect(of([2, 1, 0.5, 4], capped).metrics).not.toHaveProperty("rollout_corr/rollout_is_oob_ratio");
    expect(metric([2, 1, 0.25, 4], icepop, "rollout_is_oob_ratio")).toBeCloseTo(2 / 3, 6);
    expect(of([1, 1, 1, 1], {}).weights).toBeUndefined();
  });

  test("reports its weights", () => {
    const { metrics } = of([3, 9, 1, 0.25], { rollout_is: "token", rollout_is_threshold: 2 });
    const weights = {
      ...{ mean: 3.25 / 3, max: 2, min: 0.25, std: Math.sqrt((4 + 1 + 0.0625) / 3 - (3.25 / 3) ** 2) },
      ...{ eff_sample_size: (3.25 / 3) ** 2 / (5.0625 / 3), seq_mean: 1.75 / 3, seq_max: 1.5, seq_min: 0 },
      ...{ seq_max_deviation: 1, seq_fraction_high: 0, seq_fraction_low: Math.fround(2 / 3) },
    };
    for (const [name, value] of Object.entries(weights))
      expect(metrics[`rollout_corr/rollout_is_${name}`], name).toBeCloseTo(value, 6);
    const rows = of([3, 9, 2, 0.25], { rollout_is: "sequence", rollout_is_threshold: 2 });
    expect(rounded(rows.weights!)).toEqual([2, 0, 2, 0.25]);
    const range = { max: 6, min: 0.25, ratio_fraction_high: 1 / 3, ratio_fraction_low: 1 / 3, seq_mean: 0.75 };
    for (const [name, value] of Object.entries(range))
      expect(rows.metrics[`rollout_corr/rollout_is_${name}`], name).toBeCloseTo(value, 6);
    const atBounds = of([2, 9, 1, 0.5], { rollout_is: "sequence", rollout_is_threshold: 2 }).metrics;
    expect(atBounds["rollout_corr/rollout_is_ratio_fraction_high"]).toBe(0);
    expect(atBounds["rollout_corr/rollout_is_ratio_fraction_low"]).toBe(0);
  });

  test("counts a row whose mean ratio is a bound as inside it", () => {
    // verl's means have 1e-8 in their divisor. exp(log(3)) is 3 in some engines and one ulp more in others.
    const [low, high] = [0.5, 3].map((ratio) => Math.exp(Math.log(ratio)) / (1 + 1e-8));
    const config = { rollout_is: "token", rollout_is_threshold: `${low}_${high}` };
    for (const [ratio, counted] of [
      [0.5, [0, 0]],
      [3, [0, 0]],
      [0.49, [0, 1]],
      [3.01, [1, 0]],
    ] as const) {
      const shares = ["high", "low"].map((side) => metric([1, 1, 1, ratio], config, `rollout_is_seq_fraction_${side}`));
      // Of three rows, the empty one is low.
      expect(shares).toEqual([Math.fround(counted[0] / 3), Math.fround((1 + counted[1]) / 3)]);
    }
  });

  test("has no deviation of one row, and no difference of no tokens", () => {
    const one = rolloutCorrection(
      { offsets: Uint32Array.of(0, 2), mask: Uint32Array.of(1, 1), logprobs: [-1, -2], rolloutLogprobs: [-1, -1] },
      { rollout_is: "token", rollout_is_threshold: 2 },
    );
    expect(one.metrics["rollout_corr/rollout_is_seq_std"]).toBe(0);
    const none = { offsets: Uint32Array.of(0, 1), mask: Uint32Array.of(0), logprobs: [-1], rolloutLogprobs: [-2] };
    expect(probabilityMetrics(none)["training/rollout_probs_diff_max"]).toBe(0);
  });

  test("has no deviation of one token", () => {
    const one = of([3, 9, 1, 2], { rollout_is: "token", rollout_is_threshold: 9 }, [1, 0, 0, 0]);
    expect(one.metrics["rollout_corr/rollout_is_std"]).toBe(0);
    const two = of([3, 9, 1, 2], { rollout_is: "token", rollout_is_threshold: 9 }, [1, 0, 1, 0]);
    expect(two.metrics["rollout_corr/rollout_is_std"]).toBeCloseTo(1, 6);
  });

  test("divides by the mean weight of tokens, or of the rows that have any", () => {
    const normal = { rollout_is_threshold: 9, rollout_is_batch_normalize: true };
    expect(rounded(of([3, 9, 1, 2], { ...normal, rollout_is: "token" }).weights!)).toEqual([1.5, 0, 0.5, 1]);
    expect(rounded(of([2, 9, 2, 2], { ...normal, rollout_is: "sequence" }).weights!)).toEqual(
      rounded([4 / 3, 0, 4 / 3, 2 / 3]),
    );
    const none = of([9, 9, 9, 9], { ...normal, rollout_is: "token", rollout_is_threshold: "1_2" });
    expect(none.metrics["rollout_corr/rollout_is_batch_norm_factor"]).toBe(1);
    const masked = of([2, 2, 2, 2], { ...normal, rollout_is: "sequence" }, [0, 0, 0, 0]);
    expect(masked.metrics["rollout_corr/rollout_is_batch_norm_factor"]).toBe(1);
  });

  test.each([
    ["token_k1", 2, [2, 1, 0.5, 4], [1, 0, 1, 0]],
    ["token_k1", 2, [2, 1, 0.25, 1], [1, 0, 0, 1]],
    ["token_k2", 0.5 * Math.log(2) ** 2, [2, 1, 0.5, 3], [1, 0, 1, 0]],
    ["token_k3", 1 - Math.log(2), [2, 9, 0.5, 4], [1, 0, 1, 0]],
    ["seq_sum_k1", 2, [2, 9, 2, 2], [0, 0, 0, 1]],
    ["seq_mean_k1", 2.5, [2, 9, 2, 4], [1, 0, 1, 0]],
    ["seq_max_k2", 0.3, [2, 9, 1, 1], [1, 0, 1, 1]],
    ["seq_max_k2", 0.2, [2, 9, 1, 1], [0, 0, 0, 1]],
    ["seq_sum_k3", 0.2, [1, 9, 0.5, 1], [1, 0, 1, 1]],
    ["seq_mean_k3", 0.2, [1, 9, 2, 4], [1, 0, 1, 0]],
    ["seq_max_k3", 0.2, [1, 9, 2, 1], [0, 0, 0, 1]],
  ])("by %s at %f keeps of %j", (rollout_rs, rollout_rs_threshold, ratios, kept) => {
    expect([...of(ratios, { rollout_rs, rollout_rs_threshold }).mask]).toEqual(kept);
  });

  test("reports what it rejects", () => {
    const shares = (config: object, ratios: number[], prefix: string) =>
      Object.fromEntries(
        Object.entries(of(ratios, config).metrics)
          .filter(([name]) => name.startsWith(`rollout_corr/rollout_rs_${prefix}`))
          .map(([name, value]) => [
            name.slice(`rollout_corr/rollout_rs_${prefix}`.length),
            Number(value.toFixed(6)) + 0,
          ]),
      );
    const two = Number(Math.log(2).toFixed(6));
    // k1 of the tokens: -ln 4, 0 and ln 2, bounded by ln 2 exactly.
    expect(shares({ rollout_rs: "token_k1", rollout_rs_threshold: 2 }, [4, 9, 1, 0.5], "token_k1_")).toMatchObject({
      ...{ mean: Number((-Math.log(2) / 3).toFixed(6)), max: two, min: -2 * two },
      ...{ fraction_high: 0, fraction_low: 0.333333, masked_fraction: 0.333333, seq_masked_fraction: 0.333333 },
      ...{ seq_mean: 0, seq_max: two, seq_min: -two, seq_fraction_high: 0, seq_fraction_low: 0 },
    });
    const k2 = shares({ rollout_rs: "seq_max_k2", rollout_rs_threshold: 0.3 }, [4, 9, 1, 0.5], "seq_max_k2_");
    expect(k2).toMatchObject({
      fraction_high: 0.5,
      fraction_low: 0,
      masked_fraction: 0.666667,
      seq_masked_fraction: 0.5,
    });
    expect(k2).not.toHaveProperty("seq_fraction_low");
    expect(shares({ rollout_rs: "seq_max_k2", rollout_rs_threshold: 0.3 }, [4, 9, 1, 0.5], "")).toMatchObject({
      ...{ masked_fraction: 0.666667, seq_masked_fraction: 0.333333 },
    });
  });

  test("measures how far the policies are apart", () => {
    const batch = {
      ...{ offsets: Uint32Array.of(0, 3, 4), mask: Uint32Array.of(1, 0, 1, 1) },
      ...{ logprobs: [-1, -9, -2, -1], rolloutLogprobs: [-2, 0, -2, -1.5] },
    };
    const E = Math.exp;
    const wanted = {
      training_ppl: (E(1.5) + E(1)) / 2,
      training_log_ppl: 1.25,
      kl: -0.5,
      k3_kl: (E(1) - 2 + E(0.5) - 1.5) / 3,
      rollout_ppl: (E(2) + E(1.5)) / 2,
      rollout_log_ppl: 1.75,
      log_ppl_diff: -0.5,
      log_ppl_abs_diff: 0.5,
      log_ppl_diff_max: -0.5,
      log_ppl_diff_min: -0.5,
      ppl_ratio: E(-0.5),
      chi2_token: (E(2) + 1 + E(1)) / 3 - 1,
      chi2_seq: (E(2) + E(1)) / 2 - 1,
    };
    const found = offPolicyMetrics(batch);
    expect(Object.keys(found).sort()).toEqual(Object.keys(wanted).sort());
    for (const [name, value] of Object.entries(wanted)) expect(found[name], name).toBeCloseTo(value, 6);
    const half = {
      ...batch,
      logprobs: [0.5, 9, 0.25, 0.75].map(Math.log),
      rolloutLogprobs: [0.25, 9, 0.25, 1].map(Math.log),
    };
    const probabilities = probabilityMetrics(half);
    const differences = { max: 0.25, mean: 1 / 6, std: Math.sqrt(1 / 48), valid: 1 };
    for (const [name, value] of Object.entries(differences))
      expect(probabilities[`training/rollout_probs_diff_${name}`], name).toBeCloseTo(value, 9);
    expect(probabilities["training/rollout_actor_probs_pearson_corr"]).toBeCloseTo(Math.sqrt(3) / 2, 9);
  });

  test("has published presets", () => {
    expect(correctionPreset("decoupled_seq_is")).toEqual({
      ...{ rollout_is: "sequence", rollout_is_threshold: 2, rollout_rs: null },
    });
    for (const name of ["none", "toString"])
      expect(() => correctionPreset(name)).toThrow(/there is no preset ".+"\. Use disabled, .*\(preset\)\.$/);
  });
});

describe("the critic's loss", () => {
  const of = (value: number, old: number, target: number, clip = 0.5) => {
    const arrays = { values: [value], oldValues: [old], returns: [target] };
    const batch = { ...arrays, offsets: Uint32Array.of(0, 1), mask: Uint32Array.of(1) };
    const { loss, dvalues, metrics } = valueLoss(batch, { loss_agg_mode: "token-mean", cliprange_value: clip });
    return [loss, dvalues[0], Math.round(metrics["critic/vf_clipfrac"]!), rounded([metrics["critic/vpred_mean"]!])[0]];
  };

  test.each([
    ["inside its range", [1.25, 1, 2], [0.28125, -0.75, 0, 1.25]],
    ["at its upper bound", [1.5, 1, 2], [0.125, -0.5, 0, 1.5]],
    ["beyond it, nearer", [2, 1, 2], [0.125, 0, 1, 2]],
    ["beyond it, farther", [4, 1, 2], [2, 2, 0, 4]],
    ["below it, nearer", [0, 1, 0], [0.125, 0, 1, 0]],
    ["at its lower bound", [0.5, 1, 0], [0.125, 0.5, 0, 0.5]],
    ["below it, farther", [-2, 1, 0], [2, -2, 0, -2]],
  ])("%s", (_, [value, old, target], wanted) => {
    expect(of(value!, old!, target!)).toEqual(wanted);
  });
});

test("KL to the reference is aggregated over trained tokens", () => {
  const batch = {
    ...{ offsets: Uint32Array.of(0, 3, 4), mask: Uint32Array.of(1, 0, 1, 1) },
    ...{ logprobs: [-1, 5, -2, -1], refLogprobs: [-3, 0, -2, -2] },
  };
  const { values, loss, dlogprobs } = klLoss(batch, { kl: "k2", loss_agg_mode: "seq-mean-token-mean" });
  expect([...values]).toEqual([2, 0, 0, 0.5]);
  expect(loss).toBeCloseTo(0.75, 7);
  expect(rounded(dlogprobs)).toEqual([0.5, 0, 0, 0.5]);
  const far = { ...batch, logprobs: [-9, 5, -2, -1] };
  const k3 = (bound?: number) => klLoss(far, { kl: "k3", loss_agg_mode: "token-sum", bound }).values[0];
  expect([k3(), k3(1e9)]).toEqual([10, Math.expm1(6) - 6]);
});

describe("TRL's weights at their limits", () => {
  const batch = {
    offsets: Uint32Array.of(0, 2, 2, 3),
    mask: Uint32Array.of(1, 1, 1),
    logprobs: [-1, -1, -1],
    oldLogprobs: [-1, -1, -1],
    rolloutLogprobs: [-1.5, -0.5, 0],
    entropy: [1, 2, 3],
    advantages: perRow(-1, -1, 0),
  };
  const of = (options: object, given: object = {}) => rounded(trlWeights({ ...batch, ...given }, options));

  test("a drift equal to the threshold is kept, and an advantage of 0", () => {
    expect(of({ off_policy_mask_threshold: 0 })).toEqual([1, 1, 1]);
    expect(of({ off_policy_mask_threshold: -0.1 })).toEqual([0, 0, 1]);
    expect(of({ off_policy_mask_threshold: 0 }, { advantages: perRow(-1, -1, -1) })).toEqual([1, 1, 0]);
  });

  test("the quantile is interpolated, and all tokens are a share of 1", () => {
    expect(of({ top_entropy_quantile: 1 }, { entropy: undefined })).toEqual([1, 1, 1]);
    expect(of({ top_entropy_quantile: 0.5 })).toEqual([0, 1, 1]);
    expect(of({ top_entropy_quantile: 0.25 })).toEqual([0, 0, 1]);
    expect(of({ top_entropy_quantile: 0 })).toEqual([0, 0, 1]);
  });

  test("a ratio is kept at its bounds, 0 and 3 without others", () => {
    const ratios = (...all: number[]) => ({ oldLogprobs: all.map(Math.log), rolloutLogprobs: [0, 0, 0] });
    const mode = (vllm_importance_sampling_mode: string, low?: number, high?: number) => ({
      vllm_importance_sampling_mode,
      ...(low !== undefined && { vllm_importance_sampling_clip_min: low }),
      ...(high !== undefined && { vllm_importance_sampling_clip_max: high }),
    });
    expect(of(mode("token_truncate"), ratios(0.001, 2.5, 4))).toEqual([0.001, 2.5, 3]);
    expect(of(mode("token_mask"), ratios(0.001, 2.5, 4))).toEqual([0.001, 2.5, 0]);
    expect(of(mode("token_mask", 0.5, 2), ratios(0.5, 2, 0.25))).toEqual([0.5, 2, 0]);
    expect(of(mode("token_truncate", 0.5, 2), ratios(0.25, 1, 9))).toEqual([0.5, 1, 2]);
    expect(of(mode("sequence_truncate"), ratios(2, 0.5, 9))).toEqual([1, 1, 3]);
    for (const name of ["token", "xtoken_mask", "token_masks"])
      expect(() => of(mode(name))).toThrow(/there is no mode ".+"\. .*\(vllm_importance_sampling_mode\)\.$/);
    for (const field of ["oldLogprobs", "rolloutLogprobs"])
      expect(() => of(mode("token_mask"), { [field]: undefined })).toThrow(
        `the batch does not hold ${field}. Give ${field}`,
      );
    expect(() => of({ off_policy_mask_threshold: 1 }, { advantages: undefined })).toThrow(/not hold advantages\./);
  });
});
