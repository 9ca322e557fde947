/** Rejection of tokens and rows on every device: each statistic beside the kernel's own reference, on both sides of 0. */
import { expect, test } from "vitest";
import { correctionReject } from "../../../src/engine/algorithm/correction/kernels.ts";
import { STATISTICS } from "../../../src/engine/algorithm/correction/statistics.ts";
import { offsetsOf, totalTokens } from "../../../src/engine/packing/offsets.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { floats } from "../../fixtures/numbers.ts";

// Rows of 0, 1, 2 and more tokens, one without a trained token, one whose divergences are all below 0, one all above.
const LENGTHS = [0, 1, 2, 5, 3, 4, 4, 9];
const OFFSETS = offsetsOf(LENGTHS);
const TOKENS = totalTokens(OFFSETS);
const [UNTRAINED, BELOW, ABOVE] = [4, 5, 6];

function batch() {
  const [logprobs, rollout] = [floats(TOKENS, 1, 2), floats(TOKENS, 2, 2)];
  const mask = Uint32Array.from({ length: TOKENS }, (_, t) => Number(t % 3 !== 1));
  const row = (r: number) => Array.from({ length: LENGTHS[r]! }, (_, i) => OFFSETS[r]! + i);
  for (const t of row(UNTRAINED)) mask[t] = 0;
  for (const t of row(BELOW)) logprobs[t] = rollout[t]! + 0.5 + 0.25 * (t % 2);
  for (const t of row(ABOVE)) logprobs[t] = rollout[t]! - 0.5 - 0.25 * (t % 2);
  return { logprobs, rollout, mask, offsets: OFFSETS };
}

overDevices("rejection", (device) => {
  test.each(STATISTICS)("by $name", async (statistic) => {
    const kernel = correctionReject(statistic);
    const { logprobs, rollout, mask, offsets } = batch();
    const seen = new Set<number>();
    for (const [low, high] of [
      [-0.4, 0.4],
      [-1, -0.1],
      [0.1, 1],
      [-9, 0.3],
      [-0.3, 9],
      [0, 0],
    ] as const) {
      const params = { rows: LENGTHS.length, low, high };
      const expected = { logprobs, rollout, mask, offsets, kept: new Uint32Array(TOKENS).fill(1) };
      kernel.reference(expected, params, {});
      const buffers = {
        logprobs: device.upload(logprobs, "logprobs"),
        rollout: device.upload(rollout, "rollout"),
        mask: device.upload(mask, "mask"),
        offsets: device.upload(offsets, "offsets"),
        kept: device.upload(new Uint32Array(TOKENS).fill(1), "kept"),
      };
      device.dispatch(kernel, { buffers, params });
      const [kept] = await device.read([{ buffer: buffers.kept, type: "u32", length: TOKENS }]);
      expect([...kept!], `${low} to ${high}`).toEqual([...expected.kept]);
      for (const bit of kept!) seen.add(bit);
      device.release(...Object.values(buffers));
    }
    expect(seen).toEqual(new Set([0, 1]));
  });

  test.each([1e-3, -1e-3, 0.05])("k3 of a log-ratio of %d is as exact as its bound", async (x) => {
    const wanted = Math.expm1(Math.fround(x)) - Math.fround(x);
    for (const [factor, bit] of [
      [0.99, 0],
      [1.01, 1],
    ] as const) {
      const buffers = {
        logprobs: device.upload(Float32Array.of(x), "logprobs"),
        rollout: device.upload(Float32Array.of(0), "rollout"),
        mask: device.upload(Uint32Array.of(1), "mask"),
        offsets: device.upload(Uint32Array.of(0, 1), "offsets"),
        kept: device.upload(Uint32Array.of(1), "kept"),
      };
      const params = { rows: 1, low: -1, high: factor * wanted };
      device.dispatch(correctionReject(STATISTICS.find(({ name }) => name === "token_k3")!), { buffers, params });
      const [kept] = await device.read([{ buffer: buffers.kept, type: "u32", length: 1 }]);
      expect([...kept!]).toEqual([bit]);
      device.release(...Object.values(buffers));
    }
  });
});
