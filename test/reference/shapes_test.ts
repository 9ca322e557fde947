/**
 * Models of the published shapes against transformers and PEFT: full width and vocabulary, few layers, random weights
 * stored in bfloat16. Every figure is computed in float32 on both sides from the same stored weights.
 */
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { WebGpuDevice } from "../../src/engine/compute/webgpu/device.ts";
import { openAdapter } from "../../src/engine/model/files/peft.ts";
import type { LanguageModel, LanguageModelOptions } from "../../src/engine/model/language_model.ts";
import { loadModel, openModel } from "../../src/engine/model/open_model.ts";
import { pack } from "../fixtures/golden_model.ts";
import { likelihood } from "../fixtures/likelihood.ts";
import { expectClose, uniform } from "../fixtures/numbers.ts";
import { publishedConfig } from "../fixtures/published.ts";
import { PYTHON, type Reference, type ReferenceRequest, withReference } from "./reference.ts";

const device = await WebGpuDevice.open();
if (!device) throw new Error("No WebGPU adapter answers. Run `npm run setup`.");
if (!PYTHON) console.warn("SKIPPED: no Python with transformers; .ci/run installs one, REFERENCE_PYTHON names one.");
afterAll(() => device.destroy());

const TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
const LORA = { rank: 16, alpha: 32, targets: TARGETS, deviation: 0.3 };
const GREEDY_TOKENS = 6;

/** Sequences of random tokens whose second half counts. */
function sequences(vocabSize: number, lengths: readonly number[]) {
  const next = uniform(7);
  const rows = lengths.map((length) => Array.from({ length }, () => Math.floor(next() * vocabSize)));
  return { sequences: rows, masks: rows.map((row) => row.map((_, t) => (t >= row.length / 2 ? 1 : 0))) };
}

function requestFor(name: string, layers: number, rest: Partial<ReferenceRequest> = {}): ReferenceRequest {
  const config = publishedConfig(name, layers);
  const rows = sequences(config.vocab_size as number, [33, 1, 64, 7]);
  return { config, dtype: "bfloat16", seed: 3, ...rows, greedy: GREEDY_TOKENS, gradients: true, ...rest };
}

async function open({ folder }: Reference, options: LanguageModelOptions): Promise<LanguageModel> {
  const model = await loadModel(device!, await openModel(join(folder, "model")), options);
  if (!model.adapter) return model;
  const dir = join(folder, "adapter");
  model.adapter.load(await openAdapter(dir), dir);
  model.refresh();
  return model;
}

async function expectLogprobs(model: LanguageModel, request: ReferenceRequest, { figures }: Reference): Promise<void> {
  const rows = pack(request.sequences);
  const mask = Uint32Array.from(request.masks.flat());
  const { logprobs } = await model.score({ ...rows, mask }, { temperature: 1 });
  expectClose(logprobs, await figures.read("logprobs"), { relative: 1e-4, absolute: 2e-4 }, "log-probs");
}

async function expectGreedy(model: LanguageModel, request: ReferenceRequest, { figures }: Reference): Promise<void> {
  const params = { max_tokens: GREEDY_TOKENS, temperature: 0, top_p: 1, top_k: -1, stop_token_ids: [] };
  const sample = { prompt_ids: request.sequences[0]!, params, seed: 0 };
  const [drawn] = await model.sample([sample], { weightVersion: 0 });
  expect(drawn!.tokens).toEqual([...(await figures.readIntegers("greedy"))]);
}

/** Each gradient's distance from the reference, relative to that gradient's norm. */
async function expectGradients(model: LanguageModel, request: ReferenceRequest, { figures }: Reference): Promise<void> {
  const mask = Uint32Array.from(request.masks.flat());
  await model.accumulate({ ...pack(request.sequences), mask }, { temperature: 1, loss: likelihood(model.device) });
  const own = await gradientsOf(model);
  const names = [...figures.tensors.keys()].filter((name) => name.startsWith("grad."));
  expect(names.map((name) => name.slice("grad.".length)).sort()).toEqual([...own.keys()].sort());
  for (const name of names) {
    const distance = relativeDistance(own.get(name.slice("grad.".length))!, await figures.read(name));
    expect(distance, name).toBeLessThan(5e-4);
  }
}

async function gradientsOf(model: LanguageModel): Promise<Map<string, Float32Array>> {
  const { gradients } = model.optimizer;
  if (!model.adapter) return model.base.readTensors(gradients);
  return new Map([...(await gradients.read())].map(([name, it]) => [name.replace(/\.([AB])$/, ".lora_$1.weight"), it]));
}

function relativeDistance(actual: Float32Array, expected: Float32Array): number {
  expect(actual.length).toBe(expected.length);
  let [difference, norm] = [0, 0];
  for (let i = 0; i < expected.length; i++) {
    difference += (actual[i]! - expected[i]!) ** 2;
    norm += expected[i]! ** 2;
  }
  return Math.sqrt(difference / Math.max(norm, 1e-30));
}

async function compare(request: ReferenceRequest, options: LanguageModelOptions): Promise<void> {
  await withReference(request, async (reference) => {
    const model = await open(reference, options);
    try {
      await expectLogprobs(model, request, reference);
      if (request.greedy > 0) await expectGreedy(model, request, reference);
      if (request.gradients) await expectGradients(model, request, reference);
    } finally {
      model.release();
    }
  });
}

/** scripts/nightly takes the further shapes, for which .ci/run has no time. */
const isNightly = process.env.NIGHTLY === "1";
const nightly = <T>(...cases: readonly T[]): readonly T[] => (isNightly ? cases : []);

/** Of each family the smallest. Layers: enough to meet each of a shape's kinds. */
const SHAPES: readonly (readonly [string, number])[] = [
  ["SmolLM2-135M", 2],
  ["Qwen2.5-0.5B", 2],
  ["Qwen3-0.6B", 2],
  ["SmolLM3-3B", 4],
  ["gemma-3-270m", 6],
  ...nightly<[string, number]>(
    ["SmolLM2-360M", 2],
    ["Qwen2.5-1.5B", 2],
    ["Qwen3-1.7B", 2],
    ["Llama-3.2-1B", 2],
    ["gemma-3-1b-pt", 6],
  ),
];

describe.skipIf(!PYTHON)("published shapes", () => {
  test.each(SHAPES)("%s, %i layers deep: log-probs, greedy tokens and LoRA gradients", (name, layers) =>
    compare(requestFor(name, layers, { lora: LORA }), { lora: LORA }),
  );

  test.each(["int8", "nf4"] as const)("Qwen2.5-0.5B, 2 layers deep, in %s blocks", (quantization) =>
    compare(requestFor("Qwen2.5-0.5B", 2, { lora: LORA, quantization }), { lora: LORA, quantization }),
  );

  test.each([
    ["SmolLM2-135M", 2] as const,
    ["gemma-3-270m", 6] as const,
    ...nightly(["Qwen2.5-0.5B", 2] as const, ["Qwen3-0.6B", 2] as const),
  ])("%s, %i layers deep: gradients of all weights", (name, layers) => compare(requestFor(name, layers), {}));

  // Attention's gradients take most of the time, and half as many tokens a quarter of it.
  test.each([
    ["8,192 tokens: log-probs", 8192, false] as const,
    ...nightly(["4,096 tokens: log-probs and LoRA gradients", 4096, true] as const),
  ])("SmolLM2-135M, one layer deep, %s of the last 16", (_, length, gradients) => {
    const config = publishedConfig("SmolLM2-135M", 1);
    const rows = sequences(config.vocab_size as number, [length]);
    const masks = [rows.sequences[0]!.map((_, t) => (t >= length - 16 ? 1 : 0))];
    return compare(requestFor("SmolLM2-135M", 1, { ...rows, masks, greedy: 0, gradients, lora: LORA }), { lora: LORA });
  });
});
