/** The loss score_centering over packed rows: what it scores, its slopes, and its gradient on both devices. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { scoreCentering } from "../../../src/engine/algorithm/loss/score_centering.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { LossRows, SampledTargets } from "../../../src/engine/contract/engine.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { CenteredLoss } from "../../../src/train/backend/local/centered_loss.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const of = (...values: number[]) => Float32Array.from(values);

/** Sequences of 4 and 2 tokens; sampled are the targets 2 and 3, whose tops have 2 and 3 tokens, and 5, without an advantage. */
const SAMPLED: SampledTargets = {
  at: Uint32Array.of(2, 3, 5),
  offsets: Uint32Array.of(0, 2, 5, 6),
  // The target 7 is among its own; the target 8 is not.
  tokens: Uint32Array.of(4, 7, 3, 11, 12, 3),
  logprobs: of(-0.4, -1.5, -0.9, -1.2, -2.5, -0.1),
};
const ROWS: LossRows = {
  tokens: Uint32Array.of(1, 5, 6, 7, 1, 9),
  offsets: Uint32Array.of(0, 4, 6),
  targets: Uint32Array.of(5, 6, 7, 8, 9, 3),
  inputs: { advantages: of(0, 0, 1.5, -0.5, 0, 0) },
  sampled: SAMPLED,
};
const LOSS = { name: "score_centering", config: {} };
const PENALISED = { name: "score_centering", config: { kl_coeff: 0.25 } };

describe("what is scored", () => {
  test("is each target once, and its sampler's tokens where they move the loss", () => {
    const { scored, offsets } = new CenteredLoss(LOSS, ROWS);
    expect([...scored.targets]).toEqual([5, 6, 4, 7, 8, 3, 11, 12, 9, 3]);
    expect([...scored.positions]).toEqual([0, 1, 2, 2, 3, 3, 3, 3, 4, 5]);
    expect([...offsets]).toEqual([0, 8, 10]);
  });

  test("has every sampled target with a penalty", () => {
    const { scored, offsets } = new CenteredLoss(PENALISED, { ...ROWS, inputs: { advantages: new Float32Array(6) } });
    expect([...scored.targets]).toEqual([5, 6, 4, 7, 8, 3, 11, 12, 9, 3]);
    expect([...offsets]).toEqual([0, 8, 10]);
  });

  test("has no penalty where the mask is 0", () => {
    const inputs = { advantages: of(0, 0, 1.5, 0, 0, 0), mask: of(0, 0, 0, 0, 0, 1) };
    const loss = new CenteredLoss(PENALISED, { ...ROWS, inputs });
    expect([...loss.scored.targets]).toEqual([5, 6, 4, 7, 8, 9, 3]);
    const logprobs = of(-1, -2, -0.7, -1.1, -3, -0.3, -0.4);
    const plain = new CenteredLoss(LOSS, { ...ROWS, inputs });
    plain.take(logprobs, 0);
    loss.take(logprobs, 0);
    expect(loss.elementwise[2]).toBe(plain.elementwise[2]);
    expect(loss.elementwise[3]).toBe(0);
    expect(loss.elementwise[5]).toBeGreaterThan(0);
  });

  test("of rows without a sampled token is the targets", () => {
    const none = { at: new Uint32Array(), offsets: Uint32Array.of(0), tokens: new Uint32Array(), logprobs: of() };
    const { scored } = new CenteredLoss(LOSS, { ...ROWS, inputs: { advantages: new Float32Array(6) }, sampled: none });
    expect([...scored.targets]).toEqual([...ROWS.targets]);
    expect([...scored.positions]).toEqual([0, 1, 2, 3, 4, 5]);
  });
});

test("slopes and losses are the formula's, in one pass or two", () => {
  const logprobs = of(-1, -2, -0.7, -1.1, -3, -0.6, -1.9, -2.2, -0.3, -0.4);
  const whole = new CenteredLoss(PENALISED, ROWS);
  const slopes = whole.take(logprobs, 0);
  const parts = new CenteredLoss(PENALISED, ROWS);
  const twice = [...parts.take(logprobs.subarray(0, 8), 0), ...parts.take(logprobs.subarray(8), 8)];
  expect(twice).toEqual([...slopes]);
  expect(parts.metrics).toEqual(whole.metrics);

  const token = (at: number, s: number, own: number, policy: readonly number[]) => {
    const sampler = SAMPLED.logprobs.subarray(SAMPLED.offsets[s], SAMPLED.offsets[s + 1]);
    const out = new Float64Array(sampler.length);
    const advantage = ROWS.inputs.advantages![at]!;
    const value = scoreCentering(
      { logprob: logprobs[own]!, advantage, klCoeff: 0.25, sampler, policy: of(...policy) },
      out,
    );
    return { value, slopes: [...out] };
  };
  const [second, third, last] = [
    token(2, 0, 3, [-0.7, -1.1]),
    token(3, 1, 4, [-0.6, -1.9, -2.2]),
    token(5, 2, 9, [-0.4]),
  ];
  // The target 7 is the second of its sampler's tokens; the target 8 has a place of its own; the target 3 no advantage.
  const expected = [0, 0, second.slopes[0]!, second.slopes[1]! - 1.5, 0.5, ...third.slopes, 0, last.slopes[0]!];
  for (const [r, slope] of expected.entries()) expect(slopes[r]).toBeCloseTo(slope, 6);
  expect(slopes.some((slope) => slope !== 0)).toBe(true);
  const losses = [0, 0, second.value, third.value, 0, last.value];
  for (const [t, value] of losses.entries()) expect(whole.elementwise[t]).toBeCloseTo(value, 6);
  expect(whole.metrics["loss:sum"]).toBeCloseTo(second.value + third.value + last.value, 6);
  expect([...whole.logprobs]).toEqual([...of(-1, -2, -1.1, -3, -0.3, -0.4)]);
});

test.each<[string, Partial<LossRows>, object, string]>([
  ["without what was sampled", { sampled: undefined }, {}, "does not say which targets were sampled"],
  [
    "with an advantage elsewhere",
    { inputs: { advantages: of(0, 2, 0, 0, 0, 0) } },
    {},
    "the advantage at position 1 of datum 0 must be 0, because its target was not sampled (2)",
  ],
  ["without advantages", { inputs: {} }, {}, "advantages is missing."],
  ["with weights", { inputs: { ...ROWS.inputs, weights: of(1, 1, 1, 1, 1, 1) } }, {}, "it has no input weights."],
  [
    "with an endless advantage",
    { inputs: { advantages: of(0, 0, 1, Number.NaN, 0, 0) } },
    {},
    "NaN at position 3 of datum 0",
  ],
  ["with several targets per position", { targetOffsets: ROWS.offsets }, {}, "one target per position"],
  [
    "with another setting",
    {},
    { clip_low_threshold: 1 },
    "it has no setting clip_low_threshold. Its setting is kl_coeff",
  ],
  ["with a negative penalty", {}, { kl_coeff: -0.1 }, "kl_coeff must be a number that is at least 0 (-0.1)"],
  ["with a penalty in text", {}, { kl_coeff: "0.1" }, "kl_coeff must be a number that is at least 0 (0.1)"],
])("rows %s are refused", (_, more, config, message) => {
  expect(() => new CenteredLoss({ ...LOSS, config } as typeof LOSS, { ...ROWS, ...more })).toThrow(message);
});

test("a token that the policy excludes is named", () => {
  const loss = new CenteredLoss(LOSS, ROWS);
  const logprobs = of(-1, -2, Number.NEGATIVE_INFINITY, -1.1, -3, -0.6, -1.9, -2.2, -0.3, -0.4);
  expect(() => loss.take(logprobs, 0)).toThrow("it is not finite at position 2 of datum 0 (log-prob -1.1");
});

const CONFIG: ModelConfig = { ...SMALL_MODEL, layers: 1 };
const ADAM = { learning_rate: 0.05, beta1: 0.9, beta2: 0.95, eps: 1, weight_decay: 0, grad_clip_norm: 0 };

overDevices("the engine", (device: Device) => {
  test("takes the gradient of the loss: that of a cross-entropy whose weights are minus its slopes", async () => {
    const root = mkdtempSync(join(tmpdir(), "grpu-centered-"));
    const folder = join(root, "model");
    const made = LanguageModel.create(device, CONFIG, { seed: 1 });
    await saveModelFolder(folder, { model: made });
    made.release();
    const engine = await LocalEngine.open({ device, folder });
    onTestFinished(() => rmSync(root, { recursive: true }));
    const open = () => engine.createTrainer({ rank: 0, trainAttn: true, trainMlp: true, trainUnembed: true, seed: 3 });
    const [centred, weighted] = [await open(), await open()];

    const forward = await centred.forwardBackward(ROWS, { loss: PENALISED, forwardOnly: true });
    const found = await centred.forwardBackward(ROWS, { loss: PENALISED, forwardOnly: false });
    expect(found.metrics).toEqual(forward.metrics);
    expect(found.logprobs).toEqual(forward.logprobs);

    // The same scored tokens as a cross-entropy of five targets per position, of which those without a part weigh 0.
    const { scored, offsets } = new CenteredLoss(PENALISED, ROWS);
    const width = 5;
    const targets = new Uint32Array(width * ROWS.tokens.length);
    const cells = [...scored.positions].map((t, r) => width * t + r - scored.positions.indexOf(t));
    for (const [r, cell] of cells.entries()) targets[cell] = scored.targets[r]!;
    const rows = { ...ROWS, targets, targetOffsets: ROWS.offsets.map((offset) => width * offset) };
    const loss = { name: "cross_entropy", config: {} };
    const ones = await weighted.forwardBackward({ ...rows, inputs: {} }, { loss, forwardOnly: true });
    const taken = new CenteredLoss(PENALISED, ROWS);
    const slopes = taken.take(
      Float32Array.from(cells, (cell) => ones.logprobs[cell]!),
      offsets[0]!,
    );
    const weights = new Float32Array(targets.length);
    for (const [r, cell] of cells.entries()) weights[cell] = -slopes[r]!;
    await weighted.forwardBackward({ ...rows, inputs: { weights } }, { loss, forwardOnly: false });
    expect(found.metrics["loss:sum"]).toBeCloseTo(taken.metrics["loss:sum"]!, 5);

    const norms = [await centred.optimStep(ADAM), await weighted.optimStep(ADAM)].map(({ grad_norm }) => grad_norm!);
    expect(norms[0]).toBeGreaterThan(0.1);
    expect(norms[0]! / norms[1]!).toBeCloseTo(1, 5);
    const after = await Promise.all(
      [centred, weighted].map((trainer) =>
        trainer.forwardBackward({ ...rows, inputs: {} }, { loss, forwardOnly: true }),
      ),
    );
    for (const [r, logprob] of after[0]!.logprobs.entries()) expect(logprob).toBeCloseTo(after[1]!.logprobs[r]!, 5);
    expect(after[0]!.logprobs).not.toEqual(ones.logprobs);

    // The step lowers the loss.
    const later = await centred.forwardBackward(ROWS, { loss: PENALISED, forwardOnly: true });
    expect(later.metrics["loss:sum"]).toBeLessThan(found.metrics["loss:sum"]!);
    for (const trainer of [centred, weighted]) trainer.release();
  });
});
