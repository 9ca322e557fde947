/** Every family that loads, against transformers: tiny models whose figures are stored (fixtures/families/make.py). */
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/compute/cpu.ts";
import type { Device } from "../../src/compute/device.ts";
import { parseModelConfig } from "../../src/model/files/config_json.ts";
import { LanguageModel, type LanguageModelOptions } from "../../src/model/language_model.ts";
import { loadModel, openModel } from "../../src/model/open_model.ts";
import { saveModelFolder } from "../../src/model/save_model.ts";
import { changed } from "../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../fixtures/devices.ts";
import {
  FAMILIES,
  FAMILY_LORA,
  type Family,
  familyPrompt,
  familyTokens,
  type Projections,
  project,
  setFamilyAdapter,
  setFamilyWeights,
} from "../fixtures/families.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { pack } from "../fixtures/golden_model.ts";
import { likelihood } from "../fixtures/likelihood.ts";
import { expectClose } from "../fixtures/numbers.ts";

const root = temporaryFolder("families");
let made = 0;

function open(device: Device, family: Family, options: LanguageModelOptions = {}): LanguageModel {
  const model = LanguageModel.create(device, parseModelConfig(family.config), options);
  setFamilyWeights(model);
  return model;
}

async function using(model: LanguageModel, use: (model: LanguageModel) => Promise<void>): Promise<void> {
  try {
    await use(model);
  } finally {
    model.release();
  }
}

async function expectLogprobs(model: LanguageModel, { logprobs: wanted }: Family): Promise<void> {
  const rows = pack(familyTokens(model.config.vocabSize));
  const { logprobs } = await model.logprobs(rows, { policy: "current", temperature: 1 });
  const firsts = new Set(rows.offsets);
  const got = logprobs.filter((_, t) => !firsts.has(t));
  expectClose(got, Float32Array.from(wanted), { relative: 2e-5, absolute: 5e-5 }, "log-probs");
}

async function expectGreedy(model: LanguageModel, { greedy }: Family): Promise<void> {
  const params = { max_tokens: greedy.length, temperature: 0, top_p: 1, top_k: -1, stop_token_ids: [] };
  const prompt_ids = familyPrompt(model.config.vocabSize);
  const [drawn] = await model.sample([{ prompt_ids, params, seed: 0 }], { weightVersion: 0 });
  expect(drawn!.tokens).toEqual(greedy);
}

async function expectSampledAsScored(model: LanguageModel): Promise<void> {
  const params = { max_tokens: 20, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
  const prompt_ids = familyPrompt(model.config.vocabSize);
  const samples = [0, 1, 2].map((seed) => ({ prompt_ids, params, seed }));
  for (const { tokens, logprobs } of await model.sample(samples, { weightVersion: 0 })) {
    const rows = pack([[...prompt_ids, ...tokens]]);
    const scored = await model.logprobs(rows, { policy: "current", temperature: 1 });
    expect([...scored.logprobs].slice(prompt_ids.length)).toEqual([...logprobs!]);
  }
}

async function accumulate(model: LanguageModel): Promise<void> {
  const rows = pack(familyTokens(model.config.vocabSize));
  const mask = new Uint32Array(rows.tokens.length).fill(1);
  await model.accumulate({ ...rows, mask }, { temperature: 1, loss: likelihood(model.device) });
}

function expectGradients(got: ReadonlyMap<string, Float32Array>, wanted: Readonly<Record<string, Projections>>): void {
  expect([...got.keys()].sort()).toEqual(Object.keys(wanted).sort());
  for (const [name, gradient] of got) {
    const [length = 0, ...along] = wanted[name]!;
    // A key's bias moves all scores of an unrotated head alike: its gradient is 0 but for rounding.
    const norm = Math.max(length, 1e-2);
    const own = project(name, gradient, along.length);
    // The products with noise are sums of many terms of the size of the norm.
    for (const [i, value] of [length, ...along].entries())
      expect(Math.abs(own[i]! - value) / norm, `${name}, ${i}: ${own[i]}, not ${value}`).toBeLessThan(1e-4);
  }
}

function suite(device: Device): void {
  describe.each(FAMILIES)("%s", (_, family) => {
    test("log-probs and greedy tokens", () =>
      using(open(device, family), async (model) => {
        await expectLogprobs(model, family);
        await expectGreedy(model, family);
      }));

    test("sampled tokens have the log-probs of scoring", () => using(open(device, family), expectSampledAsScored));

    test("a folder in bfloat16 is held exactly, and quantised samples what it scores", async () => {
      const dir = join(root, `${made++}`);
      await using(open(device, family), (model) => saveModelFolder(dir, { model, dtype: "BF16" }));
      const opened = await openModel(dir);
      const load = (options: LanguageModelOptions) =>
        loadModel(device, opened, { ...options, frozen: true, lora: FAMILY_LORA });
      const scores: Float32Array[] = [];
      for (const options of [{ dtype: "float32" }, { dtype: "bfloat16" }, { quantization: "nf4" }] as const)
        await using(await load(options), async (model) => {
          setFamilyAdapter(model);
          const rows = pack(familyTokens(model.config.vocabSize));
          scores.push((await model.logprobs(rows, { policy: "current", temperature: 1 })).logprobs);
          await expectSampledAsScored(model);
        });
      expectClose(scores[1]!, scores[0]!, { relative: 1e-5, absolute: 1e-5 }, "log-probs");
      expect(scores[2]).not.toEqual(scores[0]);
    });

    test("gradients of all weights", () =>
      using(open(device, family), async (model) => {
        await accumulate(model);
        expectGradients(await model.base.readTensors(model.optimizer.gradients), family.gradients);
      }));

    test("gradients of an adapter", () =>
      using(open(device, family, { lora: FAMILY_LORA }), async (model) => {
        setFamilyAdapter(model);
        await accumulate(model);
        expectGradients(await model.optimizer.gradients.read(), family.adapterGradients);
      }));
  });
}

test("fresh norms change nothing, also where the model stores weights less one", () => {
  const values = async (architecture: string) => {
    const [, { config }] = FAMILIES.find(([, { config }]) => config.model_type === architecture)!;
    const model = LanguageModel.create(new CpuDevice(), parseModelConfig(config));
    return (await model.base.readTensors()).get("model.norm.weight")!;
  };
  return Promise.all([
    expect(values("gemma3_text")).resolves.toEqual(new Float32Array(32)),
    expect(values("smollm3")).resolves.toEqual(new Float32Array(32).fill(1)),
  ]);
});

overDevices("families", suite);

/** The kernels of GPUs, on whatever adapter there is. */
const tiled = gpuDevice && changed(gpuDevice, { info: { ...gpuDevice.info, family: "tiled" } });
describe.skipIf(!tiled)("families with the kernels of GPUs", () => suite(tiled!));
