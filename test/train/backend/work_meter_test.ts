/** The work of a local backend: operations and busy seconds by phase, and the device's peak. */
import { describe, expect, test, vi } from "vitest";
import { productPeak } from "../../../src/engine/compute/measure.ts";
import type { SampledSequence, SampleRequest } from "../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { forwardFlop, trainingFlop } from "../../../src/engine/model/flop.ts";
import { countSampling, countScoring, countTraining } from "../../../src/train/backend/local/counted_work.ts";
import { WorkMeter } from "../../../src/train/backend/local/work_meter.ts";
import { overDevices } from "../../fixtures/devices.ts";

describe("a meter", () => {
  test("is busy while any call of a phase runs, and counts when it ends", async () => {
    vi.useFakeTimers({ toFake: ["performance", "setTimeout"] });
    try {
      const meter = new WorkMeter();
      const call = (ms: number, flop: number) =>
        meter.track(
          "actor",
          () => new Promise<void>((resume) => setTimeout(resume, ms)),
          () => ({ flop, tokens: 1 }),
        );
      const calls = [call(2000, 10), call(3000, 20)];
      await vi.advanceTimersByTimeAsync(2500);
      expect(meter.take()).toEqual({ actor: { flop: 10, tokens: 1, seconds: 2.5 } });
      await vi.advanceTimersByTimeAsync(2500);
      await Promise.all(calls);
      expect(meter.take()).toEqual({ actor: { flop: 20, tokens: 1, seconds: 0.5 } });
      expect(meter.take()).toEqual({ actor: { flop: 0, tokens: 0, seconds: 0 } });
    } finally {
      vi.useRealTimers();
    }
  });

  test("counts the time of a call that fails, and nothing else", async () => {
    const meter = new WorkMeter();
    const failing = meter.track(
      "rollout",
      () => Promise.reject(new Error("lost")),
      () => ({ flop: 5, tokens: 5 }),
    );
    await expect(failing).rejects.toThrow("lost");
    expect(meter.take().rollout).toMatchObject({ flop: 0, tokens: 0 });
  });
});

const config = {
  vocabSize: 50,
  hiddenSize: 8,
  intermediateSize: 12,
  layers: 1,
  heads: 2,
  kvHeads: 1,
  headDim: 4,
} as ModelConfig;
const whole = { config, adapter: undefined, trainableParameters: 1000 };
const adapted = { config, adapter: {} as never, trainableParameters: 64 };

describe("operations", () => {
  const request = (prompt_ids: number[]): SampleRequest => ({ prompt_ids, seed: 0, params: {} as never });
  const sequence = (tokens: number[]) => ({ tokens }) as unknown as SampledSequence;

  test("of sampling count a shared prompt once, and not the last token", () => {
    const requests = [request([1, 2, 3]), request([1, 2, 3])];
    const { flop, tokens } = countSampling(whole, requests, [sequence([4, 5]), sequence([6])]);
    expect(tokens).toBe(3);
    // One prompt of 3, one token behind it at length 4, and three rows of logits.
    const expected =
      forwardFlop(config, { tokens: 3, targets: 0, lengths: [3] }) +
      forwardFlop(config, { tokens: 1, targets: 3, lengths: [4], known: [3] });
    expect(flop).toBe(expected);
  });

  test("of scoring and training count logits of masked tokens only", () => {
    const rows = { tokens: new Uint32Array(5), offsets: Uint32Array.of(0, 3, 5) };
    const mask = Uint32Array.of(0, 1, 1, 0, 0);
    const work = { tokens: 5, targets: 2, lengths: [3, 2] };
    expect(countScoring(whole, rows, mask)).toEqual({ flop: forwardFlop(config, work), tokens: 5 });
    expect(countScoring(whole, rows).flop).toBe(forwardFlop(config, { ...work, targets: 3 }));
    expect(countScoring(adapted, rows, mask).flop).toBe(forwardFlop(config, work, 64));
    expect(countTraining(whole, rows, mask).flop).toBe(trainingFlop(config, work));
    expect(countTraining(adapted, rows, mask).flop).toBe(trainingFlop(config, work, 64));
  });
});

overDevices("the peak", (device) => {
  test("is measured on a GPU, with its memory returned, and absent on cpu", async () => {
    const { live } = device.memory;
    const peak = await productPeak(device);
    expect(device.memory.live).toBe(live);
    if (device.info.kind === "cpu") expect(peak).toBeUndefined();
    else expect(peak).toBeGreaterThan(1e8);
  });
});
