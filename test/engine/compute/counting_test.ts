import { expect, test } from "vitest";
import { CountingDevice, TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { openGpu } from "../../fixtures/devices.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const KIB = 1024;

test("counts by label what was held at the highest moment of each phase", () => {
  const device = new CountingDevice();
  const weights = device.alloc(4 * KIB, "weights");
  const [first, second] = [device.alloc(KIB, "residual"), device.alloc(KIB, "residual")];
  device.release(first, second);
  device.alloc(KIB, "logits");
  expect(device.phasePeak.bytes).toBe(6 * KIB);
  expect([...device.phasePeak.byLabel]).toEqual([
    ["weights", 4 * KIB],
    ["residual", 2 * KIB],
  ]);
  device.startPhase();
  expect(device.phasePeak.bytes).toBe(5 * KIB);
  expect([...device.phasePeak.byLabel]).toEqual([
    ["weights", 4 * KIB],
    ["logits", KIB],
  ]);
  device.release(weights);
  expect(device.memory).toMatchObject({ live: KIB, peak: 6 * KIB });
});

test("refuses what the device that it stands in for would refuse", () => {
  const device = new CountingDevice({ memoryBudgetBytes: KIB });
  device.alloc(KIB, "weights");
  expect(() => device.alloc(KIB, "residual")).toThrow(ConfigError);
  const small = new CountingDevice({
    info: { ...TYPICAL_GPU, limits: { ...TYPICAL_GPU.limits, maxBufferBytes: KIB } },
  });
  expect(() => small.alloc(KIB + 1, "weights")).toThrow("as one buffer");
});

test("reads zeros of the asked length", async () => {
  const device = new CountingDevice();
  const buffer = device.upload(Float32Array.of(1, 2, 3), "x");
  const [whole, part] = await device.read([
    { buffer, type: "f32" },
    { buffer, type: "u32", length: 2 },
  ]);
  expect([whole, part]).toEqual([new Float32Array(3), new Uint32Array(2)]);
});

/** A step of everything that a model does, on tokens that end no sequence. */
async function runStep(device: Device): Promise<number> {
  const model = LanguageModel.create(device, SMALL_MODEL, { lora: { rank: 2 } });
  const params = { temperature: 1, top_p: 1, top_k: -1, max_tokens: 9, stop_token_ids: [] };
  const request = { prompt_ids: [3, 4, 5], params, seed: 1 };
  await model.sample([request, request], { weightVersion: 0 });
  const rows = { tokens: Uint32Array.from({ length: 20 }, (_, i) => 1 + (i % 7)), offsets: Uint32Array.of(0, 9, 20) };
  await model.logprobs(rows, { policy: "reference", temperature: 1 });
  const mask = new Uint32Array(20).fill(1);
  await model.accumulate(
    { ...rows, mask },
    {
      temperature: 1,
      loss: () => {
        const dlogprobs = device.upload(new Float32Array(18), "dlogprobs");
        return { dlogprobs, reads: [], release: () => device.release(dlogprobs) };
      },
    },
  );
  await model.optimStep({ learning_rate: 0, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 });
  model.release();
  expect(device.memory.live).toBe(0);
  return device.memory.peak;
}

test("a model holds the same bytes on a counting device as on the device that it stands in for", async () => {
  // A device of its own: the one that tests share holds what others left.
  const gpu = await openGpu();
  for (const real of [new CpuDevice(), ...(gpu ? [gpu] : [])])
    expect(await runStep(new CountingDevice({ info: real.info }))).toBe(await runStep(real));
  gpu?.destroy();
});
