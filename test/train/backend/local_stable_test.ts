/** The loss stable_reinforce of the local backend: what is recorded, what is scored, and that it learns. */
import { afterEach, describe, expect, test, vi } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type {
  LossSpec,
  OptimParams,
  SampledSequence,
  SampleRequest,
  TrainBatch,
} from "../../../src/engine/contract/backend.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const LOSS: LossSpec = {
  name: "stable_reinforce",
  loss_agg_mode: "token-mean",
  settings: { kl_coeff: 0 },
  entropy_coeff: 0,
  temperature: 1,
};
const ADAM: OptimParams = {
  ...{ learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 0 },
};
const PROMPT = [1, 2, 3];

const opened: LocalBackend[] = [];
// Tests share the devices, which stay open.
afterEach(() => {
  for (const { languageModel } of opened.splice(0)) languageModel.release();
});

function open(device: Device = new CpuDevice(), recordStabilityInfo = true): LocalBackend {
  const model = LanguageModel.create(device, SMALL_MODEL, { seed: 3 });
  const backend = new LocalBackend({ model, recordStabilityInfo });
  opened.push(backend);
  return backend;
}

function request(seed: number, more: Partial<SampleRequest["params"]> = {}): SampleRequest {
  const params = { max_tokens: 4, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [], ...more };
  return { prompt_ids: PROMPT, params, seed };
}

function batchOf(samples: readonly SampledSequence[], advantages: number[], tail: number[] = []): TrainBatch {
  const rows = samples.map(({ tokens }) => [...PROMPT, ...tokens, ...tail]);
  const offsets = [0, ...rows.map((_, i) => rows.slice(0, i + 1).flat().length)];
  const around = (values: readonly number[]) => [...PROMPT.map(() => 0), ...values, ...tail.map(() => 0)];
  return {
    tokens: Uint32Array.from(rows.flat()),
    offsets: Uint32Array.from(offsets),
    mask: Uint32Array.from(samples.flatMap(({ tokens }) => around(tokens.map(() => 1)))),
    rolloutLogprobs: Float32Array.from(samples.flatMap(({ logprobs }) => around(logprobs))),
    advantages: perRow(...advantages),
  };
}

describe("what is sampled", () => {
  test("is what was asked for, and the same as without records", async () => {
    const streamed: (number | undefined)[] = [];
    const onTokens: SampleRequest["onTokens"] = (_, __, top) => streamed.push(top?.[0]?.length);
    const requests = [
      { ...request(1), onTokens },
      { ...request(2), top_logprobs: 2 },
    ];
    const recorded = await open().sample(requests);
    const plain = await open(new CpuDevice(), false).sample(
      requests.map(({ onTokens: _, ...it }: SampleRequest) => it),
    );
    expect(recorded).toEqual(plain);
    expect(recorded[0]).not.toHaveProperty("top_logprobs");
    expect(recorded[1]!.top_logprobs!.map((row) => row.length)).toEqual([2, 2, 2, 2]);
    expect(new Set(streamed)).toEqual(new Set([undefined]));
  });

  test.each<[string, Partial<SampleRequest["params"]>]>([
    ["greedily", { temperature: 0 }],
    ["from a nucleus", { top_p: 0.9 }],
    ["from the most likely tokens", { top_k: 3 }],
    ["at another temperature", { temperature: 0.5 }],
  ])("%s cannot be trained on", async (_, params) => {
    const own = open();
    const samples = await own.sample([request(1, params)]);
    await expect(own.forwardBackward(batchOf(samples, [1]), LOSS)).rejects.toThrow(
      "Cannot train on row 0 with stable_reinforce: token 3",
    );
  });

  test("for validation is not recorded", async () => {
    const own = open();
    const sample = vi.spyOn(own.languageModel, "sample");
    const asked = { ...request(1), mayTrain: false };
    const samples = await own.sample([asked, { ...request(1), mayTrain: true }]);
    expect(sample.mock.calls[0]![0].map(({ top_logprobs }) => top_logprobs)).toEqual([undefined, 20]);
    expect(samples[0]!.tokens).toEqual(samples[1]!.tokens);
    const other = open();
    const unrecorded = await other.sample([asked]);
    await expect(other.forwardBackward(batchOf(unrecorded, [1]), LOSS)).rejects.toThrow("no record has it");
    await own.forwardBackward(batchOf([samples[0]!], [1]), LOSS);
  });

  test("under a grammar cannot be trained on", async () => {
    const own = open();
    const allowed = {
      start: () => ({ fill: (mask: Uint32Array) => void mask.fill(0xffffffff), advance: () => {} }),
    };
    const samples = await own.sample([{ ...request(1), allowed }]);
    await expect(own.forwardBackward(batchOf(samples, [1]), LOSS)).rejects.toThrow("without a grammar");
  });
});

test.each<[string, boolean, Partial<LossSpec>, string]>([
  ["a backend without records", false, {}, "Open the backend with recordStabilityInfo"],
  ["a KL term to a reference", true, { kl: { type: "low_var_kl", coef: 0.1 } }, "Set rllm.algorithm.kl_beta=0"],
  [
    "a penalty on tokens of different weight",
    true,
    { settings: { kl_coeff: 0.1 }, loss_agg_mode: "seq-mean-token-mean" },
    "one weight for all tokens",
  ],
])("%s is refused", async (_, records, more, message) => {
  const own = open(new CpuDevice(), records);
  const samples = await own.sample([request(1), request(2, { max_tokens: 3 })]);
  const batch = batchOf(samples, [1, -1]);
  await expect(own.forwardBackward(batch, { ...LOSS, ...more })).rejects.toThrow(message);
});

overDevices("stable_reinforce", (device) => {
  test("tokens behind a sample, and a split of the batch, change nothing", async () => {
    const own = open(device);
    const samples = await own.sample([request(1), request(2), request(3)]);
    const spec = { ...LOSS, settings: { kl_coeff: 0.2 }, batch_num_tokens: 12, global_batch_size: 3, all_rows: 3 };
    const norms: number[] = [];
    const step = { ...ADAM, learning_rate: 0 };
    const whole = await own.forwardBackward(batchOf(samples, [1, -2, 0.5]), spec);
    norms.push((await own.optimStep(step))["actor/grad_norm"]!);
    const parts = [
      await own.forwardBackward(batchOf(samples.slice(0, 1), [1], [7, 8]), spec),
      await own.forwardBackward(batchOf(samples.slice(1), [-2, 0.5]), spec),
    ];
    norms.push((await own.optimStep(step))["actor/grad_norm"]!);
    expect(parts[0]!["actor/loss"]! + parts[1]!["actor/loss"]!).toBeCloseTo(whole["actor/loss"]!, 5);
    expect(norms[1]).toBeCloseTo(norms[0]!, 5);
    expect(norms[0]).toBeGreaterThan(0);
  });

  test("a sample with an advantage becomes more likely", async () => {
    const own = open(device);
    const samples = await own.sample([request(1), request(2)]);
    const batch = batchOf(samples, [1, -1]);
    const sumOf = async () => {
      const { logprobs } = await own.logprobs(batch, { policy: "current", temperature: 1, mask: batch.mask });
      const sums = [0, 1].map((row) => logprobs.subarray(batch.offsets[row], batch.offsets[row + 1]));
      return sums.map((values) => values.reduce((sum, value) => sum + value, 0));
    };
    const before = await sumOf();
    for (let step = 0; step < 3; step++) {
      await own.forwardBackward(batch, LOSS);
      await own.optimStep(ADAM);
    }
    const after = await sumOf();
    expect(after[0]! - after[1]!).toBeGreaterThan(before[0]! - before[1]!);
  });
});
