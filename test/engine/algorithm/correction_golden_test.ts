import { describe, expect, test } from "vitest";
import {
  CORRECTION_PRESETS,
  type CorrectionConfig,
  planCorrection,
} from "../../../src/engine/algorithm/correction/config.ts";
import { recordCorrection } from "../../../src/engine/algorithm/correction/device.ts";
import { rolloutCorrection } from "../../../src/engine/algorithm/correction/host.ts";
import { offPolicyMetrics } from "../../../src/engine/algorithm/correction/metrics.ts";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { devices, overDevices } from "../../fixtures/devices.ts";
import { BATCHES, F32, F64, furthest, offsetsOf, pack, readGolden, readRows } from "./golden.ts";

interface CorrectionCase extends CorrectionConfig {
  weights: number[][] | null;
  mask: number[][];
  metrics: Record<string, number>;
}

const title = (c: CorrectionCase) =>
  `is ${c.rollout_is} ${c.rollout_is_threshold} rs ${c.rollout_rs} ${c.rollout_rs_threshold} norm ${c.rollout_is_batch_normalize}`;

describe.each(BATCHES)("rollout correction equals the published one on %s", (name) => {
  const rows = readRows(name);
  const batch = {
    offsets: offsetsOf(rows),
    mask: Uint32Array.from(pack(rows, "mask")),
    logprobs: pack(rows, "old_logprobs"),
    rolloutLogprobs: pack(rows, "rollout_logprobs"),
  };
  const cases = readGolden<CorrectionCase[]>(`${name}.rollout_correction.json`);
  test.each(cases.map((c) => ({ title: title(c), c })))("$title", ({ c }) => {
    const got = rolloutCorrection(batch, c);
    expect(Array.from(got.mask)).toEqual(c.mask.flat());
    if (c.weights === null) expect(got.weights).toBeUndefined();
    else expect(furthest(got.weights!, c.weights.flat(), F64)).toBeUndefined();
    expect(Object.keys(got.metrics).sort()).toEqual(Object.keys(c.metrics).sort());
    for (const [key, value] of Object.entries(c.metrics))
      expect(furthest([got.metrics[key]!], [value], F64), key).toBeUndefined();
  });

  overDevices("weights and mask", (device) => {
    test.each(cases.filter((c) => !c.rollout_is_batch_normalize).map((c) => ({ title: title(c), c })))(
      "$title",
      async ({ c }) => {
        const buffers = {
          logprobs: device.upload(Float32Array.from(batch.logprobs), "logprobs"),
          rolloutLogprobs: device.upload(Float32Array.from(batch.rolloutLogprobs), "rollout"),
          mask: device.upload(batch.mask, "mask"),
          offsets: device.upload(batch.offsets, "offsets"),
        };
        const shape = { rows: rows.length, tokens: batch.mask.length };
        const recorded = recordCorrection(device, c, { buffers, ...shape });
        const [mask] = await device.read([{ buffer: recorded.mask, type: "u32" }]);
        expect(Array.from(mask!)).toEqual(c.mask.flat());
        if (c.weights === null) expect(recorded.weights).toBeUndefined();
        else expect(furthest(await readFloats(device, recorded.weights!), c.weights.flat(), F32)).toBeUndefined();
        recorded.release();
        device.release(...Object.values(buffers));
      },
    );
  });

  test("off-policy metrics", () => {
    const golden = readGolden<Record<string, number>>(`${name}.offpolicy_metrics.json`);
    const got = offPolicyMetrics(batch);
    for (const [key, value] of Object.entries(golden)) expect(furthest([got[key]!], [value], F64), key).toBeUndefined();
  });
});

/** Log-ratios of 0 alone: weights of exactly 1, divergences of exactly 0. */
const AT_BOUND = {
  offsets: Uint32Array.of(0, 2, 3),
  mask: Uint32Array.of(1, 1, 1),
  logprobs: Float32Array.of(-1, -2, -3),
  rolloutLogprobs: Float32Array.of(-1, -2, -3),
};

describe.each<CorrectionConfig>([
  { rollout_is: "token", rollout_is_threshold: "1_2" },
  { rollout_is: "token", rollout_is_threshold: "0.5_1" },
  { rollout_is: "sequence", rollout_is_threshold: "1_1" },
  { rollout_is: "token", rollout_is_threshold: 1 },
  { rollout_rs: "token_k1", rollout_rs_threshold: "1_2" },
  { rollout_rs: "token_k1", rollout_rs_threshold: "0.5_1" },
  { rollout_rs: "seq_sum_k1", rollout_rs_threshold: "1_1" },
  { rollout_rs: "seq_mean_k1", rollout_rs_threshold: "1_1" },
])("what lies on a bound is kept: %o", (config) => {
  test("on the host", () => {
    const { weights, mask } = rolloutCorrection(AT_BOUND, config);
    expect([...mask]).toEqual([1, 1, 1]);
    if (config.rollout_is) expect([...weights!]).toEqual([1, 1, 1]);
  });

  test.each(devices.map((device) => ({ kind: device.info.kind, device })))("on $kind", async ({ device }) => {
    const buffers = {
      logprobs: device.upload(AT_BOUND.logprobs, "logprobs"),
      rolloutLogprobs: device.upload(AT_BOUND.rolloutLogprobs, "rollout"),
      mask: device.upload(AT_BOUND.mask, "mask"),
      offsets: device.upload(AT_BOUND.offsets, "offsets"),
    };
    const recorded = recordCorrection(device, config, { buffers, rows: 2, tokens: 3 });
    const [mask] = await device.read([{ buffer: recorded.mask, type: "u32", length: 3 }]);
    expect([...mask!]).toEqual([1, 1, 1]);
    if (config.rollout_is) expect([...(await readFloats(device, recorded.weights!, 3))]).toEqual([1, 1, 1]);
    recorded.release();
    device.release(...Object.values(buffers));
  });
});

test.each(Object.keys(CORRECTION_PRESETS))("the preset %s can be planned", (name) => {
  expect(() => planCorrection(CORRECTION_PRESETS[name]!)).not.toThrow();
});

test.each([
  [{ rollout_is: "row" as never }, /token, sequence or null/],
  [{ rollout_rs: "seq_max_k1", rollout_rs_threshold: 2 }, /Use token_k1/],
  [{ rollout_rs: "token_k1" }, /rollout_rs_threshold/],
  [{ rollout_rs: "token_k2", rollout_rs_threshold: "0.1_0.2" }, /from below.*\(rollout_rs_threshold\)/],
  [{ rollout_is: "token" as const, rollout_is_threshold: "5_0.5" }, /above 0/],
])("%o is refused", (config, message) => {
  expect(() => planCorrection(config)).toThrow(message);
});

describe("a threshold", () => {
  const planOf = (rollout_rs_threshold: number | string, rollout_rs = "token_k1") =>
    planCorrection({ rollout_rs, rollout_rs_threshold }).rejections[0];

  test.each([
    ["token_k1", 2, -Math.log(2), Math.log(2)],
    ["token_k1", " 0.5_4 ", Math.log(0.5), Math.log(4)],
    ["token_k1", "2_2", Math.log(2), Math.log(2)],
    ["token_k2", " 0.25", Number.NEGATIVE_INFINITY, 0.25],
    ["seq_mean_k3", 3, Number.NEGATIVE_INFINITY, 3],
  ])("of %s: %o bounds the statistic from %d to %d", (name, threshold, low, high) => {
    expect(planOf(threshold, name)).toMatchObject({ low, high });
  });

  test.each(["", " ", "x", "0", "-1", "0_2", "2_x", "4_2", "1_2_3", 0, Number.NaN])("of %o is refused", (it) => {
    expect(() => planOf(it)).toThrow(/^Cannot read the threshold .* above 0.*\(rollout_rs_threshold\)\.$/);
    expect(() => planCorrection({ rollout_is: "token", rollout_is_threshold: it })).toThrow(
      /\(rollout_is_threshold\)\.$/,
    );
  });
});
