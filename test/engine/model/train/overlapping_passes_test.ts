/** A pass is recorded while the device works on the one before it, where that one cannot be refused memory. */
import { expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { OutOfMemoryError } from "../../../../src/leaves/errors.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../../../fixtures/devices.ts";
import { pack } from "../../../fixtures/golden_model.ts";
import { likelihood } from "../../../fixtures/likelihood.ts";
import { uniform } from "../../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const next = uniform(5);
const lengths = [9, 11, 12, 7, 10];
const ROWS = pack(lengths.map((length) => Array.from({ length }, () => Math.floor(next() * SMALL_MODEL.vocabSize))));
const BATCH = { ...ROWS, mask: new Uint32Array(ROWS.tokens.length).fill(1) };
const PASSES = 3;

/** Counts reads, and the most that are under way at a time. @param failing the index of one that fails */
function watched(device: Device, isSettled: boolean, failing?: { at: number; error: Error }) {
  const seen = { reads: 0, open: 0, most: 0 };
  const read: Device["read"] = async (requests) => {
    const isFailing = failing?.at === seen.reads++;
    seen.most = Math.max(seen.most, ++seen.open);
    try {
      const data = await device.read(requests);
      if (isFailing) throw failing!.error;
      return data;
    } finally {
      seen.open--;
    }
  };
  return { device: changed(device, { isSettled, read }), seen };
}

async function stepOn(device: Device) {
  const model = LanguageModel.create(device, SMALL_MODEL, { seed: 3, maxTokensPerPass: 24 });
  try {
    const passes = await model.accumulate(BATCH, { temperature: 1, loss: likelihood(device) });
    const gradients = await model.optimizer.gradients.read();
    const scores = await model.logprobs(ROWS, { policy: "current", temperature: 1 });
    return { losses: passes.map(({ data }) => data), gradients, scores };
  } finally {
    model.release();
  }
}

overDevices("passes", (real) => {
  test("overlap where memory is granted, with the same bits, and all memory is returned", async () => {
    const { live } = real.memory;
    const inTurn = watched(real, false);
    const expected = await stepOn(inTurn.device);
    expect(expected.losses).toHaveLength(PASSES);
    expect(inTurn.seen.most).toBe(1);
    const overlapping = watched(real, true);
    expect(await stepOn(overlapping.device)).toEqual(expected);
    expect(overlapping.seen).toMatchObject({ reads: inTurn.seen.reads, most: 2 });
    expect(real.memory.live).toBe(live);
  });

  test("end with the error of any, and return all memory", async () => {
    const { live } = real.memory;
    for (let at = 0; at < PASSES; at++) {
      const failing = watched(real, true, { at, error: new Error(`read ${at} failed`) });
      await expect(stepOn(failing.device)).rejects.toThrow(`read ${at} failed`);
    }
    // Behind it the next pass has run already, so that it cannot be repeated alone.
    const error = new OutOfMemoryError("refused late", { label: "x", bytes: 1 });
    await expect(stepOn(watched(real, true, { at: 0, error }).device)).rejects.toThrow("refused late");
    await real.submit();
    expect(real.memory.live).toBe(live);
  });
});

test.runIf(gpuDevice)("a GPU's memory is settled when its driver has answered", async () => {
  const device = gpuDevice!;
  await device.submit();
  expect(device.isSettled).toBe(true);
  const buffer = device.alloc(12_345_600, "a size of its own");
  expect(device.isSettled).toBe(false);
  await device.submit();
  expect(device.isSettled).toBe(true);
  device.release(buffer);
});
