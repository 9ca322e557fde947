import { describe, expect, test } from "vitest";
import { adaptiveKlController, fixedKlController } from "../../../src/engine/algorithm/kl/controller.ts";
import { klInReward } from "../../../src/engine/algorithm/kl/reward.ts";
import { klLoss, recordKl } from "../../../src/engine/algorithm/loss/kl_loss.ts";
import { recordValueLoss, valueLoss } from "../../../src/engine/algorithm/loss/value_loss.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { rowsOfTokens } from "../../../src/engine/packing/offsets.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { BATCHES, F32, F64, furthest, offsetsOf, pack, readGolden, readRows } from "./golden.ts";

interface KlCase {
  kl: string;
  values: number[][];
  loss_token_mean: number;
  dlogprobs: number[][];
}

interface ValueCase {
  vpreds: number[][];
  returns: number[][];
  cliprange_value: number;
  value: number;
  vf_clipfrac: number;
  dvpreds: number[][];
}

const spec = { loss_agg_mode: "token-mean" };

describe.each(BATCHES)("on %s", (name) => {
  const rows = readRows(name);
  const offsets = offsetsOf(rows);
  const mask = Uint32Array.from(pack(rows, "mask"));
  const masked = (values: number[][]) => values.flat().map((x, t) => (mask[t] === 0 ? 0 : x));
  const batch = { offsets, mask, logprobs: pack(rows, "logprobs"), refLogprobs: pack(rows, "ref_logprobs") };

  test.each(readGolden<KlCase[]>(`${name}.kl.json`))("KL $kl equals the published one", (c) => {
    const got = klLoss(batch, { ...spec, kl: c.kl });
    expect(furthest(got.values, masked(c.values), F64)).toBeUndefined();
    expect(furthest([got.loss], [c.loss_token_mean], F64)).toBeUndefined();
    expect(furthest(got.dlogprobs, c.dlogprobs.flat(), F64)).toBeUndefined();
  });

  const value = readGolden<ValueCase>(`${name}.value_loss.json`);
  const valueSpec = { ...spec, cliprange_value: value.cliprange_value };
  const valueBatch = {
    offsets,
    mask,
    values: value.vpreds.flat(),
    oldValues: pack(rows, "values"),
    returns: value.returns.flat(),
  };
  test("the value loss equals the published one", () => {
    const got = valueLoss(valueBatch, valueSpec);
    expect(
      furthest([got.loss, got.metrics["critic/vf_clipfrac"]!], [value.value, value.vf_clipfrac], F64),
    ).toBeUndefined();
    expect(furthest(got.dvalues, value.dvpreds.flat(), F64)).toBeUndefined();
  });

  overDevices("recorded", (device) => {
    const floats = (data: ArrayLike<number>) => device.upload(Float32Array.from(data), "input");
    const shared = () => ({
      mask: device.upload(mask, "mask"),
      trajectoryOfToken: device.upload(rowsOfTokens(offsets), "rows"),
    });
    const counts = countRows(offsets, mask);

    test.each(readGolden<KlCase[]>(`${name}.kl.json`))("KL $kl", async (c) => {
      const buffers = {
        ...shared(),
        logprobs: floats(batch.logprobs),
        refLogprobs: floats(batch.refLogprobs),
      };
      const recorded = recordKl(device, { ...spec, kl: c.kl }, { buffers, counts });
      const { loss } = recorded.decode(await device.read(recorded.reads));
      expect(furthest([loss], [c.loss_token_mean], F32)).toBeUndefined();
      expect(furthest(await readFloats(device, recorded.values), masked(c.values), F32)).toBeUndefined();
      expect(furthest(await readFloats(device, recorded.dlogprobs), c.dlogprobs.flat(), F32)).toBeUndefined();
      recorded.release();
      device.release(...Object.values(buffers));
    });

    test("the value loss", async () => {
      const { values, oldValues, returns } = valueBatch;
      const buffers = {
        ...shared(),
        values: floats(values),
        oldValues: floats(oldValues),
        returns: floats(returns),
      };
      const recorded = recordValueLoss(device, valueSpec, { buffers, counts });
      const { loss, metrics } = recorded.decode(await device.read(recorded.reads));
      expect(furthest([loss, metrics["critic/vf_clipfrac"]!], [value.value, value.vf_clipfrac], F32)).toBeUndefined();
      expect(furthest(await readFloats(device, recorded.dvalues), value.dvpreds.flat(), F32)).toBeUndefined();
      recorded.release();
      device.release(...Object.values(buffers));
    });
  });
});

test("the value loss counts clipped tokens and averages predictions over trained tokens", () => {
  const batch = {
    offsets: Uint32Array.of(0, 3),
    mask: Uint32Array.of(1, 1, 0),
    values: [2, 0.1, 9],
    oldValues: [0, 0, 0],
    returns: [3, 0, 0],
  };
  const { loss, dvalues, metrics } = valueLoss(batch, { ...spec, cliprange_value: 0.5 });
  // The first prediction moved by 2, of which 0.5 count: (0.5 - 3)^2 > (2 - 3)^2.
  expect(loss).toBeCloseTo((2.5 ** 2 + 0.1 ** 2) / 4, 7);
  expect(dvalues[0]).toBe(0);
  expect(dvalues[1]).toBeCloseTo(0.05, 9);
  expect(metrics["critic/vf_clipfrac"]).toBe(1 / (2 + 1e-8));
  expect(metrics["critic/vpred_mean"]).toBe(2.1 / (2 + 1e-8));
});

test("KL in the reward costs beta per nat at trained tokens only; the controller gets the mean over rows", () => {
  const batch = {
    offsets: Uint32Array.of(0, 2, 3),
    mask: Uint32Array.of(1, 0, 1),
    tokenRewards: [0, 7, 1],
    oldLogprobs: [-1, -1, -2],
    refLogprobs: [-1.5, -9, -1],
  };
  const got = klInReward(batch, { kl: "kl", controller: fixedKlController(0.1) });
  expect(Array.from(got.tokenRewards)).toEqual([-0.05, 7, 1.1]);
  expect(got.metrics["actor/reward_kl_penalty"]).toBeCloseTo((0.5 - 1) / 2, 7);
});

test("the adaptive controller moves by at most a fifth of steps over horizon", () => {
  const start = adaptiveKlController(0.2, { target_kl: 0.1, horizon: 100 });
  expect(start.update(10, 50).coef).toBeCloseTo(0.2 * 1.1, 12);
  expect(start.update(0.1, 50).coef).toBeCloseTo(0.2, 12);
  expect(start.update(0, 50).coef).toBeCloseTo(0.2 * 0.9, 12);
});
