/** Scoring and training with products on matrix units: what rounding to f16 leaves of log-probs and gradients, against f32. */
import { expect, test, vi } from "vitest";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { changed } from "../../fixtures/changed_device.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { matrixDevice } from "../../fixtures/emulated_matrices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { likelihood } from "../../fixtures/likelihood.ts";
import { floats, uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = {
  ...SMALL_MODEL,
  ...{ vocabSize: 160, hiddenSize: 64, intermediateSize: 128, heads: 4, kvHeads: 2, headDim: 16, contextLength: 128 },
};
const next = uniform(5);
const ROWS = pack([100, 31, 60].map((length) => Array.from({ length }, () => Math.floor(next() * CONFIG.vocabSize))));
const MASK = new Uint32Array(ROWS.tokens.length).fill(1);
const LORA = { rank: 4, alpha: 8, targets: ["q_proj", "o_proj", "up_proj", "down_proj"] };

async function trained(device: Device, options: LanguageModelOptions) {
  const model = LanguageModel.create(device, CONFIG, { ...options, seed: 3 });
  // An adapter's B starts at zero.
  if (options.lora)
    for (const { name, rows, columns } of model.trainable.layout.entries.values())
      model.trainable.write(name, floats(rows * columns, rows + columns, 0.1));
  model.refresh();
  const { logprobs } = await model.logprobs(ROWS, { policy: "current", temperature: 1 });
  await model.accumulate({ ...ROWS, mask: MASK }, { temperature: 1, loss: likelihood(device) });
  const gradients = await model.optimizer.gradients.read();
  model.release();
  return { logprobs, gradients };
}

/** The norm of the difference, in units of the norm. */
function differenceOf(found: Float32Array, expected: Float32Array): number {
  return Math.hypot(...found.map((value, i) => value - expected[i]!)) / Math.hypot(...expected);
}

test.skipIf(!gpuDevice?.info.features.includes("shader-f16")).each<[string, LanguageModelOptions, number]>([
  // Products of a layer forward and backward, with the weights' gradients; the head's as well.
  ["all weights train", {}, 30],
  ["an adapter beside a base in 4 bits", { lora: LORA, foldAdapter: false, quantization: "nf4" }, 25],
])("%s", async (_, options, least) => {
  const matrices = await matrixDevice(gpuDevice!);
  const { subgroupMatrix: _none, ...plain } = matrices.info;
  const dispatch = vi.fn(matrices.dispatch);
  const live = gpuDevice!.memory.live;
  const found = await trained(changed(matrices, { dispatch }), options);
  const expected = await trained(changed(gpuDevice!, { info: plain }), options);
  expect(gpuDevice!.memory.live).toBe(live);
  const names = dispatch.mock.calls.map(([{ name }]) => name);
  expect(names.filter((name) => name.startsWith("matmul/subgroup_matrix")).length).toBeGreaterThanOrEqual(least);

  const score = differenceOf(found.logprobs, expected.logprobs);
  expect(score).toBeGreaterThan(0);
  expect(score).toBeLessThan(1e-3);
  const worst = [...expected.gradients].map(([name, values]) => differenceOf(found.gradients.get(name)!, values));
  expect(Math.max(...worst)).toBeLessThan(5e-3);
});
