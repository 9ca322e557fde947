/** A pass that keeps only the inputs of its layers has the bits of one that keeps everything, and holds less. */
import { describe, expect, test } from "vitest";
import { CountingDevice } from "../../../src/engine/compute/counting.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { narrowDevice } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { likelihood } from "../../fixtures/likelihood.ts";
import { uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const next = uniform(5);
const ROWS = pack([9, 1, 17].map((length) => Array.from({ length }, () => Math.floor(next() * SMALL_MODEL.vocabSize))));
const MASK = new Uint32Array(ROWS.tokens.length).fill(1);
const LORA = { rank: 3, alpha: 8, targets: ["q_proj", "o_proj", "up_proj", "down_proj"] };
const GEMMA: Partial<ModelConfig> = {
  architecture: "gemma3_text",
  tied: true,
  qkNorm: true,
  activation: "gelu_pytorch_tanh",
  unitOffsetNorms: true,
  outputNorms: true,
  embeddingScale: 4,
  slidingWindow: 5,
  layerTypes: ["sliding_attention", "full_attention"],
  slidingRopeTheta: 100,
};
const KINDS = [
  ["all weights", {}, {}],
  ["q and k norms", { architecture: "qwen3", qkNorm: true }, {}],
  [
    "norms of outputs, GeGLU and windows, as in Gemma 3",
    {
      architecture: "gemma3_text",
      qkNorm: true,
      tied: true,
      activation: "gelu_pytorch_tanh",
      unitOffsetNorms: true,
      outputNorms: true,
      embeddingScale: 4,
      slidingWindow: 5,
      layerTypes: ["sliding_attention", "full_attention"],
      slidingRopeTheta: 100,
    },
    {},
  ],
  ["layers without rotation, and biases of the MLP", { layersWithoutRope: [1], outputBias: true, mlpBias: true }, {}],
  ["biases", { architecture: "qwen2", qkvBias: true, tied: true }, {}],
  ["biases of every product", { qkvBias: true, outputBias: true, mlpBias: true }, {}],
  ["Gemma 3", GEMMA, {}],
  ["Gemma 3 and an adapter", GEMMA, { lora: LORA }],
  ["a folded adapter", {}, { lora: LORA, foldAdapter: true }],
  ["an adapter beside the weights", {}, { lora: LORA, foldAdapter: false }],
] as const;

const OPTIM = { learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0, grad_clip_norm: 0 };

async function gradientsOf(device: Device, config: ModelConfig, options: LanguageModelOptions) {
  const model = LanguageModel.create(device, config, { ...options, seed: 3 });
  const loss = likelihood(device);
  // The first step gives an adapter's B, which starts at zero, values.
  await model.accumulate({ ...ROWS, mask: MASK }, { temperature: 1, loss });
  await model.optimStep(OPTIM);
  await model.accumulate({ ...ROWS, mask: MASK }, { temperature: 1, loss });
  const gradients = [...(await model.optimizer.gradients.read())].map(([name, values]) => [name, [...values]] as const);
  model.release();
  return gradients;
}

overDevices("gradient checkpointing", (device) => {
  describe.each([
    ["one run", device],
    // A row's gate and up take 192 bytes and a run holds at least four rows: seven runs.
    ["several runs", narrowDevice(device, 4096)],
  ])("of the MLP in %s", (_, device) => {
    test.each(KINDS)("gives the same gradients, bit for bit: %s", async (_, changes, options) => {
      const config = { ...SMALL_MODEL, ...changes };
      const kept = await gradientsOf(device, config, options);
      expect(kept.every(([, values]) => values.some((value) => value !== 0))).toBe(true);
      expect(await gradientsOf(device, config, { ...options, gradientCheckpointing: true })).toEqual(kept);
      expect(await gradientsOf(device, config, { ...options, gradientCheckpointing: "auto" })).toEqual(kept);
    });
  });
});

test("holds the input of each layer, and of one layer the rest", async () => {
  const layers = 12;
  const config = { ...SMALL_MODEL, layers, contextLength: 16_384 };
  const { hiddenSize: C, intermediateSize: F, heads, kvHeads, headDim } = config;
  const bytesPerToken = async (options: LanguageModelOptions) => {
    const device = new CountingDevice();
    const model = LanguageModel.create(device, config, options);
    const peaks: number[] = [];
    // Sums along k in parts, of weights' gradients, have their greatest number at both.
    for (const count of [8192, 16_384]) {
      const rows = { tokens: new Uint32Array(count), offsets: Uint32Array.of(0, count) };
      device.startPhase();
      const pass = { ...rows, mask: new Uint32Array(count).fill(1) };
      await model.accumulate(pass, { temperature: 1, loss: likelihood(device) });
      peaks.push(device.phasePeak.bytes);
    }
    model.release();
    return (peaks[1]! - peaks[0]!) / 8192;
  };
  const kept = await bytesPerToken({});
  const again = await bytesPerToken({ gradientCheckpointing: true });
  // Of each layer: the input, q, k and v, attention's output and statistics, x + attention, gate and up.
  const activations = C + (heads + 2 * kvHeads) * headDim + heads * headDim + 2 * heads + C + 2 * F;
  expect(kept - again).toBe(4 * (layers - 1) * (activations - C));
});
