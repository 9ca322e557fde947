/** The host's side of the algorithms in figures: settings, returns, corrections, and the references of the kernels. */
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { forEachRewards, rewardsToGo } from "../../../src/engine/algorithm/advantage/estimators/returns.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantageRows, ROWS_MODE } from "../../../src/engine/algorithm/advantage/kernels.ts";
import { planCorrection } from "../../../src/engine/algorithm/correction/config.ts";
import { rolloutCorrection } from "../../../src/engine/algorithm/correction/host.ts";
import { correctionWeights } from "../../../src/engine/algorithm/correction/kernels.ts";
import { adaptiveKlController, fixedKlController } from "../../../src/engine/algorithm/kl/controller.ts";
import { KL_NAMES, klCode, klEstimate } from "../../../src/engine/algorithm/kl/estimate.ts";
import { klInReward } from "../../../src/engine/algorithm/kl/reward.ts";
import { tokenWeights, weightOfRow } from "../../../src/engine/algorithm/loss/aggregation.ts";
import { defineLoss } from "../../../src/engine/algorithm/loss/custom.ts";
import { planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { lossForm } from "../../../src/engine/algorithm/loss/form.ts";
import { findLoss } from "../../../src/engine/algorithm/loss/losses.ts";
import { hashToken, selectTokens } from "../../../src/engine/algorithm/loss/selection.ts";
import { countRows, filledRows, trainedTokens } from "../../../src/engine/algorithm/rows.ts";
import { mergeSettings } from "../../../src/engine/algorithm/settings.ts";

describe("settings", () => {
  const of = { name: "mine", settings: { beta: 0.5, exact: true } };

  test("override the published defaults, and unknown or unfit ones are refused", () => {
    expect(mergeSettings("loss", of, { beta: 2 })).toEqual({ beta: 2, exact: true });
    const refused = (given: object) => () => mergeSettings("loss", of, given);
    expect(refused({ gamma: 1 })).toThrow("Cannot set gamma of the loss mine: it has beta, exact (gamma).");
    expect(refused({ beta: "2" })).toThrow("Cannot set beta of the loss mine: it takes a number (2) (beta).");
    expect(refused({ beta: Number.NaN })).toThrow("it takes a number (NaN)");
    expect(refused({ exact: 1 })).toThrow("it takes a boolean (1)");
    expect(() => mergeSettings("loss", { name: "bare", settings: {} }, { a: 1 })).toThrow("it has no settings (a).");
  });

  test("with a schema are what it makes of them; its refusals name the setting", () => {
    const schema = z.object({ beta: z.number().min(0).default(3), deep: z.object({ k: z.number() }).optional() });
    const own = { name: "mine", settings: { beta: 3 }, schema };
    expect(mergeSettings("loss", own as never, {})).toEqual({ beta: 3 });
    expect(mergeSettings("loss", own as never, { beta: 1 })).toEqual({ beta: 1 });
    const refused = () => mergeSettings("loss", own as never, { beta: -1, deep: { k: "x" } });
    expect(refused).toThrow(
      /^Cannot set the settings of the loss mine: its schema refuses them \(beta: .+; deep\.k: .+\)/,
    );
    expect(refused).toThrow(expect.objectContaining({ path: "beta" }) as Error);
  });

  test("with another kind of schema quote its error", () => {
    const schema = {
      parse() {
        throw new Error("too hot");
      },
    };
    const merge = () => mergeSettings("estimator", { name: "mine", settings: {}, schema }, {});
    expect(merge).toThrow("Cannot set the settings of the estimator mine: its schema refuses them (too hot).");
    expect(merge).toThrow(expect.objectContaining({ path: undefined }) as Error);
  });
});

// Rows of 3, 0 and 2 tokens; the last token of the first one is not trained on.
const OFFSETS = Uint32Array.of(0, 3, 3, 5);
const MASK = Uint32Array.of(1, 1, 0, 1, 1);
const batch = {
  offsets: OFFSETS,
  mask: MASK,
  groups: packGroups(Uint32Array.of(0, 0, 0), 1),
  scores: Float32Array.of(4, 9, -2),
};

test("rows, trained tokens and rows with one are counted", () => {
  const counts = countRows(OFFSETS, MASK);
  expect(counts).toEqual({ tokens: 5, trained: Uint32Array.of(2, 0, 2), longest: 3 });
  expect([trainedTokens(counts), filledRows(counts)]).toEqual([4, 2]);
});

describe("rewards", () => {
  const rewards = (tokenRewards?: Float32Array) => {
    const found: number[] = [];
    forEachRewards({ ...batch, tokenRewards } as never, ({ first, end, reward }) => {
      for (let t = first; t < end; t++) found.push(reward(t));
    });
    return found;
  };

  test("of a row stand at its last trained token; those of tokens where they are", () => {
    expect(rewards()).toEqual([0, 4, 0, 0, -2]);
    expect(rewards(Float32Array.of(1, 2, 3, 4, 5))).toEqual([1, 2, 3, 4, 5]);
  });

  test("to go are what a row still earns", () => {
    expect([...rewardsToGo(batch as never)]).toEqual([4, 4, 0, -2, -2]);
    const tokenRewards = Float32Array.of(1, 2, 3, 4, 5);
    expect([...rewardsToGo({ ...batch, tokenRewards } as never)]).toEqual([3, 2, 0, 9, 5]);
  });
});

describe("the reference of the kernel of rows", () => {
  const run = (mode: number, constants: object, rewards = [4, 9, -2]) => {
    const [advantages, returns] = [new Float32Array(5), new Float32Array(5)];
    advantageRows.reference(
      {
        ...{ rewards: Float32Array.from(rewards), mask: MASK, offsets: OFFSETS, advantages, returns },
        values: Float32Array.of(10, 20, 30, 40, 50),
      } as never,
      { rows: 3, gamma: 0.5, lam: 1 } as never,
      { MODE: mode, TOKEN_REWARDS: 0, BASELINE: 0, ...constants } as never,
    );
    return { advantages: [...advantages], returns: [...returns] };
  };

  test("subtracts the row's baseline from rewards to go, at trained tokens, where it is asked to", () => {
    const returns = [4, 4, 0, -2, -2];
    expect(run(ROWS_MODE.toGo, {})).toEqual({ returns, advantages: returns });
    expect(run(ROWS_MODE.toGo, { BASELINE: 1 })).toEqual({ returns, advantages: [-6, -6, 0, -32, -32] });
  });

  test("discounts, and knows no baseline in other modes", () => {
    const returns = [2, 4, 0, -1, -2];
    expect(run(ROWS_MODE.discounted, { BASELINE: 1 })).toEqual({ returns, advantages: returns });
    expect(run(ROWS_MODE.discounted, { TOKEN_REWARDS: 1 }, [1, 2, 3, 4, 5]).returns).toEqual([2, 2, 0, 6.5, 5]);
  });

  test("starts again at a masked token in the mode of that name", () => {
    const gapped = run(ROWS_MODE.reset, { TOKEN_REWARDS: 1 }, [1, 2, 3, 4, 5]);
    expect(gapped.returns).toEqual([2, 2, 3, 6.5, 5]);
  });
});

describe("the reference of the kernel of weights", () => {
  const run = (ratios: number[], constants: object, { low = 0.5, high = 2 } = {}) => {
    const weights = new Float32Array(5);
    correctionWeights.reference(
      {
        ...{
          logprobs: Float32Array.from(ratios, Math.log),
          rollout: new Float32Array(5),
          mask: MASK,
          offsets: OFFSETS,
        },
        weights,
      } as never,
      { rows: 3, low, high } as never,
      { SEQUENCE: 0, ICEPOP: 0, ...constants } as never,
    );
    return Array.from(weights, (weight) => Number(weight.toFixed(5)));
  };

  test("caps a token's ratio, or leaves it out outside the bounds", () => {
    const ratios = [0.25, 4, 7, 0.75, 1.5];
    expect(run(ratios, {})).toEqual([0.25, 2, 0, 0.75, 1.5]);
    expect(run(ratios, { ICEPOP: 1 })).toEqual([0, 0, 0, 0.75, 1.5]);
    expect(run(ratios, { ICEPOP: 1 }, { low: 0, high: 9 })).toEqual([0.25, 4, 0, 0.75, 1.5]);
  });

  test("takes a row's product where it weighs sequences", () => {
    expect(run([0.25, 4, 7, 0.75, 1.5], { SEQUENCE: 1 })).toEqual([1, 1, 0, 1.125, 1.125]);
  });
});

describe("the plan of a correction", () => {
  const rejections = (rollout_rs: string, rollout_rs_threshold: number | string | null) =>
    planCorrection({ rollout_rs, rollout_rs_threshold }).rejections.map(({ statistic: { name }, low, high }) => [
      name,
      low,
      high,
    ]);

  test("one threshold counts for all options, or each has its own", () => {
    const low = Number.NEGATIVE_INFINITY;
    expect(rejections("token_k3, seq_sum_k2", 0.5)).toEqual([
      ["token_k3", low, 0.5],
      ["seq_sum_k2", low, 0.5],
    ]);
    expect(rejections("token_k3,seq_sum_k2,token_k3", "0.5,0.25")).toEqual([
      ["token_k3", low, 0.5],
      ["seq_sum_k2", low, 0.25],
    ]);
    expect(rejections("token_k1", "0.5_2")).toEqual([["token_k1", Math.log(0.5), Math.log(2)]]);
    expect(rejections("token_k1", "2_2")).toEqual([["token_k1", Math.log(2), Math.log(2)]]);
    expect(rejections("seq_mean_k1", 2)).toEqual([["seq_mean_k1", -Math.log(2), Math.log(2)]]);
  });

  test("weights are bounded by one number from above, by two from both sides", () => {
    const bounds = (rollout_is_threshold?: number | string) =>
      planCorrection({ rollout_is: "token", ...(rollout_is_threshold && { rollout_is_threshold }) }).bounds;
    expect(bounds()).toEqual({ low: 0.5, high: 2, icepop: false });
    expect(bounds(4)).toEqual({ low: 0.25, high: 4, icepop: false });
    expect(bounds("0.5_5")).toEqual({ low: 0.5, high: 5, icepop: true });
  });

  test.each<[config: object, message: RegExp]>([
    [{ rollout_is: "row" }, /rollout_is must be token, sequence or null \("row"\) \(rollout_is\)\.$/],
    [{ rollout_rs: "token_k1" }, /rollout_rs is set, and rollout_rs_threshold is not\. .*\(rollout_rs_threshold\)\.$/],
    [{ rollout_rs: "token_k1", rollout_rs_threshold: null }, /rollout_rs_threshold is not/],
    [
      { rollout_rs: "token_k1,token_k2,token_k3", rollout_rs_threshold: "1,2" },
      /rollout_rs_threshold needs 1 or 3 values \(1,2\) \(rollout_rs_threshold\)\.$/,
    ],
    [{ rollout_rs: "token_k1", rollout_rs_threshold: "1,2" }, /needs 1 or 1 values/],
    [{ rollout_rs: "token_k4", rollout_rs_threshold: 1 }, /no option "token_k4"\. Use token_k1, .*\(rollout_rs\)\.$/],
    [{ rollout_rs: "seq_max_k1", rollout_rs_threshold: 1 }, /no option "seq_max_k1"/],
    [{ rollout_rs: "token_k2", rollout_rs_threshold: "0.5_2" }, /Cannot bound token_k2 from below: .*\(0\.5_2\)/],
    [{ rollout_rs: "token_k1", rollout_rs_threshold: "0" }, /Cannot read the threshold "0"/],
    [{ rollout_rs: "token_k1", rollout_rs_threshold: "2_1" }, /Cannot read the threshold "2_1"/],
    [{ rollout_rs: "token_k1", rollout_rs_threshold: "1_2_3" }, /Cannot read the threshold "1_2_3"/],
    [
      { rollout_is: "token", rollout_is_threshold: "x" },
      /Cannot read the threshold "x": .*\(rollout_is_threshold\)\.$/,
    ],
  ])("%j is refused", (config, message) => {
    expect(() => planCorrection(config)).toThrow(message);
  });
});

describe("rejected rows", () => {
  const of = (ratios: number[], mask = MASK) =>
    rolloutCorrection(
      { offsets: OFFSETS, mask, logprobs: Float32Array.from(ratios, Math.log), rolloutLogprobs: new Float32Array(5) },
      { rollout_rs: "token_k1,seq_sum_k1", rollout_rs_threshold: 2 },
    );

  test("are counted among those with trained tokens", () => {
    const { metrics, mask } = of([4, 1, 1, 1, 1]);
    expect([...mask]).toEqual([0, 0, 0, 1, 1]);
    const shares = Object.entries(metrics).filter(([name]) => /masked_fraction$/.test(name));
    expect(shares.length).toBeGreaterThan(2);
    for (const [, share] of shares) {
      expect(share).toBeGreaterThan(0);
      expect(share).toBeLessThan(1);
    }
  });

  test("are none where none has a trained token", () => {
    const { metrics } = of([4, 4, 4, 4, 4], new Uint32Array(5));
    const shares = Object.entries(metrics).filter(([name]) => /seq_sum_k1_masked_fraction$/.test(name));
    expect(shares.map(([, share]) => share)).toEqual([0]);
  });
});

describe("the KL divergence", () => {
  test.each([
    ["kl", 2, 2, 1],
    ["k1", -2, -2, 1],
    ["abs", -2, 2, -1],
    ["mse", 3, 4.5, 3],
    ["k2", -3, 4.5, -3],
    ["k1+", 2, 2, 2],
    ["k3", 0, 0, 0],
    ["low_var_kl", 1, Math.exp(-1), 1 - Math.exp(-1)],
    ["k3+", 1, Math.exp(-1), 1],
    // Clipped at 10, where it has no slope.
    ["k3", -3, 10, 0],
    ["k3", -2, Math.exp(2) - 3, 1 - Math.exp(2)],
  ])("%s at %f", (name, x, value, slope) => {
    const found = klEstimate(klCode(name), x);
    expect(found.value).toBeCloseTo(value, 12);
    expect(found.slope).toBeCloseTo(slope, 12);
  });

  test("has two forms of each name, and no others", () => {
    expect(KL_NAMES).toHaveLength(14);
    for (const name of ["k4", "+", "k1++", ""]) expect(() => klCode(name)).toThrow(/\(kl_loss_type\)\.$/);
    for (const code of [-1, 0, 9, 16]) expect(() => klEstimate(code, 0.1), String(code)).toThrow(/no KL estimate/);
  });

  test("a ratio beyond 20 counts as 20, without a slope", () => {
    const code = klCode("k3");
    expect(klEstimate(code, 21, Infinity)).toEqual({ value: klEstimate(code, 20, Infinity).value, slope: 0 });
    expect(klEstimate(code, 20, Infinity).slope).not.toBe(0);
  });

  test("its coefficient moves by a fifth of the step at most, or not at all", () => {
    const controller = adaptiveKlController(0.5, { target_kl: 2, horizon: 100 });
    expect(controller.update(2, 10).coef).toBe(0.5);
    expect(controller.update(2.2, 10).coef).toBeCloseTo(0.5 * 1.01, 12);
    expect(controller.update(9, 10).coef).toBeCloseTo(0.5 * 1.02, 12);
    expect(controller.update(0, 10).coef).toBeCloseTo(0.5 * 0.98, 12);
    expect(controller.update(9, 10).update(9, 10).coef).toBeCloseTo(0.5 * 1.02 ** 2, 12);
    expect(fixedKlController(0.3).update(9, 10).coef).toBe(0.3);
    for (const horizon of [0, -1, Number.NaN])
      expect(() => adaptiveKlController(1, { target_kl: 1, horizon })).toThrow(/horizon must be above 0/);
  });

  test("in the reward costs at trained tokens, and is reported by row", () => {
    const { tokenRewards, controller, metrics } = klInReward(
      {
        ...{ offsets: OFFSETS, mask: MASK, tokenRewards: [1, 1, 1, 1, 1] },
        ...{ oldLogprobs: [1, 3, 9, 2, 4], refLogprobs: [0, 0, 0, 0, 0] },
      },
      { kl: "k1", controller: fixedKlController(0.5) },
    );
    expect([...tokenRewards]).toEqual([0.5, -0.5, 1, 0, -1]);
    expect(controller.coef).toBe(0.5);
    expect(metrics["actor/reward_kl_penalty"]).toBeCloseTo((2 + 0 + 3) / 3, 6);
    expect(metrics["actor/reward_kl_penalty_coeff"]).toBe(0.5);
  });
});

describe("a token's loss", () => {
  const of = (name: string, token: object, settings: object = {}) => {
    const loss = planLoss(findLoss(name), settings as never);
    return loss.form.token({ logprob: 0, d: 0, advantage: 1, a: 0, ...token } as never, loss.params);
  };

  // phi = e^(lambda + k a - lambda e^a), with k 2 and lambda 3 above an advantage of 0, 3 and 2 below.
  test.each([
    [2, 0, 1],
    [2, 0.5, Math.exp(3 + 1 - 3 * Math.exp(0.5))],
    [0, 0.5, Math.exp(3 + 1 - 3 * Math.exp(0.5))],
    [-1, 0.5, Math.exp(2 + 1.5 - 2 * Math.exp(0.5))],
  ])("VESPO with the advantage %f at the log-ratio %f", (advantage, a, phi) => {
    const { value, slope, metrics } = of("trl.vespo", { advantage, a, logprob: -0.5, d: 0.25 });
    expect(slope).toBeCloseTo(-phi * advantage, 12);
    expect(value).toBeCloseTo(0.5 * phi * advantage, 12);
    expect(metrics[0]).toBeCloseTo(phi, 12);
    expect(metrics.slice(1)).toEqual([-0.25, 0]);
  });
});

describe("the weight of a token", () => {
  // Rows of 2, 0 and 2 trained tokens, the longest of 3 tokens.
  const rows = countRows(OFFSETS, MASK);

  test.each([
    ["token-mean", {}, 1 / 4, false],
    ["token-mean", { batch_num_tokens: 10, dp_size: 2 }, 1 / 5, false],
    ["token-sum", { dp_size: 2 }, 2, false],
    ["seq-mean-token-sum", {}, 1 / 2, false],
    ["seq-mean-token-sum", { global_batch_size: 8 }, 1 / 8, false],
    ["seq-mean-token-mean", {}, 1 / 2, true],
    ["seq-mean-token-sum-norm", {}, 1 / 6, false],
    ["seq-mean-token-sum-norm", { loss_scale_factor: 10, dp_size: 2 }, 1 / 10, false],
    ["seq-mean-token-sum-norm", { loss_scale_factor: 10, compat: "verl-2026-01" }, 1 / 10, false],
    ["seq-mean-token-sum-norm", { compat: "verl-2026-01" }, 1 / 3, false],
  ] as const)("in %s with %j", (mode, given, uniform, byRow) => {
    const weights = tokenWeights(mode, rows, given);
    expect(weights.uniform).toBeCloseTo(uniform, 12);
    expect(weights.byRow).toBe(byRow);
    expect(weightOfRow(weights, 2)).toBeCloseTo(byRow ? uniform / 2 : uniform, 8);
  });

  test.each(["mean", "toString", ""])("in %j is refused", (mode) => {
    expect(() => tokenWeights(mode, rows)).toThrow(
      /^Cannot aggregate the loss: there is no mode .*\(loss_agg_mode\)\.$/,
    );
  });
});

describe("a user's loss", () => {
  test("needs a form, and its text the function", async () => {
    const bare = defineLoss({ name: "no_form", settings: {} } as never);
    await expect(bare).rejects.toThrow(/^Cannot register the loss no_form: it has no form\. .*\(loss\)\.$/);
    const named = defineLoss({ name: "reserved", settings: { logits_temperature: 1 }, token: () => null } as never);
    await expect(named).rejects.toThrow(
      /^Cannot register the loss reserved: its setting logits_temperature .*\(loss\)\.$/,
    );
    expect(() => lossForm({ name: "other", params: [], wgsl: "fn other() {}" })).toThrow(
      /it does not define token_loss\. .*\(wgsl\)\.$/,
    );
  });
});

test("tokens drawn at random come in the order of their hashes", () => {
  const logprobs = Float32Array.of(-1, -2, -3, -4, -5, -6);
  const streams = {
    ...{ logprobs, mask: new Uint32Array(6).fill(1), old: logprobs, row: () => 0 },
    advantage: (t: number) => t,
  };
  const selection = { kind: "random", ratio: 0.5, lower: -100, upper: 100, seed: 3, low: 0.8, high: 1.2 };
  const isChosen = selectTokens(selection as never, streams as never, 6);
  const byHash = [0, 1, 2, 3, 4, 5].sort((t, u) => hashToken(u, 3) - hashToken(t, 3));
  expect([0, 1, 2, 3, 4, 5].filter(isChosen).sort()).toEqual(byHash.slice(0, 3).sort());
});
