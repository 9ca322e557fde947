/** A model whose vocabulary and batches exceed one binding gives the same numbers, computed in windows. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { narrowDevice } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { likelihood } from "../../fixtures/likelihood.ts";
import { expectClose, uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const LIMIT_BYTES = 2 ** 14;
/** The table takes 64 KiB, gate and up 12 KiB; of a token, gate and up take 384 bytes, q, k and v 256. */
const CONFIG: ModelConfig = {
  ...SMALL_MODEL,
  architecture: "qwen3",
  vocabSize: 1021,
  hiddenSize: 32,
  intermediateSize: 48,
  heads: 4,
  kvHeads: 2,
  contextLength: 64,
  tied: true,
  qkNorm: true,
  eosTokenIds: [],
};
const LORA = { rank: 4, alpha: 8, targets: ["q_proj", "down_proj", "lm_head"] };
const OPTIM = {
  learning_rate: 0.02,
  beta1: 0.9,
  beta2: 0.95,
  // Large, so that noise in small gradients does not become a step.
  eps: 1,
  weight_decay: 0.1,
  grad_clip_norm: 1,
};
const CLOSE = { relative: 1e-4, absolute: 2e-5 };

const next = uniform(11);
const PROMPTS = [21, 1, 17, 20, 12].map((length) =>
  Array.from({ length }, () => Math.floor(next() * CONFIG.vocabSize)),
);
const ROWS = pack(PROMPTS);
const REQUESTS = PROMPTS.map((prompt_ids, i) => ({
  prompt_ids,
  params: { temperature: i % 2, top_p: 1, top_k: -1, max_tokens: 20, stop_token_ids: [] },
  seed: i,
}));

async function figuresOf(device: Device, config: ModelConfig, options: LanguageModelOptions) {
  const model = LanguageModel.create(device, config, { ...options, seed: 3 });
  const mask = new Uint32Array(ROWS.tokens.length).fill(1);
  const loss = likelihood(device);
  const norms: number[] = [];
  const gradients: Map<string, Float32Array>[] = [];
  for (const _ of [1, 2]) {
    await model.accumulate({ ...ROWS, mask }, { temperature: 1, loss });
    gradients.push(await model.optimizer.gradients.read());
    norms.push(await model.optimStep(OPTIM));
  }
  const figures = {
    norms,
    gradients,
    values: await model.trainable.read(),
    ...(await model.logprobs(ROWS, { policy: "current", temperature: 0.7 })),
    samples: await model.sample(REQUESTS, { weightVersion: 0 }),
    top: await model.top(ROWS, { k: 3, policy: "current" }),
  };
  model.release();
  return figures;
}

overDevices("a binding smaller than the vocabulary's table", (device) => {
  const narrow = narrowDevice(device, LIMIT_BYTES);

  describe.each([
    ["all weights, tied", { tied: true }, {}],
    ["all weights, untied", { tied: false }, {}],
    // Gate and up take 3,200 bytes per token, so that the MLP takes four rows at a time.
    ["a wide MLP", { intermediateSize: 400 }, {}],
    [
      "a wide MLP and an adapter",
      { intermediateSize: 400, architecture: "llama", qkNorm: false, tied: false },
      { lora: LORA },
    ],
    ["a wide MLP that runs again", { intermediateSize: 400 }, { gradientCheckpointing: true }],
    ["an adapter beside packed weights", { tied: true }, { lora: LORA, dtype: "bfloat16", foldAdapter: false }],
    ["an adapter", { tied: false, architecture: "llama", qkNorm: false }, { lora: LORA }],
  ] as const)("%s", (_, changes, options) => {
    test("gives the same gradients, steps, log-probs and samples", async () => {
      const config = { ...CONFIG, ...changes };
      const expected = await figuresOf(device, config, options);
      const actual = await figuresOf(narrow, config, options);
      expectClose(actual.norms, expected.norms, CLOSE, "norms");
      for (const [i, each] of expected.gradients.entries())
        for (const [name, values] of each) {
          const scale = Math.hypot(...values);
          const actualGradient = actual.gradients[i]!.get(name)!;
          const absolute = 1e-5 * scale;
          expectClose(actualGradient, values, { relative: 0, absolute }, `gradient ${i} of ${name}`);
        }
      for (const [name, values] of expected.values) expectClose(actual.values.get(name)!, values, CLOSE, name);
      expectClose(actual.logprobs, expected.logprobs, CLOSE, "logprobs");
      expectClose(actual.entropy, expected.entropy, CLOSE, "entropy");
      expectClose(actual.top.logprobs, expected.top.logprobs, CLOSE, "top");
      for (const [i, { tokens, logprobs }] of expected.samples.entries()) {
        expect(actual.samples[i]!.tokens).toEqual(tokens);
        expectClose(actual.samples[i]!.logprobs, logprobs, CLOSE, `sample ${i}`);
      }
    });
  });

  test("an MLP cut over rows gives the same bits, and its passes are as long as q, k and v allow", async () => {
    // A token's gate and up take 1 KiB, its q, k and v 256 bytes: 32 rows of the MLP at a time, 128 of the pass.
    const config = { ...CONFIG, vocabSize: 16, intermediateSize: 128, contextLength: 200 };
    const cut = narrowDevice(device, 2 ** 15);
    const rows = pack([Array.from({ length: 99 }, (_, t) => (t * 7) % 16)]);
    const scores = [];
    for (const it of [device, cut]) {
      const model = LanguageModel.create(it, config, { seed: 3 });
      expect(model.contextLength).toBe(it === cut ? 128 : 200);
      scores.push(await model.logprobs(rows, { policy: "current", temperature: 1 }));
      model.release();
    }
    expect(scores[1]).toEqual(scores[0]);
  });

  test.each([
    // A token's gate and up take 3,200 bytes, its q, k and v 256: the MLP takes five rows at a time, and 64 sequences run.
    ["layer by layer", { intermediateSize: 400 }, { limit: LIMIT_BYTES, count: 70 }],
    // On software adapters such a model's rows are decoded in one dispatch with their states, 768 bytes a row.
    ["in a chain", { architecture: "llama", qkNorm: false, tied: false, layers: 1 }, { limit: 2 ** 16, count: 100 }],
  ] as const)("many sequences are decoded %s, as on a device that binds more", async (_, changes, { limit, count }) => {
    const config = { ...CONFIG, vocabSize: 16, ...changes };
    const requests = Array.from({ length: count }, (_, i) => ({
      ...REQUESTS[0]!,
      params: { ...REQUESTS[0]!.params, temperature: 1, max_tokens: 3 },
      prompt_ids: [i % 16, 1],
      seed: i,
    }));
    const samples = [];
    for (const it of [device, narrowDevice(device, limit)]) {
      const model = LanguageModel.create(it, config, { seed: 3, cache: { maxSequences: count, dtype: "bfloat16" } });
      samples.push(await model.sample(requests, { weightVersion: 0 }));
      model.release();
    }
    expect(samples[1]!.map(({ tokens }) => tokens)).toEqual(samples[0]!.map(({ tokens }) => tokens));
    for (const [i, { logprobs }] of samples[0]!.entries())
      expectClose(samples[1]![i]!.logprobs, logprobs, CLOSE, `sample ${i}`);
  });

  test("sequences that exceed a pass are refused with their index", async () => {
    // q, k and v of 4 KiB per token leave 4 tokens per pass.
    const config = { ...CONFIG, headDim: 128 };
    const model = LanguageModel.create(narrow, config);
    expect(model.contextLength).toBe(4);
    await expect(
      model.logprobs(
        pack([
          [1, 2],
          [1, 2, 3, 4, 5],
        ]),
        { policy: "current", temperature: 1 },
      ),
    ).rejects.toThrow(
      "Cannot run sequence 1: it is longer than the model's context of 4 tokens, the most that one binding of this device covers (5)",
    );
    await expect(
      model.sample([{ ...REQUESTS[0]!, prompt_ids: [1, 2, 3, 4, 5] }], { weightVersion: 0 }),
    ).rejects.toThrow("room in the context of 4 tokens, the most that one binding of this device covers (5)");
    model.release();
  });
});
