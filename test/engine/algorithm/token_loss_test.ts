/** The losses of single tokens in figures: at the bounds of their ratios exactly, beyond them, and at their limits. */
import { describe, expect, test } from "vitest";
import { planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { findLoss } from "../../../src/engine/algorithm/loss/losses.ts";
import type { LossSettings, Token } from "../../../src/engine/algorithm/loss/token.ts";

/** A loss with absolute bounds, so that a ratio of exactly 1 lies exactly at one of them. */
const lossOf = (name: string, token: Partial<Token>, settings: LossSettings = {}) => {
  const plan = planLoss(findLoss(name), name === "dro" ? { dro_beta: 1 } : {});
  const { value, slope, metrics } = plan.form.token(
    { logprob: 0, d: 0, advantage: 1, a: 0, b: 0, ...token },
    { ...plan.params, ...settings },
  );
  // Adding 0 makes -0 a 0.
  return [value + 0, slope + 0, metrics.map((x) => x + 0)] as const;
};

type Case = [
  what: string,
  name: string,
  token: Partial<Token>,
  settings: LossSettings,
  value: number,
  slope: number,
  metrics: number[],
];

const E = Math.exp;
const LOG2 = Math.log(2);
const OPEN = { low: 0, high: Infinity, cap: Infinity };
const BAND = { low: 0.5, high: 1.5, cap: Infinity };

const check = (cases: readonly Case[]) =>
  test.each(cases)("%s: %s", (_, name, token, settings, value, slope, metrics) => {
    const got = lossOf(name, token, settings);
    expect(got[0]).toBeCloseTo(value, 11);
    expect(got[1]).toBeCloseTo(slope, 11);
    expect(got[2]).toHaveLength(3);
    for (const [k, metric] of metrics.entries()) expect(got[2][k]).toBeCloseTo(metric, 11);
  });

describe("a ratio at its bound still learns, and counts as inside", () => {
  check([
    ["at the upper bound", "vanilla", {}, { low: 0.5, high: 1, cap: 3 }, -1, -1, [0, 0, 0]],
    ["at the lower bound", "vanilla", { advantage: -1 }, { low: 1, high: 2, cap: 3 }, 1, 1, [0, 0, 0]],
    ["at the upper bound", "gspo", {}, { low: 0.5, high: 1 }, -1, -1, [0, 0, 0]],
    ["at the lower bound", "gspo", { advantage: -1 }, { low: 1, high: 2 }, 1, 1, [0, 0, 0]],
    ["at the upper bound", "clip_cov", {}, { low: 0.5, high: 1 }, -1, -1, [0, 0, 0]],
    ["at the lower bound", "clip_cov", { advantage: -1 }, { low: 1, high: 2 }, 1, 1, [0, 0, 0]],
    ["at the upper bound", "tinker.ppo", {}, { low: 0.5, high: 1 }, -1, -1, [0, 0, 0]],
    ["at the lower bound", "tinker.ppo", { advantage: -1 }, { low: 1, high: 2 }, 1, 1, [0, 0, 0]],
    ["at the upper bound", "trl.grpo", {}, { low: 0.5, high: 1 }, -1, -1, [0, 0, 0]],
    ["at the lower bound", "trl.grpo", { advantage: -1 }, { low: 1, high: 2 }, 1, 1, [0, 0, 0]],
    ["at the upper bound", "geo_mean", { d: 0.25, a: 2, b: 3 }, { low: -0.5, high: 0.25 }, 2, 3, [0, -0.25, 0]],
    ["at the lower bound", "geo_mean", { d: -0.5, b: 3, advantage: -1 }, { low: -0.5, high: 1 }, 0, 3, [0, 0.5, 0]],
    ["at the upper bound", "cispo", { logprob: -2 }, { low: 0.5, high: 1 }, 2, -1, [0, 0, 0]],
    ["at the lower bound", "cispo", { logprob: -2 }, { low: 1, high: 2 }, 2, -1, [0, 0, 0]],
    ["at the upper bound", "tinker.cispo", { logprob: -2 }, { low: 0.5, high: 1 }, 2, -1, [0, 0, 0]],
    ["at the upper bound", "trl.cispo", { logprob: -2 }, { high: 1 }, 2, -1, [0, 0, 0]],
  ]);
});

describe("a ratio beyond its bound", () => {
  check([
    ["above, where it helps", "vanilla", { d: LOG2 }, BAND, -1.5, 0, [1, -LOG2, 0]],
    ["above, where it hurts", "vanilla", { d: LOG2, advantage: -1 }, BAND, 2, 2, [0, -LOG2, 0]],
    ["below, where it helps", "vanilla", { d: -2, advantage: -1 }, BAND, 0.5, 0, [1, 2, 0]],
    ["below, where it hurts", "vanilla", { d: -2 }, BAND, -E(-2), -E(-2), [0, 2, 0]],
    ["above, where it helps", "gspo", { a: LOG2, d: 0.5 }, BAND, -1.5, 0, [1, -0.5, 0]],
    ["above, where it hurts", "gspo", { a: LOG2, d: 0.5, advantage: -1 }, BAND, 2, 2, [0, -0.5, 0]],
    ["above, where it helps", "clip_cov", { d: LOG2 }, BAND, -1.5, 0, [0, -LOG2, 0]],
    ["above, and dropped", "clip_cov", { d: LOG2, a: 1, advantage: -1 }, BAND, 0, 0, [1, -LOG2, 0]],
    ["above, and kept", "clip_cov", { d: LOG2, a: 0, advantage: -1 }, BAND, 2, 2, [0, -LOG2, 0]],
    ["above", "geo_mean", { d: 0.5, a: 2, b: 3 }, { low: -0.25, high: 0.25 }, 2, 0, [1, -0.5, 0]],
    ["above", "geo_mean", { d: 0.5, a: 2, b: 3, advantage: -1 }, { low: -0.25, high: 0.25 }, 2, 3, [0, -0.5, 1]],
    ["below", "geo_mean", { d: -0.5, a: 2, b: 3 }, { low: -0.25, high: 0.25 }, 2, 3, [1, 0.5, 0]],
    ["below", "geo_mean", { d: -0.5, a: 2, b: 3, advantage: -1 }, { low: -0.25, high: 0.25 }, 2, 0, [0, 0.5, 1]],
    ["without advantage", "geo_mean", { a: 2, b: 3, advantage: 0 }, { low: -1, high: 1 }, 2, 0, [0, 0, 0]],
    ["outside, without advantage", "geo_mean", { d: 2, b: 3, advantage: 0 }, { low: -1, high: 1 }, 0, 0, [0, -2, 0]],
    ["above", "cispo", { d: LOG2, logprob: -2 }, BAND, 3, -1.5, [1, -LOG2, 0]],
    ["below", "cispo", { d: -2, logprob: -2 }, BAND, 1, -0.5, [1, 2, 0]],
    ["above", "tinker.cispo", { d: LOG2, logprob: -2 }, BAND, 3, -1.5, [1, -LOG2, 0]],
    ["above", "trl.cispo", { d: LOG2, logprob: -2 }, { high: 1.5 }, 3, -1.5, [0, -LOG2, 1]],
    ["above", "trl.cispo", { d: LOG2, logprob: -2, advantage: -1 }, { high: 1.5 }, -3, 1.5, [0, -LOG2, 0]],
    ["above", "trl.cispo", { d: LOG2, logprob: -2, advantage: 0 }, { high: 1.5 }, 0, 0, [0, -LOG2, 0]],
    ["above", "trl.grpo", { d: LOG2 }, BAND, -1.5, 0, [0, -LOG2, 1]],
    ["above", "trl.grpo", { d: LOG2, advantage: -1 }, BAND, 2, 2, [0, -LOG2, 0]],
    ["below", "trl.grpo", { d: -2, advantage: -1 }, BAND, 0.5, 0, [1, 2, 0]],
    ["below", "trl.grpo", { d: -2 }, BAND, -E(-2), -E(-2), [0, 2, 0]],
    ["above, without advantage", "trl.grpo", { d: LOG2, advantage: 0 }, BAND, 0, 0, [0, -LOG2, 0]],
    ["below, without advantage", "trl.grpo", { d: -2, advantage: 0 }, BAND, 0, 0, [0, 2, 0]],
  ]);
});

describe("a cap", () => {
  const down = { advantage: -1 };
  check([
    ["is not reached where the loss equals it", "vanilla", down, { low: 0.5, high: 2, cap: 1 }, 1, 1, [0, 0, 0]],
    ["ends loss and slope", "vanilla", { ...down, d: LOG2 }, { ...BAND, cap: 1.75 }, 1.75, 0, [0, -LOG2, 1]],
    ["counts for negative advantages alone", "vanilla", { d: LOG2 }, { ...OPEN, cap: 1.25 }, -2, -2, [0, -LOG2, 0]],
    ["lets a ratio equal to it learn", "trl.grpo", down, { low: 0.5, high: 0.75, delta: 1 }, 1, 1, [0, 0, 0]],
    [
      "gives a ratio above it no slope",
      "trl.grpo",
      { ...down, d: LOG2 },
      { low: 0.5, high: 1, delta: 1.5 },
      1.5,
      0,
      [0, -LOG2, 0],
    ],
    [
      "comes before the count of clipped ones",
      "trl.grpo",
      { d: LOG2 },
      { ...BAND, delta: 1.5 },
      -1.5,
      0,
      [0, -LOG2, 0],
    ],
  ]);
});

describe("a log-ratio", () => {
  // Of 20 for tokens and 10 for rows.
  const down = { advantage: -1 };
  check([
    ["at its limit learns", "vanilla", { d: -20 }, OPEN, -E(-20), -E(-20), [0, 20, 0]],
    ["at its limit learns", "vanilla", { ...down, d: 20 }, OPEN, E(20), E(20), [0, -20, 0]],
    ["beyond it does not", "vanilla", { ...down, d: 21 }, OPEN, E(20), 0, [0, -20, 0]],
    ["at its limit learns", "gspo", { ...down, a: 10, d: 30 }, OPEN, E(10), E(10), [0, -30, 0]],
    ["beyond it does not", "gspo", { ...down, a: 10.5 }, OPEN, E(10), 0, [0, 0, 0]],
    ["is not bounded", "tinker.gspo", { ...down, a: 10.5, d: 30 }, OPEN, E(10.5), E(10.5), [0, -30, 0]],
    ["is not bounded", "clip_cov", { ...down, d: 21 }, OPEN, E(21), E(21), [0, -21, 0]],
    ["is bounded", "cispo", { d: 21, logprob: -1 }, { low: 0, high: 2 }, 2, -2, [1, -20, 0]],
  ]);

  test("beyond its limit keeps the value without a slope, below too", () => {
    expect(lossOf("vanilla", { d: -20 }, OPEN)[1]).toBe(-E(-20));
    expect(lossOf("vanilla", { d: -21 }, OPEN).slice(0, 2)).toEqual([-E(-20), 0]);
    const taus = { tau_pos: 1, tau_neg: 2 };
    const [value, slope, metrics] = lossOf("sapo", { d: -20 }, taus);
    expect(slope).not.toBe(0);
    expect(lossOf("sapo", { d: -21 }, taus)).toEqual([value, 0, metrics]);
  });
});

describe("soft gates, covariances and plain gradients", () => {
  const gate = 1 / (1 + E(-1));
  const taus = { tau_pos: 1, tau_neg: 2 };
  check([
    ["at a ratio of 1", "sapo", {}, taus, -2, -1, [0, 0, 0]],
    ["at a ratio of 1", "sapo", { advantage: -1 }, taus, 1, 1, [0, 0, 0]],
    ["at a ratio of 2", "sapo", { d: LOG2 }, taus, -4 * gate, -8 * gate * (1 - gate), [0, -LOG2, 0]],
    ["at a ratio of 2", "trl.sapo", { d: LOG2 }, taus, -4 * gate, -8 * gate * (1 - gate), [0, -LOG2, 0]],
    ["at a ratio of 1", "trl.sapo", { advantage: -1 }, taus, 1, 1, [0, 0, 0]],
    ["of a log-prob", "gpg", { logprob: -3, advantage: 2, d: 0.5 }, {}, 6, -2, [0, -0.5, 0]],
    ["selected", "kl_cov", { d: LOG2, a: 1 }, { beta: 2 }, -2 + 2 * LOG2, 0, [0, LOG2, 0]],
    ["selected, below", "kl_cov", { d: -LOG2, a: 1 }, { beta: 2 }, -0.5 + 2 * LOG2, -2.5, [0, LOG2, 0]],
    ["not selected", "kl_cov", { d: LOG2, a: 0 }, { beta: 2 }, -2, -2, [0, LOG2, 0]],
    ["of a weight", "cross_entropy", { logprob: -3, advantage: 2, d: 0.5 }, {}, 6, -2, [0, 0, 0]],
    ["of a ratio", "importance_sampling", { d: LOG2, advantage: 3 }, {}, -6, -6, [0, -LOG2, 0]],
    ["of a square", "dro", { logprob: -3, advantage: 2, d: 0.5 }, { beta: 4 }, 6.5, 0, [0, -0.5, 0]],
    ["of a square", "tinker.dro", { logprob: -3, advantage: 2, d: -1 }, { beta: 4 }, 8, -6, [0, 1, 0]],
    ["of a sequence", "trl.luspo", { a: LOG2, d: 0.5, b: 7 }, { ...BAND, delta: 9 }, -1.5, 7, [0, -0.5, 1]],
  ]);
});

describe("DPPO", () => {
  const WIDE = { low: 1, high: 1, cap: 100 };
  // p = 0.5, p_old = 0.25 and 1: r = 2 and 0.5.
  const up = { logprob: -LOG2, d: LOG2 };
  const down = { logprob: -LOG2, d: -LOG2 };
  check([
    ["learns inside its region", "dppo_tv", up, WIDE, 2 * LOG2, -2, [0, -LOG2, 0]],
    ["takes the ratio up to the cap", "dppo_tv", up, { ...WIDE, cap: 1.5 }, 1.5 * LOG2, -1.5, [0, -LOG2, 1]],
    ["does not count a ratio equal to the cap", "dppo_tv", { logprob: -1 }, { ...WIDE, cap: 1 }, 1, -1, [0, 0, 0]],
    ["counts no cap outside", "dppo_tv", up, { low: 1, high: 0.125, cap: 1.5 }, 0, 0, [1, -LOG2, 0]],
    ["bounds the log-ratio", "dppo_tv", { logprob: -1, d: 21 }, { ...WIDE, cap: 2 }, 2, -2, [0, -20, 1]],
    ["keeps a change of `high`", "dppo_tv", up, { low: 0, high: 0.25, cap: 3 }, 2 * LOG2, -2, [0, -LOG2, 0]],
    ["keeps a change of 0", "dppo_tv", { logprob: -1 }, { low: -1, high: 0, cap: 3 }, 1, -1, [0, 0, 0]],
    ["keeps a fall, upwards", "dppo_tv", down, { low: 0, high: 0, cap: 3 }, 0.5 * LOG2, -0.5, [0, LOG2, 0]],
    ["drops a fall, downwards", "dppo_tv", { ...down, advantage: -1 }, { ...WIDE, low: 0.4 }, 0, 0, [1, LOG2, 0]],
    ["keeps a rise, downwards", "dppo_tv", { ...up, advantage: -1 }, { low: 0, high: 0, cap: 3 }, -2 * LOG2, 2, [0]],
    ["keeps a change of 0, downwards", "dppo_tv", { logprob: -1, advantage: -1 }, { low: 0, cap: 3 }, -1, 1, [0]],
    ["takes no advantage as downwards", "dppo_tv", { ...up, advantage: 0 }, { low: 0, high: 0, cap: 3 }, 0, 0, [0]],
    ["takes no advantage as downwards", "dppo_kl", { ...up, advantage: 0 }, { low: 0, high: 0, cap: 3 }, 0, 0, [0]],
    ["keeps a fall, upwards", "dppo_kl", down, { low: 0, high: 0, cap: 3 }, 0.5 * LOG2, -0.5, [0, LOG2, 0]],
    ["keeps a rise, downwards", "dppo_kl", { ...up, advantage: -1 }, { low: 0, high: 0, cap: 3 }, -2 * LOG2, 2, [0]],
    ["keeps p = p_old", "dppo_kl", { logprob: -1 }, { low: -1, high: -1, cap: 3 }, 1, -1, [0, 0, 0]],
    ["keeps p = p_old", "dppo_kl", { logprob: -1, advantage: -1 }, { low: -1, high: -1, cap: 3 }, -1, 1, [0]],
  ]);

  // KL(0.25 || 0.5) = 0.25 ln 0.5 + 0.75 ln 1.5, KL(1 || 0.5) = ln 2, and with p = 1, where 1e-8 keeps it finite.
  const rise = 0.25 * Math.log(0.5) + 0.75 * Math.log(1.5);
  const toOne = 0.5 * Math.log(0.5) + 0.5 * Math.log(0.50000001e8);
  test.each([
    [up, 1, rise],
    [{ ...down, d: -LOG2 }, -1, LOG2],
    [{ logprob: 0, d: LOG2 }, 1, toOne],
  ])("measures the binary KL of %j", (token, advantage, kl) => {
    const dropped = (bound: number) => {
      const own = advantage > 0 ? { low: 99, high: bound } : { low: bound, high: 99 };
      return lossOf("dppo_kl", { ...token, advantage }, { ...own, cap: 9 })[2][0];
    };
    expect(dropped(kl + 1e-6)).toBe(0);
    expect(dropped(kl - 1e-6)).toBe(1);
  });
});
