import { expect, test } from "vitest";
import { KL_NAMES } from "../../../src/engine/algorithm/kl/estimate.ts";
import { AGGREGATION_MODES } from "../../../src/engine/algorithm/loss/aggregation.ts";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { lossNames } from "../../../src/engine/algorithm/loss/losses.ts";
import type { PolicyLossSpec } from "../../../src/engine/algorithm/loss/resolve.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { deviceLoss } from "./device_loss.ts";
import { furthest } from "./golden.ts";
import { type RandomBatch, randomBatch } from "./random_batch.ts";

const NAMES = lossNames();
/** f32 sums over a few hundred tokens whose ratios reach e^3. */
const FUZZ = { relative: 1e-4, absolute: 2e-5 };
const ROUNDS = 1000;

function pick<T>(from: readonly T[], next: () => number): T {
  return from[Math.floor(next() * from.length)]!;
}

function randomSpec(name: string, next: () => number): PolicyLossSpec {
  const settings: Record<string, number> = name === "dro" ? { dro_beta: 0.05 } : {};
  if (name.startsWith("trl.") && next() < 0.5) settings.importance_sampling_level = 1;
  if (name.startsWith("trl.") && next() < 0.3) settings.delta = 1.1 + next();
  if (name === "kl_cov") settings.kl_cov_ratio = 0.1;
  if (name === "clip_cov") Object.assign(settings, { clip_cov_ratio: 0.1, clip_cov_lb: 0.01, clip_cov_ub: 0.6 });
  return {
    name,
    settings,
    loss_agg_mode: pick(AGGREGATION_MODES, next),
    kl: next() < 0.5 ? { type: pick(KL_NAMES, next), coef: 0.1 } : undefined,
    entropy_coeff: next() < 0.5 ? 0.01 : 0,
  };
}

/**
 * A ratio within rounding of a bound may fall on either side of it in f32, and then its gradient is there or is not.
 * Such batches are not compared.
 */
function isNearBound(batch: RandomBatch): boolean {
  const bounds = [0.8, 1.2, 3, 4];
  return (
    batch.oldLogprobs !== undefined &&
    Array.from(batch.oldLogprobs).some((old, t) => {
      const r = Math.exp(batch.logprobs[t]! - old);
      return bounds.some((bound) => Math.abs(r - bound) < 1e-5);
    })
  );
}

/** Four optional streams beside the selection's keys do not fit eight bindings. */
function bindsTooMuch(batch: RandomBatch, { name, kl }: PolicyLossSpec): boolean {
  const perToken = batch.advantages.level === "token";
  return name.endsWith("_cov") && kl !== undefined && perToken && batch.rolloutIsWeights !== undefined;
}

/**
 * Every choice of streams, KL and aggregation is a pipeline that a software GPU compiles for a second: there, each
 * loss keeps one choice and meets many batches. The cpu device meets a new choice each round.
 */
function trial(round: number, device: string): { spec: PolicyLossSpec; batch: RandomBatch } {
  const name = NAMES[round % NAMES.length]!;
  const choices = mulberry32(device === "webgpu" ? round % NAMES.length : round);
  const spec = randomSpec(name, choices);
  // Rows with one advantage tie in covariance, and rounding breaks the tie: selections meet advantages per token.
  const perToken = choices() < 0.5 || name.endsWith("_cov");
  const batch = randomBatch(1000 + round, { perToken, weighted: choices() < 0.5 });
  return { spec, batch };
}

overDevices("random ragged batches equal float64", (device) => {
  test(`${ROUNDS} of every loss, aggregation, KL and entropy term together`, {
    timeout: 600_000,
  }, async () => {
    let compared = 0;
    for (let round = 0; round < ROUNDS; round++) {
      const { spec, batch } = trial(round, device.info.kind);
      if (batch.mask.length === batch.offsets.length - 1 || isNearBound(batch)) continue;
      if (bindsTooMuch(batch, spec)) {
        await expect(deviceLoss(device, batch, spec)).rejects.toThrow(/advantages per row/);
        continue;
      }
      const want = policyLoss(batch, spec);
      const got = await deviceLoss(device, batch, spec);
      const where = `round ${round} ${JSON.stringify(spec)}`;
      expect(furthest([got.loss], [want.loss], FUZZ), where).toBeUndefined();
      expect(furthest(got.dlogprobs, want.dlogprobs, FUZZ), where).toBeUndefined();
      if (want.dentropy) expect(furthest(got.dentropy!, want.dentropy, FUZZ), where).toBeUndefined();
      expect(Object.keys(got.metrics)).toEqual(Object.keys(want.metrics));
      for (const [key, value] of Object.entries(want.metrics))
        expect(furthest([got.metrics[key]!], [value], FUZZ), `${where} ${key}`).toBeUndefined();
      compared++;
    }
    expect(compared).toBeGreaterThan(ROUNDS * 0.8);
  });
});
