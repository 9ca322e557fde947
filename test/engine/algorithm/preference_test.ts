/** Preference losses: TRL's figures on each device, what batches and settings are refused, parts of a step. */
import { describe, expect, test } from "vitest";
import type { PreferenceLoss } from "../../../src/engine/algorithm/preference/definition.ts";
import { preferenceForm } from "../../../src/engine/algorithm/preference/form.ts";
import { klBaseline, type PreferenceBatch, preferenceLoss } from "../../../src/engine/algorithm/preference/host.ts";
import {
  builtInPreferenceLosses,
  preferenceLossNames,
  registerPreferenceLoss,
} from "../../../src/engine/algorithm/preference/losses.ts";
import { ofDifference } from "../../../src/engine/algorithm/preference/pair.ts";
import type { PreferenceSpec } from "../../../src/engine/algorithm/preference/resolve.ts";
import { computePreferenceLoss } from "../../../src/engine/algorithm/run.ts";
import { offsetsOf } from "../../../src/engine/packing/offsets.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { floats, uniform } from "../../fixtures/numbers.ts";
import { F32, F64, furthest } from "./golden.ts";
import { GOLDEN_PREFERENCES, goldenBatch } from "./preference_golden.ts";

function expectEqual(
  got: { loss: number; dlogprobs: ArrayLike<number>; metrics: Readonly<Record<string, number>> },
  want: { loss: number; dlogprobs: ArrayLike<number>; metrics: Readonly<Record<string, number>> },
  tolerance: { relative: number; absolute: number },
): void {
  expect(furthest([got.loss], [want.loss], tolerance)).toBeUndefined();
  expect(furthest(got.dlogprobs, want.dlogprobs, tolerance)).toBeUndefined();
  expect(Object.keys(got.metrics).sort()).toEqual(Object.keys(want.metrics).sort());
  for (const [name, value] of Object.entries(want.metrics))
    expect(furthest([got.metrics[name]!], [value], tolerance), name).toBeUndefined();
}

test.each(GOLDEN_PREFERENCES)("$title in float64 equals TRL's figures", (golden) => {
  expectEqual(preferenceLoss(goldenBatch(golden), golden), golden, { ...F64, absolute: 1e-12 });
});

overDevices("preference losses equal TRL's figures", (device) => {
  test.each(GOLDEN_PREFERENCES)("$title", async (golden) => {
    const got = await computePreferenceLoss(goldenBatch(golden), golden, { device });
    // Sums of a hundred float32 log-probs; the IPO loss of a small beta is near 25.
    expectEqual(got, golden, F32);
  });

  test.each([1, 65_536])("%i units, each with its own gradient", async (units) => {
    const labels = Uint32Array.from({ length: units }, (_, unit) => unit % 2);
    const offsets = offsetsOf(Array.from(labels, () => 2));
    const mask = Uint32Array.from({ length: 2 * units }, (_, t) => t % 2);
    const logprobs = Float32Array.from(mask, (own, t) => -own * (1 + (t % 7)));
    const batch = { offsets, mask, labels, logprobs, refLogprobs: logprobs.map((each) => each / 2) };
    const spec = { loss_type: "kto", kl: 0.25, global_batch_size: 1 };
    expectEqual(await computePreferenceLoss(batch, spec, { device }), preferenceLoss(batch, spec), {
      relative: 2e-5,
      absolute: 1e-4,
    });
  });
});

/** Settings away from their defaults, so that none can be left out unseen. */
function changed({ settings }: PreferenceLoss): Record<string, number> {
  return Object.fromEntries(Object.entries(settings).map(([name, value], k) => [name, value * 1.5 + 0.1 + 0.02 * k]));
}

overDevices("every registered preference loss", (device) => {
  const next = uniform(7);
  const lengths = Array.from({ length: 12 }, () => 1 + Math.floor(next() * 90));
  const tokens = lengths.reduce((a, b) => a + b, 0);
  const batch = {
    offsets: offsetsOf(lengths),
    mask: new Uint32Array(tokens).fill(1),
    logprobs: floats(tokens, 1, 0.5).map((x) => x - 0.6),
    refLogprobs: floats(tokens, 2, 0.5).map((x) => x - 0.6),
    labels: Uint32Array.from(lengths, (_, row) => Number(row % 3 === 0)),
  };
  test.each(builtInPreferenceLosses())("$name is on the device what it is on the host", async (loss) => {
    const spec = { loss_type: loss.name, settings: changed(loss), kl: loss.unit === "row" ? 0.3 : 0 };
    expectEqual(await computePreferenceLoss(batch, spec, { device }), preferenceLoss(batch, spec), {
      relative: 1e-4,
      absolute: 1e-5,
    });
  });
});

describe("a preference loss of one's own", () => {
  const form = preferenceForm({
    name: "squared",
    params: ["beta"],
    pair: ({ d }, { beta }) => ofDifference((beta * d - 1) ** 2, 2 * beta * (beta * d - 1)),
    wgsl: `
fn pair_loss(s: Scores) -> PairLoss {
  let off = params.settings.beta * s.d - 1.0;
  return of_difference(off * off, 2.0 * params.settings.beta * off);
}`,
  });
  const squared = {
    ...builtInPreferenceLosses()[0]!,
    name: "squared",
    form,
    params: ({ beta }: { beta?: number }) => ({ beta: beta! }),
  };

  test("cannot take a name that is taken", () => {
    expect(() => registerPreferenceLoss({ ...squared, name: "ipo" })).toThrow(
      /Cannot register the preference loss ipo/,
    );
  });

  test("needs its WGSL function", () => {
    expect(() => preferenceForm({ name: "x", params: [], pair: form.pair, wgsl: "fn pair(s: Scores) {}" })).toThrow(
      /it does not define pair_loss/,
    );
  });

  overDevices("is", (device) => {
    test("taken on the host and on the device", async () => {
      if (!preferenceLossNames().includes("squared")) registerPreferenceLoss(squared);
      const spec = { loss_type: "squared", settings: { beta: 0.5 } };
      const host = preferenceLoss(pairOf(-0.5, -3), spec);
      // d = (-0.5 + 1) - (-3 + 2) = 1.5.
      expect(host.loss).toBeCloseTo(0.0625, 12);
      expect(Array.from(host.dlogprobs)).toEqual([-0.25, 0.25]);
      expectEqual(await computePreferenceLoss(pairOf(-0.5, -3), spec, { device }), host, F32);
    });
  });
});

/** One pair of answers of one token, with these log-probs. */
const pairOf = (chosen: number, rejected: number): PreferenceBatch => ({
  offsets: offsetsOf([1, 1]),
  mask: Uint32Array.of(1, 1),
  logprobs: Float64Array.of(chosen, rejected),
  refLogprobs: Float64Array.of(-1, -2),
  labels: Uint32Array.of(1, 0),
});

overDevices("an answer of probability 1", (device) => {
  test.each([0.5, 0.25, 0.999, 1e-6, 1e-40])("has ORPO's limit beside one of %d", async (rejected) => {
    const odds = rejected / (1 - rejected);
    const spec = { loss_type: "orpo", settings: { beta: 0.7 } };
    for (const on of [{}, { device }]) {
      const { loss, dlogprobs, metrics } = await computePreferenceLoss(pairOf(0, Math.log(rejected)), spec, on);
      expect(Math.abs(loss)).toBeLessThan(1e-12);
      expect(Math.abs(dlogprobs[0]! / (-1 - 0.7 * odds) - 1)).toBeLessThan("device" in on ? 1e-4 : 1e-9);
      expect(Math.abs(dlogprobs[1]!)).toBeLessThan(1e-12);
      for (const [name, value] of Object.entries(metrics)) expect(value, name).toSatisfy(Number.isFinite);
    }
  });

  test("ORPO goes towards its limit without a jump", async () => {
    const spec = { loss_type: "orpo", settings: { beta: 0.7 } };
    for (const doubt of [1e-3, 1e-5, 1e-7, 1e-12, 1e-30]) {
      const batch = pairOf(-doubt, Math.log(0.25));
      const [host, found] = [preferenceLoss(batch, spec), await computePreferenceLoss(batch, spec, { device })];
      expect(Math.abs(host.dlogprobs[0]! + 1 + 0.7 / 3)).toBeLessThan(2 * doubt + 1e-9);
      expect(furthest(found.dlogprobs, host.dlogprobs, F32), `${doubt}`).toBeUndefined();
    }
  });

  const CERTAIN = [
    [0, -1],
    [-1, 0],
    [0, 0],
  ] as const;
  test.each(preferenceLossNames())("leaves %s finite, or is refused where the loss is not", async (loss_type) => {
    for (const [chosen, rejected] of CERTAIN)
      for (const on of [{}, { device }]) {
        const run = computePreferenceLoss({ ...pairOf(chosen, rejected), places: PLACES }, { loss_type }, on);
        if (loss_type === "orpo" && rejected === 0) {
          await expect(run).rejects.toThrow(/preference loss orpo: .*Remove the row.*\(pairs\.jsonl:7\)/);
          continue;
        }
        const { loss, dlogprobs, metrics } = await run;
        expect([loss, ...dlogprobs, ...Object.values(metrics)].every(Number.isFinite)).toBe(true);
      }
  });
});

/** Of both rows of a pair. */
const PLACES = [
  { file: "pairs.jsonl", line: 7 },
  { file: "pairs.jsonl", line: 7 },
];

/** Two pairs; the first two tokens of each row are the prompt. */
const PAIRS: PreferenceBatch = {
  offsets: offsetsOf([4, 5, 3, 4]),
  mask: Uint32Array.of(0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1),
  logprobs: Float32Array.from({ length: 16 }, (_, t) => -0.1 - 0.07 * t),
  refLogprobs: Float32Array.from({ length: 16 }, (_, t) => -0.3 - 0.05 * t),
};

test("a step split between pairs adds up to the whole one", () => {
  const spec: PreferenceSpec = { loss_type: "sigmoid", settings: { beta: 0.7, rpo_alpha: 0.5 } };
  const whole = preferenceLoss(PAIRS, spec);
  const step = { ...spec, global_batch_size: 2, batch_num_tokens: 3 };
  const halves = [
    [0, 9],
    [9, 16],
  ].map(([from, to], k) => {
    const cut = <A extends Uint32Array | ArrayLike<number>>(values: A) => Array.from(values).slice(from, to);
    const offsets = offsetsOf(k === 0 ? [4, 5] : [3, 4]);
    const part = { offsets, mask: Uint32Array.from(cut(PAIRS.mask)), logprobs: cut(PAIRS.logprobs) };
    return preferenceLoss({ ...part, refLogprobs: cut(PAIRS.refLogprobs!) }, step);
  });
  expect(halves[0]!.loss + halves[1]!.loss).toBeCloseTo(whole.loss, 12);
  expect(furthest([...halves[0]!.dlogprobs, ...halves[1]!.dlogprobs], whole.dlogprobs, F64)).toBeUndefined();
});

test("gradients of every loss equal finite differences", () => {
  for (const golden of GOLDEN_PREFERENCES) {
    const batch = { ...goldenBatch(golden), logprobs: Float64Array.from(goldenBatch(golden).logprobs) };
    const { dlogprobs } = preferenceLoss(batch, golden);
    // The last token of the first two rows.
    for (const t of [6, 15]) {
      const at = (step: number) =>
        preferenceLoss({ ...batch, logprobs: batch.logprobs.with(t, batch.logprobs[t]! + step) }, golden);
      expect((at(1e-5).loss - at(-1e-5).loss) / 2e-5, golden.title).toBeCloseTo(dlogprobs[t]!, 6);
    }
  }
});

test("KTO's baseline is the mean log-ratio of rows, at least 0", () => {
  const batch = {
    ...PAIRS,
    logprobs: Float64Array.from(PAIRS.logprobs),
    refLogprobs: Float64Array.from(PAIRS.refLogprobs!),
  };
  const ratios = Array.from(batch.mask, (own, t) => own * (batch.logprobs[t]! - batch.refLogprobs[t]!));
  const mean = ratios.reduce((a, b) => a + b, 0) / 4;
  expect(mean).not.toBe(0);
  expect(klBaseline(batch)).toBe(Math.max(mean, 0));
  expect(klBaseline({ ...batch, logprobs: batch.refLogprobs, refLogprobs: batch.logprobs })).toBe(Math.max(-mean, 0));
});

describe("what cannot be used is refused with its name", () => {
  const without = (more: Partial<PreferenceBatch>) => ({ ...PAIRS, ...more });
  test.each<[string, PreferenceBatch, PreferenceSpec, RegExp]>([
    ["an unknown loss", PAIRS, { loss_type: "sigmod" }, /preference loss "sigmod": .*nearest: sigmoid/],
    [
      "another loss's setting",
      PAIRS,
      { loss_type: "ipo", settings: { label_smoothing: 0.1 } },
      /Cannot set label_smoothing of the preference loss ipo: it has beta, rpo_alpha/,
    ],
    ["a beta of 0", PAIRS, { loss_type: "ipo", settings: { beta: 0 } }, /beta must be a number above 0 \(0\)/],
    [
      "labels that are half wrong",
      PAIRS,
      { loss_type: "robust", settings: { label_smoothing: 0.5 } },
      /from 0 to below 0\.5 \(0\.5\)/,
    ],
    [
      "a weight below 0",
      PAIRS,
      { loss_type: "sigmoid", settings: { rpo_alpha: -1 } },
      /rpo_alpha must be a number at least 0 \(-1\)/,
    ],
    ["no reference", without({ refLogprobs: undefined }), { loss_type: "sigmoid" }, /refLogprobs is missing/],
    [
      "an odd row",
      without({ offsets: offsetsOf([4, 5, 7]) }),
      { loss_type: "simpo" },
      /rows come in pairs.*there are 3/,
    ],
    [
      "no row",
      without({ offsets: offsetsOf([]), mask: new Uint32Array() }),
      { loss_type: "simpo" },
      /the batch has no rows/,
    ],
    ["no labels", PAIRS, { loss_type: "kto" }, /labels must have one element per row \(0 of 4\)/],
    [
      "a row without a completion",
      without({ mask: PAIRS.mask.map((own, t) => (t > 8 && t < 12 ? 0 : own)) }),
      { loss_type: "ipo" },
      /row 2 has no token of a completion/,
    ],
    [
      "a NaN",
      without({ logprobs: Float32Array.from(PAIRS.logprobs).fill(Number.NaN, 7, 8) }),
      { loss_type: "ipo" },
      /not finite at row 0|not finite at row 1/,
    ],
    [
      "a certain completion, whose odds are infinite",
      without({ logprobs: new Float32Array(16) }),
      { loss_type: "orpo" },
      /not finite at row 0/,
    ],
  ])("%s", (_, batch, spec, message) => {
    expect(() => preferenceLoss(batch, spec)).toThrow(message);
  });
});
