/** The losses of a server's clients: which inputs each takes, what is refused, and figures by hand. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { defineLoss } from "../../../src/engine/algorithm/loss/custom.ts";
import { lossForm } from "../../../src/engine/algorithm/loss/form.ts";
import { meanLogRatio } from "../../../src/engine/algorithm/loss/losses/mean_log_ratio.ts";
import { registerLoss } from "../../../src/engine/algorithm/loss/losses.ts";
import type { LossRows } from "../../../src/engine/contract/engine.ts";
import { ENGINE_LOSSES, EngineLoss, engineLosses } from "../../../src/train/backend/local/engine_loss.ts";

interface GspoFigures {
  readonly lengths: readonly number[];
  /** Log-probs of the trained policy. */
  readonly policy: readonly number[];
  readonly inputs: Readonly<Record<string, readonly number[]>>;
  readonly cases: Readonly<
    Record<string, { config: Record<string, number>; losses: readonly number[]; slopes: readonly number[] }>
  >;
}
const GSPO: GspoFigures = JSON.parse(
  readFileSync(new URL("../../fixtures/tinker_losses/gspo.json", import.meta.url), "utf8"),
);

const of = (...values: number[]) => Float32Array.from(values);
/** Rows of 2 and 1 tokens. */
const rows = (inputs: LossRows["inputs"]): LossRows => ({
  tokens: Uint32Array.of(1, 2, 3),
  targets: Uint32Array.of(2, 3, 4),
  offsets: Uint32Array.of(0, 2, 3),
  inputs,
});
const OFF_POLICY = { logprobs: of(-1, -2, -3), advantages: of(1, -2, 4) };
const CLIPS = { clip_low_threshold: of(0.9, 0.5, 0.1), clip_high_threshold: of(1.1, 2, 1.5) };
const NEEDS: Readonly<Record<string, LossRows["inputs"]>> = {
  cross_entropy: { weights: of(1, 0.5, -2) },
  importance_sampling: OFF_POLICY,
  ppo: OFF_POLICY,
  cispo: OFF_POLICY,
  dro: OFF_POLICY,
  gspo: { ...OFF_POLICY, sequence_ratio_mask: of(0, 1, 1) },
};
/** Inputs that a loss takes and does not need. */
const OPTIONAL: Readonly<Record<string, readonly string[]>> = {
  cross_entropy: ["weights"],
  ppo: Object.keys(CLIPS),
  cispo: Object.keys(CLIPS),
  gspo: Object.keys(CLIPS),
};
const loss = (name: string, inputs: LossRows["inputs"], config = {}) => new EngineLoss({ name, config }, rows(inputs));

test("the losses are Tinker's", () => {
  expect(ENGINE_LOSSES).toEqual(Object.keys(NEEDS));
});

describe.each(Object.entries(NEEDS))("%s", (name, inputs) => {
  test("needs its inputs, and says which", () => {
    expect(loss(name, inputs).sum).toBe(0);
    const names = Object.keys(inputs).filter((input) => !OPTIONAL[name]?.includes(input));
    for (const missing of names) {
      const rest = Object.fromEntries(Object.entries(inputs).filter(([input]) => input !== missing));
      expect(() => loss(name, rest)).toThrow(
        `Cannot take the loss ${name}: ${missing} is missing. Every datum's loss_fn_inputs must hold ${["target_tokens", ...names].join(", ")} (${missing}).`,
      );
    }
  });

  test("takes thresholds per token only where it clips by them", () => {
    const clips = OPTIONAL[name] !== undefined && name !== "cross_entropy";
    for (const [input, values] of Object.entries(CLIPS)) {
      const given = () => loss(name, { ...inputs, [input]: values });
      if (clips) expect(given).not.toThrow();
      else expect(given).toThrow(`Cannot take the loss ${name}: it has no input ${input}.`);
    }
    const known = ["target_tokens", ...Object.keys(inputs), ...(clips ? Object.keys(CLIPS) : [])].join(", ");
    expect(() => loss(name, { ...inputs, q: of(1, 2, 3) })).toThrow(
      `Cannot take the loss ${name}: it has no input q. Its inputs are ${known} (q).`,
    );
  });

  test("needs an element per token, each of them finite", () => {
    for (const input of Object.keys(inputs)) {
      expect(() => loss(name, { ...inputs, [input]: of(1, 2) })).toThrow(
        `Cannot take the loss ${name}: ${input} must have one element per token (2 of 3) (${input}).`,
      );
      expect(() => loss(name, { ...inputs, [input]: of(1, Number.NaN, Number.NaN) })).toThrow(
        `Cannot take the loss ${name}: ${input} must be finite (NaN at position 1 of datum 0) (${input}).`,
      );
      expect(() => loss(name, { ...inputs, [input]: of(1, 1, Number.POSITIVE_INFINITY) })).toThrow(
        `${input} must be finite (Infinity at position 0 of datum 1)`,
      );
    }
  });
});

test("a setting in text is refused by its name", () => {
  expect(() => loss("ppo", OFF_POLICY, { clip_low_threshold: "0.8" })).toThrow(
    "Cannot set clip_low_threshold of the loss tinker.ppo: it takes a number (0.8)",
  );
  expect(() => loss("ppo", OFF_POLICY, { reduction: "sum" })).toThrow(/Cannot set reduction of the loss tinker.ppo/);
});

test("the loss without a published formula is refused with those that take its place", () => {
  expect(() => loss("stable_reinforce", OFF_POLICY)).toThrow(
    "Cannot take the loss stable_reinforce: its formula is not published. Choose importance_sampling, cispo or gspo, or start the server with --stable-reinforce score_centering, which serves the name by a published method that fits its description (loss_fn).",
  );
});

test("an unknown loss is refused with those that there are", () => {
  expect(() => loss("toString", {})).toThrow(
    /^Cannot take the loss "toString": known are cross_entropy, importance_sampling, ppo, cispo, dro, gspo/,
  );
});

describe("the sum over passes", () => {
  test("of a cross-entropy is minus the weighted log-probs; a pass that is repeated counts once", () => {
    const taken = loss("cross_entropy", NEEDS.cross_entropy!);
    expect([...taken.take(of(-1, -2), 0)]).toEqual([-1, -0.5]);
    expect(taken.sum).toBe(2);
    taken.take(of(-3), 2);
    taken.take(of(-3), 2);
    expect(taken.sum).toBe(2 - 6);
    expect([...taken.logprobs]).toEqual([-1, -2, -3]);
  });

  test("of a cross-entropy without weights counts every target as 1", () => {
    const taken = loss("cross_entropy", {});
    expect([...taken.take(of(-1, -2, -3), 0)]).toEqual([-1, -1, -1]);
    expect([taken.sum, ...taken.elementwise]).toEqual([6, 1, 2, 3]);
  });

  test("of several targets per position takes each; only a cross-entropy has them", () => {
    const many = (inputs: LossRows["inputs"], name = "cross_entropy") =>
      new EngineLoss(
        { name, config: {} },
        {
          ...rows(inputs),
          targets: Uint32Array.of(1, 2, 3, 4, 5),
          targetOffsets: Uint32Array.of(0, 4, 5),
        },
      );
    const taken = many({ weights: of(1, 0.5, 0, -1, 2) });
    expect([...taken.take(of(-1, -2, -3, -4), 0)]).toEqual([-1, -0.5, -0, 1]);
    expect([...taken.take(of(-5), 4)]).toEqual([-2]);
    expect([taken.sum, ...taken.elementwise]).toEqual([1 + 1 - 4 + 10, 1, 1, 0, -4, 10]);
    expect(() => many({ weights: of(1, 1, Number.NaN, 1, 1) })).toThrow("NaN at target 0 of position 1 of datum 0");
    expect(() => many({ weights: of(1, 1, 1) })).toThrow("weights must have one element per target (3 of 5)");
    expect(() => many({ logprobs: of(1), advantages: of(1) }, "ppo")).toThrow("Only cross_entropy takes several");
  });

  test("of importance sampling weighs advantages with the ratio to the old policy", () => {
    const taken = loss("importance_sampling", OFF_POLICY);
    taken.take(of(-1, -2 + Math.log(2), -3 - Math.log(4)), 0);
    expect(taken.sum).toBeCloseTo(-(1 - 2 * 2 + 4 / 4), 5);
  });

  // The ratios are 2, 2 and 1/4; the advantages 1, -2 and 4.
  test.each<[string, object, LossRows["inputs"], number]>([
    ["of ppo clips by the settings", { clip_low_threshold: 0.5, clip_high_threshold: 1.5 }, {}, -(1.5 - 4 + 1)],
    [
      "of ppo clips above by a token's own threshold",
      {},
      { clip_high_threshold: CLIPS.clip_high_threshold },
      -(1.1 - 4 + 1),
    ],
    [
      "of ppo clips below by a token's own threshold",
      { clip_high_threshold: 9 },
      { clip_low_threshold: of(0, 3, 0) },
      -(2 - 6 + 1),
    ],
  ])("%s", (_, config, clips, sum) => {
    const taken = loss("ppo", { ...OFF_POLICY, ...clips }, config);
    taken.take(of(-1 + Math.log(2), -2 + Math.log(2), -3 - Math.log(4)), 0);
    expect(taken.sum).toBeCloseTo(sum, 5);
  });
});

describe("gspo", () => {
  const offsets = Uint32Array.from([0, ...GSPO.lengths]).map((_, i, lengths) =>
    lengths.slice(0, i + 1).reduce((sum, length) => sum + length, 0),
  );
  const count = offsets.at(-1)!;
  const inputs = Object.fromEntries(Object.entries(GSPO.inputs).map(([name, values]) => [name, of(...values)]));
  const packed = { tokens: new Uint32Array(count), targets: new Uint32Array(count), offsets, inputs };

  test.each(Object.entries(GSPO.cases))("has PyTorch's losses and gradients with %s thresholds", (_, expected) => {
    const taken = new EngineLoss({ name: "gspo", config: expected.config }, packed);
    // Two passes, of one sequence and of three.
    const policy = of(...GSPO.policy);
    const slopes = [...taken.take(policy.slice(0, 3), 0), ...taken.take(policy.slice(3), 3)];
    for (let t = 0; t < count; t++) {
      expect(Math.abs(slopes[t]! - expected.slopes[t]!)).toBeLessThan(1e-5);
      expect(Math.abs(taken.elementwise[t]! - expected.losses[t]!)).toBeLessThan(1e-5);
    }
    expect(slopes.some((slope) => slope !== 0)).toBe(true);
  });

  test("needs a sampled token in every datum that it trains on", () => {
    const taken = loss("gspo", { ...OFF_POLICY, sequence_ratio_mask: of(1, 1, 0) });
    expect(() => taken.take(of(-1, -2, -3), 0)).toThrow("sequence_ratio_mask marks no token of datum 1.");
    const untrained = { ...OFF_POLICY, advantages: of(1, 1, 0), sequence_ratio_mask: of(1, 1, 0) };
    expect(
      loss("gspo", untrained)
        .take(of(-1, -2, -3), 0)
        .at(-1),
    ).toBe(-0);
  });
});

test.each([
  [
    "whose ratio overflows",
    "importance_sampling",
    OFF_POLICY,
    of(-1, -2, 1000),
    "position 0 of datum 1 (log-prob 1000, log-ratio 1003, advantage or weight 4)",
  ],
  [
    "whose slope overflows f32 alone",
    "importance_sampling",
    { ...OFF_POLICY, advantages: of(0, 1e38, 0) },
    of(0, 0, 0),
    "position 1 of datum 0 (log-prob 0, log-ratio 2",
  ],
  [
    "at an infinite log-prob of weight 1",
    "cross_entropy",
    { weights: of(0, 0, 1) },
    of(0, 0, Number.NEGATIVE_INFINITY),
    "position 0 of datum 1 (log-prob -Infinity, log-ratio 0, advantage or weight 1)",
  ],
])("a token %s is named", (_, name, inputs, logprobs, place) => {
  expect(() => loss(name, inputs).take(logprobs, 0)).toThrow(
    `Cannot take the loss ${name}: it is not finite at ${place}`,
  );
});

describe("a loss that the operator registers", async () => {
  await defineLoss({
    name: "engine-test-square",
    settings: { scale: 2 },
    metrics: ["square/above", null, "square/scale"],
    token: ({ d, advantage }, { scale }) => ({
      value: -advantage * scale * d * d,
      slope: -2 * advantage * scale * d,
      metrics: [Number(d > 0), 7, scale],
    }),
  });
  const named = (config = {}) => loss("engine-test-square", OFF_POLICY, config);

  test("is taken by its name: values, slopes, and means of its own numbers over all targets", () => {
    expect(engineLosses()).toEqual([...ENGINE_LOSSES, "engine-test-square"]);
    const taken = named({ scale: 3 });
    // d = 1, -1, 2 with the advantages 1, -2, 4.
    expect([...taken.take(of(0, -3, -1), 0)]).toEqual([-6, -12, -48]);
    expect([...taken.elementwise]).toEqual([-3, 6, -48]);
    expect(taken.metrics).toEqual({ "loss:sum": -45, "square/above:mean": 2 / 3, "square/scale:mean": 3 });
  });

  test("has its defaults, refuses settings and inputs that it lacks, and one target per position alone", () => {
    expect([...named().take(of(0, -3, -1), 0)]).toEqual([-4, -8, -32]);
    expect(() => named({ scole: 1 })).toThrow(/scole/);
    expect(() => loss("engine-test-square", { advantages: of(1, 2, 3) })).toThrow("logprobs is missing");
    expect(() => loss("engine-test-square", { ...OFF_POLICY, weights: of(1, 1, 1) })).toThrow(
      "it has no input weights",
    );
  });

  test("is refused under another name, with the names that there are", () => {
    expect(() => loss("engine-test-sqare", OFF_POLICY)).toThrow(
      /^Cannot take the loss "engine-test-sqare": known are cross_entropy, .*gspo, engine-test-square\. .*--import FILE/,
    );
    // verl's losses take masks and aggregations, which the protocol does not have.
    expect(() => loss("vanilla", OFF_POLICY)).toThrow('Cannot take the loss "vanilla"');
  });

  test("is refused where it is more than a function of single tokens", () => {
    registerLoss({
      name: "engine-test-rows",
      settings: {},
      plan: () => ({
        form: lossForm({
          name: "engine-test-rows",
          params: [],
          token: () => ({ value: 0, slope: 0, metrics: [0, 0, 0] }),
        }),
        params: {},
        rows: meanLogRatio,
        metrics: [null, null, null],
      }),
    });
    expect(() => loss("engine-test-rows", OFF_POLICY)).toThrow(
      "Cannot take the loss engine-test-rows: it needs a statistic of its row",
    );
  });
});
