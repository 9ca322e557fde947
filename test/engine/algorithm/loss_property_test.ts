import { describe, expect, test } from "vitest";
import { AGGREGATION_MODES } from "../../../src/engine/algorithm/loss/aggregation.ts";
import { type LossBatch, policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { lossNames } from "../../../src/engine/algorithm/loss/losses.ts";
import type { PolicyLossSpec } from "../../../src/engine/algorithm/loss/resolve.ts";
import { perRow, perToken } from "../../fixtures/advantages.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { deviceLoss } from "./device_loss.ts";
import { F32, furthest } from "./golden.ts";
import { randomBatch } from "./random_batch.ts";

/** Losses that hold a part of the value fixed under differentiation: their gradient is not the value's slope. */
const DETACHED = [
  "cispo",
  "dppo_tv",
  "dppo_kl",
  "tinker.cispo",
  "tinker.gspo",
  "trl.cispo",
  "trl.vespo",
  "gspo",
  "sapo",
];
/** Selections change with the log-probs. */
const SELECTING = ["clip_cov", "kl_cov"];

const settingsFor = (name: string): Record<string, number> => (name === "dro" ? { dro_beta: 0.05 } : {});

function smoothBatch(seed: number): LossBatch {
  const batch = randomBatch(seed, { rows: 6, longest: 12 });
  return {
    ...batch,
    logprobs: Float64Array.from(batch.logprobs),
    oldLogprobs: Float64Array.from(batch.logprobs, (x, t) => x + 0.15 * Math.sin(3 * t + 1)),
    rolloutIsWeights: undefined,
    entropy: undefined,
  };
}

const differentiable = lossNames().filter((name) => ![...DETACHED, ...SELECTING].includes(name));

describe("the gradient equals finite differences of the loss", () => {
  test.each(differentiable.flatMap((name) => AGGREGATION_MODES.map((mode) => ({ name, mode }))))(
    "$name $mode",
    ({ name, mode }) => {
      const spec: PolicyLossSpec = {
        name,
        loss_agg_mode: mode,
        settings: settingsFor(name),
        kl: { type: "k3", coef: 0.2 },
      };
      const batch = smoothBatch(5);
      const { dlogprobs } = policyLoss(batch, spec);
      const at = (t: number, h: number) => {
        const logprobs = Float64Array.from(batch.logprobs);
        logprobs[t]! += h;
        return policyLoss({ ...batch, logprobs }, spec).loss;
      };
      const h = 1e-6;
      const want = dlogprobs.map((_, t) => (at(t, h) - at(t, -h)) / (2 * h));
      expect(furthest(dlogprobs, want, { relative: 1e-5, absolute: 1e-7 })).toBeUndefined();
    },
  );
});

const spec: PolicyLossSpec = { name: "vanilla", loss_agg_mode: "token-mean" };

describe("edges", () => {
  const one = (logprob: number, old: number, advantage: number, name = "vanilla") =>
    policyLoss(
      {
        offsets: Uint32Array.of(0, 1),
        mask: Uint32Array.of(1),
        logprobs: [logprob],
        oldLogprobs: [old],
        advantages: perRow(advantage),
      },
      { name, loss_agg_mode: "token-sum" },
    );
  test.each([
    [Math.log(1.2), 1, -1.2],
    [Math.log(0.8), -1, 0.8],
    [Math.log(1.3), 1, 0],
    [Math.log(1.3), -1, 1.3],
    [Math.log(3.5), -1, 0],
    [21, 1, 0],
    [-21, -1, 0],
    [0.1, 0, 0],
  ])("vanilla at log-ratio %f and advantage %f has slope %f", (d, advantage, slope) => {
    expect(one(d, 0, advantage).dlogprobs[0]).toBeCloseTo(slope, 9);
  });

  test("a batch without a trained token is refused, not NaN", () => {
    const batch = {
      offsets: Uint32Array.of(0, 1),
      mask: Uint32Array.of(0),
      logprobs: [0],
      advantages: perRow(1),
    };
    expect(() => policyLoss(batch, spec)).toThrow(/batch_num_tokens must be above 0/);
  });
});

overDevices("the recorded loss", (device) => {
  test("windows of 64 tokens give what one window gives", async () => {
    const batch = randomBatch(77, { rows: 40, longest: 60 });
    const many = {
      ...spec,
      loss_agg_mode: "seq-mean-token-mean",
      entropy_coeff: 0.01,
      kl: { type: "k3", coef: 0.1 },
    };
    const whole = await deviceLoss(device, batch, many);
    const parts = await deviceLoss(device, batch, many, { windowTokens: 64 });
    expect(parts.dlogprobs).toEqual(whole.dlogprobs);
    expect(parts.dentropy).toEqual(whole.dentropy);
    expect(furthest([parts.loss], [whole.loss], F32)).toBeUndefined();
  });

  test("a repeat gives the same bits", async () => {
    const batch = randomBatch(3, { rows: 300, longest: 200 });
    const first = await deviceLoss(device, batch, spec);
    const again = await deviceLoss(device, batch, spec);
    expect(again.loss).toBe(first.loss);
    expect(again.metrics).toEqual(first.metrics);
    expect(again.dlogprobs).toEqual(first.dlogprobs);
  });

  test.each([1, 2, 3, 4, 5, 255, 257, 1025])("%i tokens in one row", async (tokens) => {
    const batch = {
      offsets: Uint32Array.of(0, tokens),
      mask: new Uint32Array(tokens).fill(1),
      logprobs: Float32Array.from({ length: tokens }, (_, t) => -0.001 * t),
      oldLogprobs: Float32Array.from({ length: tokens }, (_, t) => -0.0011 * t),
      advantages: perToken(...Array.from({ length: tokens }, (_, t) => ((t % 7) - 3) / 3)),
    };
    const got = await deviceLoss(device, batch, spec);
    const want = policyLoss(batch, spec);
    expect(furthest([got.loss], [want.loss], F32)).toBeUndefined();
    expect(furthest(got.dlogprobs, want.dlogprobs, F32)).toBeUndefined();
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY])(
    "%f at a trained token is refused, at a masked one it is ignored",
    async (bad) => {
      const batch = {
        offsets: Uint32Array.of(0, 3),
        mask: Uint32Array.of(1, 0, 1),
        logprobs: Float32Array.of(-1, bad, -2),
        oldLogprobs: Float32Array.of(-1, -1, -2),
        advantages: perRow(1),
      };
      const fine = await deviceLoss(device, batch, spec);
      expect(Array.from(fine.dlogprobs)).toEqual([-0.5, 0, -0.5]);
      await expect(deviceLoss(device, { ...batch, mask: Uint32Array.of(1, 1, 1) }, spec)).rejects.toThrow(
        /1 trained tokens hold a NaN/,
      );
    },
  );

  test.runIf(device.info.kind === "webgpu")(
    "more than 65,535 workgroups of rows, with a loss that couples them",
    async () => {
      const rows = 65_536 * 64 + 3;
      const batch = {
        offsets: Uint32Array.from({ length: rows + 1 }, (_, i) => i),
        mask: new Uint32Array(rows).fill(1),
        logprobs: new Float32Array(rows).fill(-1),
        oldLogprobs: new Float32Array(rows).fill(-1.1),
        advantages: { level: "row", values: new Float32Array(rows).fill(1).fill(5, rows - 1) } as const,
      };
      const got = await deviceLoss(device, batch, { name: "gspo", loss_agg_mode: "token-mean" });
      expect(got.dlogprobs[rows - 1]! * rows).toBeCloseTo(-5 * Math.exp(0.1), 4);
      expect(got.dlogprobs[65_536 * 64]! * rows).toBeCloseTo(-Math.exp(0.1), 4);
    },
  );
});
