/** What a recording takes of its device: the memory that it gives back, what it uploads, which kernels it runs. */
import { describe, expect, test } from "vitest";
import { recordAdvantages } from "../../../src/engine/algorithm/advantage/device.ts";
import { estimatorNames } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import type { CorrectionConfig } from "../../../src/engine/algorithm/correction/config.ts";
import { recordCorrection } from "../../../src/engine/algorithm/correction/device.ts";
import { recordHeadLogprobs } from "../../../src/engine/algorithm/logprobs/head.ts";
import { recordLogprobs } from "../../../src/engine/algorithm/logprobs/logits.ts";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { recordKl } from "../../../src/engine/algorithm/loss/kl_loss.ts";
import { lossNames } from "../../../src/engine/algorithm/loss/losses.ts";
import { recordValueLoss, valueLoss } from "../../../src/engine/algorithm/loss/value_loss.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { computeAdvantages, computeKl, computePolicyLoss } from "../../../src/engine/algorithm/run.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { rowsOfTokens } from "../../../src/engine/packing/offsets.ts";
import { UnsupportedError } from "../../../src/leaves/errors.ts";
import { changed, narrowDevice } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { floats } from "../../fixtures/numbers.ts";
import { F32, furthest } from "./golden.ts";
import { randomBatch } from "./random_batch.ts";

const batch = randomBatch(11, { rows: 9, longest: 12, perToken: true, weighted: true });
const pairs = {
  ...batch,
  refLogprobs: batch.refLogprobs!,
  groups: packGroups(Uint32Array.of(0, 0, 1, 1, 2, 2, 0, 1, 2), 3),
};

/** Runs some work and returns the bytes that it did not give back. */
async function kept(device: Device, work: () => unknown): Promise<number> {
  const before = device.memory.live;
  await work();
  await device.submit();
  return device.memory.live - before;
}

describe("all memory is given back", () => {
  const device = new CpuDevice();

  test.each(estimatorNames())("by the estimator %s", async (name) => {
    expect(await kept(device, () => computeAdvantages(pairs, name, { device }))).toBe(0);
  });

  test.each(lossNames())("by the loss %s", async (name) => {
    const settings: Record<string, number> = name === "dro" ? { dro_beta: 0.5 } : {};
    const kl = { type: "k3", coef: 0.1 };
    const advantages = { level: "row", values: pairs.scores } as const;
    const spec = { name, settings, kl, entropy_coeff: 0.1, loss_agg_mode: "seq-mean-token-mean" };
    expect(await kept(device, () => computePolicyLoss({ ...pairs, advantages }, spec, { device }))).toBe(0);
  });

  test("by the KL loss, by row too", async () => {
    const spec = { kl: "k2", loss_agg_mode: "seq-mean-token-mean" };
    expect(await kept(device, () => computeKl(pairs, spec, { device }))).toBe(0);
  });

  test("where the device fails to answer", async () => {
    const read = () => Promise.reject(new Error("the device is lost"));
    const lost = changed(device, { read });
    const spec = { name: "vanilla", loss_agg_mode: "token-mean" };
    const failing = [
      () => computeAdvantages(pairs, "gae", { device: lost }),
      () => computePolicyLoss(pairs, spec, { device: lost }),
      () => computeKl(pairs, { kl: "k1", loss_agg_mode: "token-mean" }, { device: lost }),
    ];
    for (const work of failing)
      expect(await kept(device, () => expect(work()).rejects.toThrow("the device is lost"))).toBe(0);
  });

  test.each<[CorrectionConfig]>([
    [{ rollout_is: "token" }],
    [{ rollout_rs: "token_k1,seq_sum_k1", rollout_rs_threshold: 2 }],
  ])("by the correction %j", async (config) => {
    const inputs = {
      logprobs: device.upload(Float32Array.from(pairs.logprobs), "logprobs"),
      rolloutLogprobs: device.upload(pairs.rolloutLogprobs, "rollout"),
      mask: device.upload(pairs.mask, "mask"),
      offsets: device.upload(pairs.offsets, "offsets"),
    };
    const size = { rows: 9, tokens: pairs.mask.length };
    expect(await kept(device, () => recordCorrection(device, config, { buffers: inputs, ...size }).release())).toBe(0);
    device.release(...Object.values(inputs));
  });
});

overDevices("the critic's loss", (device) => {
  test.each(["token-mean", "seq-mean-token-mean"])("in %s equals the host's", async (loss_agg_mode) => {
    const values = { values: pairs.values, oldValues: pairs.tokenRewards, returns: pairs.sumPiSquared };
    const spec = { loss_agg_mode, cliprange_value: 0.3 };
    const want = valueLoss({ ...pairs, ...values }, spec);
    const before = device.memory.live;
    const buffers = {
      values: device.upload(values.values, "values"),
      oldValues: device.upload(values.oldValues, "old values"),
      returns: device.upload(values.returns, "returns"),
      mask: device.upload(pairs.mask, "mask"),
      trajectoryOfToken: device.upload(rowsOfTokens(pairs.offsets), "rows"),
    };
    const recorded = recordValueLoss(device, spec, { buffers, counts: countRows(pairs.offsets, pairs.mask) });
    const got = recorded.decode(await device.read(recorded.reads));
    expect(furthest([got.loss], [want.loss], F32)).toBeUndefined();
    expect(furthest(Object.values(got.metrics), Object.values(want.metrics), F32)).toBeUndefined();
    expect(Object.keys(got.metrics)).toEqual(Object.keys(want.metrics));
    expect(furthest(await readFloats(device, recorded.dvalues), want.dvalues, F32)).toBeUndefined();
    recorded.release();
    device.release(...Object.values(buffers));
    expect(device.memory.live).toBe(before);
  });
});

test("the KL loss on a device knows its mean over trained tokens beside its aggregate", async () => {
  const device = new CpuDevice();
  const buffers = {
    logprobs: device.upload(Float32Array.of(-1, 5, -2, -1), "logprobs"),
    refLogprobs: device.upload(Float32Array.of(-3, 0, -2, -2), "ref"),
    mask: device.upload(Uint32Array.of(1, 0, 1, 1), "mask"),
    trajectoryOfToken: device.upload(Uint32Array.of(0, 0, 0, 1), "rows"),
  };
  const counts = { tokens: 4, trained: Uint32Array.of(2, 1), longest: 3 };
  const recorded = recordKl(device, { kl: "k2", loss_agg_mode: "seq-mean-token-mean" }, { buffers, counts });
  const { loss, mean } = recorded.decode(await device.read(recorded.reads));
  // 2, 0 and 0.5: a row's mean of 1 and one of 0.5.
  expect(loss).toBeCloseTo(0.75, 6);
  expect(mean).toBeCloseTo(2.5 / 3, 6);
});

describe("groups on a device", () => {
  const device = new CpuDevice();
  const of = (name: string, groupOfRow: readonly number[], given: { offsets?: boolean; members?: boolean } = {}) => {
    const groups = packGroups(Uint32Array.from(groupOfRow), Math.max(...groupOfRow) + 1);
    const rows = groupOfRow.length;
    const buffer = (data: Uint32Array | Float32Array) => device.upload(data, "input");
    const buffers = {
      scores: buffer(Float32Array.from({ length: rows }, (_, row) => row % 3)),
      groupOffsets: given.offsets ? buffer(groups.offsets) : undefined,
      groupMembers: given.members ? buffer(groups.members) : undefined,
    };
    const kernels: string[] = [];
    const uploads: string[] = [];
    const watched = changed(device, {
      dispatch: (kernel) => void kernels.push(kernel.name),
      upload(data, label) {
        uploads.push(label);
        return device.upload(data, label);
      },
    });
    const counts = { tokens: rows, trained: new Uint32Array(rows).fill(1), longest: 1 };
    recordAdvantages(watched, name, { buffers, groups, counts });
    return { kernels, uploads };
  };
  const each = (size: number, count: number) =>
    Array.from({ length: size * count }, (_, row) => Math.floor(row / size));

  test.each([
    ["grpo", each(4, 3), "fixed"],
    ["rloo", each(32, 2), "fixed"],
    ["rloo", each(36, 2), "group"],
    ["rloo", each(6, 2), "group"],
    ["rloo", [0, 0, 0, 0, 1, 1, 1], "group"],
    ["rloo", [1, 1, 1, 1, 0, 0, 0, 0], "group"],
    ["grpo_passk", each(4, 3), "group"],
    ["opo", each(4, 3), "group"],
  ])("of %s over %j take the kernel advantage/%s", (name, groups, kernel) => {
    expect(of(name, groups).kernels).toEqual([`advantage/${kernel}`]);
  });

  test("upload only what is not on the device and what the kernel reads", () => {
    const [ordered, mixed] = [
      [0, 0, 1],
      [1, 0, 1],
    ];
    expect(of("rloo", each(4, 3)).uploads).toEqual([]);
    expect(of("rloo", ordered).uploads).toEqual(["group offsets"]);
    expect(of("rloo", mixed).uploads).toEqual(["group offsets", "group members"]);
    expect(of("rloo", mixed, { offsets: true }).uploads).toEqual(["group members"]);
    expect(of("rloo", mixed, { offsets: true, members: true }).uploads).toEqual([]);
    expect(of("opo", ordered).uploads).toEqual(["group offsets", "row lengths"]);
  });
});

overDevices("log-probs of logits", (device) => {
  // Rows of 12 floats: a window of rows begins at a multiple of 256 bytes, every 16 rows.
  const [rows, stride, vocabulary] = [37, 12, 10];
  const run = async (on: Device, options: object = {}, withEntropy = true) => {
    const before = device.memory.live;
    const logits = device.upload(floats(rows * stride, 5), "logits");
    const targets = device.upload(
      Uint32Array.from({ length: rows }, (_, row) => row % vocabulary),
      "targets",
    );
    const gradient = { dlogprobs: device.upload(floats(rows, 6), "a"), dentropy: device.upload(floats(rows, 7), "b") };
    const recorded = recordLogprobs(on, { rows, vocabulary, stride, logits, targets, ...options });
    const found = {
      logprobs: await readFloats(device, recorded.logprobs, rows),
      entropies: await readFloats(device, recorded.entropies, rows),
    };
    recorded.backward(withEntropy ? gradient : { dlogprobs: gradient.dlogprobs });
    const dlogits = await readFloats(device, logits, rows * stride);
    recorded.release();
    device.release(logits, targets, ...Object.values(gradient));
    expect(device.memory.live).toBe(before);
    return { ...found, dlogits };
  };

  test.each([768, 1600, 12 * 4 * 36])("are the same in windows, with bindings of %i bytes", async (bytes) => {
    expect(await run(narrowDevice(device, bytes))).toEqual(await run(device));
  });

  test("give a gradient without entropies, and refuse rows not in fours", async () => {
    const [both, plain] = [await run(device), await run(device, {}, false)];
    expect(plain.logprobs).toEqual(both.logprobs);
    expect(plain.dlogits).not.toEqual(both.dlogits);
    // d log p(target): a (1 - p) at the target, with row 0's target 0.
    const a = floats(rows, 6)[0]!;
    expect(plain.dlogits[0]).toBeCloseTo(a * (1 - Math.exp(plain.logprobs[0]!)), 5);
    expect(() => recordLogprobs(device, { rows: 1, vocabulary: 10 } as never)).toThrow(
      "Cannot read logits: their stride is no multiple of 4 (10). Pad the rows.",
    );
  });

  test("divide by the temperature, from hidden states too", async () => {
    const channels = 4;
    const hidden = device.upload(floats(rows * channels, 1), "hidden");
    const head = device.upload(floats(128 * channels, 2), "head");
    const targets = device.upload(new Uint32Array(rows).fill(100), "targets");
    const input = { rows, channels, vocabulary: 128, hidden, head, targets };
    const before = device.memory.live;
    const found = async (options: object) => {
      const recorded = recordHeadLogprobs(device, { ...input, ...options });
      const logprobs = await readFloats(device, recorded.logprobs, rows);
      recorded.release();
      return logprobs;
    };
    const [one, hot] = [await found({}), await found({ temperature: 1e9 })];
    expect(furthest(hot, new Float32Array(rows).fill(-Math.log(128)), F32)).toBeUndefined();
    expect(furthest(one, hot, F32)).toBeDefined();
    expect(await found({ temperature: 1, columnsPerPiece: 4096 })).toEqual(one);
    expect(device.memory.live).toBe(before);
    // 64 columns of 37 rows, 9,472 bytes, are the largest part.
    const narrow = (bytes: number) => () =>
      recordHeadLogprobs(narrowDevice(device, bytes), { ...input, columnsPerPiece: 64 }).release();
    expect(narrow(9_472)).not.toThrow();
    expect(narrow(9_471)).toThrow(UnsupportedError);
    expect(narrow(9_471)).toThrow(/over 37 rows at once: 2368 floats exceed one binding\. Split the rows\./);
    device.release(hidden, head, targets);
  });
});

overDevices("tokens chosen by their covariance", (device) => {
  // Ratios above the band: where the advantage is positive, PPO clips already.
  const moved = {
    offsets: Uint32Array.of(0, 2, 4),
    mask: Uint32Array.of(1, 1, 1, 1),
    logprobs: [-1, -2, -3, -4],
    oldLogprobs: [-2, -3, -4, -5],
  };
  const settings = { clip_cov_ratio: 1, clip_cov_lb: 0, clip_cov_ub: 99 };
  const spec = { name: "clip_cov", settings, loss_agg_mode: "token-mean" };

  test.each([
    ["row", [2, -1]],
    ["token", [2, 1, -1, -2]],
  ] as const)("are those of the host, with advantages by %s", async (level, values) => {
    for (const oldLogprobs of [moved.oldLogprobs, undefined]) {
      const given = { ...moved, oldLogprobs, advantages: { level, values } };
      const [got, want] = [await computePolicyLoss(given, spec, { device }), policyLoss(given, spec)];
      expect(furthest([got.metrics["actor/pg_clipfrac"]!], [want.metrics["actor/pg_clipfrac"]!], F32)).toBeUndefined();
      expect(furthest(got.dlogprobs, want.dlogprobs, F32)).toBeUndefined();
    }
  });

  test.runIf(device.info.kind === "cpu")("by means over the number of tokens plus 1e-8, exactly", async () => {
    // Equal advantages stand 5e-9 above such a mean, so that one token's covariance is above 0.
    const given = {
      ...{ offsets: Uint32Array.of(0, 2), mask: Uint32Array.of(1, 1), logprobs: [-1, -3] },
      advantages: { level: "token", values: [1, 1] } as const,
    };
    const got = await computePolicyLoss(given, spec, { device });
    expect([...got.dlogprobs]).toEqual([0, -0.5]);
    expect([...policyLoss(given, spec).dlogprobs]).toEqual([0, -0.5]);
  });
});
