/** Weights opened for sampling: from each kind of folder, with the right policy, within the expected memory. */
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { openAdapter, writeAdapterFolder } from "../../../src/engine/model/files/peft.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import type { LoraConfig } from "../../../src/engine/model/lora.ts";
import { loadModel, openModel } from "../../../src/engine/model/open_model.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { loadLocalCheckpoint, saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { gpuDevice, overDevices } from "../../fixtures/devices.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { writeForeignAdapter } from "../../fixtures/foreign_adapter.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, tied: true };
const LORA: LoraConfig = { rank: 2, alpha: 6, targets: ["q_proj", "v_proj", "down_proj"] };
const OPTIM = { learning_rate: 0.05, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 0 };
const requests = [1, 2, 3].map((seed) => ({
  prompt_ids: [3, 4, seed],
  seed,
  params: { max_tokens: 9, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] },
}));

const root = temporaryFolder("inference");

/** A model folder, and a trained checkpoint of an adapter on it. */
async function folders(device: Device) {
  const dir = mkdtempSync(join(root, "models-"));
  const [base, trained] = [join(dir, "base"), join(dir, "trained")];
  await saveLocalCheckpoint(base, {
    model: LanguageModel.create(device, CONFIG, { seed: 1 }),
    optimizer: false,
  });
  const opened = await openModel(base);
  const model = await loadModel(device, opened, { lora: LORA, seed: 5 });
  for (const values of [...model.trainable.layout.entries.keys()].filter((name) => name.endsWith(".B"))) {
    const { rows, columns } = model.trainable.entry(values);
    model.trainable.write(
      values,
      Float32Array.from({ length: rows * columns }, (_, i) => Math.sin(i * 3)),
    );
  }
  model.refresh();
  await model.optimStep(OPTIM);
  await saveLocalCheckpoint(trained, { model, base: opened.mark });
  const drawn = await model.sample(requests, { weightVersion: 0 });
  model.release();
  return { dir, base, trained, drawn };
}

overDevices("weights opened to be sampled", (device: Device) => {
  test("an adapter's checkpoint, with or without its optimiser, samples as the trainer did, in the memory of its base", async () => {
    const { dir, base, trained, drawn } = await folders(device);
    const sampler = join(dir, "sampler");
    cpSync(trained, sampler, { recursive: true });
    rmSync(join(sampler, "optimizer.safetensors"));
    const bytes: number[] = [];
    for (const folder of [base, trained, sampler]) {
      const before = device.memory.live;
      const model = await loadModel(device, await openModel(folder));
      const opened = device.memory.live - before;
      const backend = new LocalBackend({ model, name: folder, fixedTo: folder });
      const sequences = await backend.sample(requests);
      bytes.push(opened, device.memory.live - before);
      if (folder === base) expect(sequences).not.toEqual(drawn);
      else
        expect(sequences.map(({ tokens, logprobs }) => [tokens, logprobs])).toEqual(
          drawn.map(({ tokens, logprobs }) => [tokens, logprobs]),
        );
      await backend.load(folder);
      await expect(backend.save(dir)).rejects.toThrow(/opened to sample and score only/);
      model.release();
      expect(device.memory.live).toBe(before);
    }
    expect(bytes.slice(2)).toEqual([...bytes.slice(0, 2), ...bytes.slice(0, 2)]);
  });

  test("a server samples a foreign adapter, a merged folder and an adapter as its model, without gradients or moments", async () => {
    const { dir, base } = await folders(device);
    const shape = { rank: 2, alpha: 3, targets: ["k_proj", "gate_proj"] };
    const foreign = await writeForeignAdapter(dir, { ...shape, base });
    const engine = await LocalEngine.open({ device, folder: base });
    const open = async (folder: string) => {
      const before = device.memory.live;
      const policy = await engine.openPolicy(folder);
      const grown = device.memory.live - before;
      expect(grown).toBeLessThanOrEqual(policy.bytes);
      const drawn = await policy.sample(requests);
      policy.release();
      return { grown, bytes: policy.bytes, tokens: drawn.map(({ tokens }) => tokens) };
    };
    const [adapted, merged] = [await open(foreign.adapter), await open(foreign.merged)];
    expect(adapted.tokens).toEqual(merged.tokens);
    // Values only: with gradients and moments it would be four times as much.
    expect(adapted.grown).toBe(adapted.bytes);
    expect(adapted.grown).toBeLessThan(merged.grown);
    const grown: number[] = [];
    for (const of of [{ folder: foreign.merged }, { folder: foreign.adapter, base }]) {
      const before = device.memory.live;
      const other = await LocalEngine.open({ device, ...of });
      grown.push(device.memory.live - before);
      const policy = await other.openPolicy();
      expect((await policy.sample(requests)).map(({ tokens }) => tokens)).toEqual(merged.tokens);
      expect(other.folder).toBe(of.base ?? of.folder);
    }
    expect(grown[1]).toBe(grown[0]);
    const stray = await strayAdapter(dir, device);
    const refusal = /trained on another model than .*base \(.*other/;
    await expect(engine.openPolicy(stray)).rejects.toThrow(refusal);
    const all = { trainAttn: true, trainMlp: false, trainUnembed: false };
    const trainer = await engine.createTrainer({ rank: 2, seed: 1, ...all });
    await expect(trainer.load(stray, { optimizer: false })).rejects.toThrow(refusal);
  });
});

/** An adapter on a model of the same shape with different weights. */
async function strayAdapter(dir: string, device: Device): Promise<string> {
  const [folder, stray] = [join(dir, "other"), join(dir, "stray")];
  await saveLocalCheckpoint(folder, {
    model: LanguageModel.create(device, CONFIG, { seed: 2 }),
    optimizer: false,
  });
  const opened = await openModel(folder);
  await saveLocalCheckpoint(stray, {
    model: await loadModel(device, opened, { lora: LORA }),
    base: opened.mark,
  });
  return stray;
}

describe("a checkpoint of another shape is refused, with both shapes", () => {
  const device = gpuDevice;
  const loading = async (lora: LoraConfig | undefined) => {
    if (!device) return undefined;
    const { base, trained } = await folders(device);
    const model = await loadModel(device, await openModel(base), { lora });
    return loadLocalCheckpoint(trained, model);
  };
  test.skipIf(!device).each<[string, LoraConfig | undefined, RegExp]>([
    ["rank", { ...LORA, rank: 4 }, /rank 2, alpha 6 .*model's has rank 4, alpha 6/],
    ["alpha", { ...LORA, alpha: 2 }, /rank 2, alpha 6 .*model's has rank 2, alpha 2/],
    [
      "fewer targets",
      { ...LORA, targets: ["q_proj"] },
      /on down_proj, q_proj, v_proj, and the model's has .* on q_proj\./,
    ],
    [
      "more targets",
      { ...LORA, targets: [...LORA.targets, "o_proj"] },
      /and the model's has .* on down_proj, o_proj, q_proj, v_proj/,
    ],
    ["no adapter", undefined, /holds an adapter, and all weights of the model train/],
  ])("%s", async (_, lora, message) => {
    await expect(loading(lora)).rejects.toThrow(message);
    await expect(loading(lora)).rejects.toThrow(ConfigError);
  });

  test.skipIf(!device)("a whole model's, for a model with an adapter or with another norm", async () => {
    if (!device) return;
    const { base, dir } = await folders(device);
    const adapted = await loadModel(device, await openModel(base), { lora: LORA });
    await expect(loadLocalCheckpoint(base, adapted)).rejects.toThrow(
      /holds all weights.*trains an adapter \(rank 2, alpha 6/,
    );
    const other = LanguageModel.create(device, { ...CONFIG, ropeTheta: 500_000 });
    await expect(loadLocalCheckpoint(base, other)).rejects.toThrow(/differ in ropeTheta: 10000, 500000/);
    const saved = await openAdapter((await writeForeignAdapter(dir, { ...LORA, base })).adapter);
    const [module, factors] = [...saved.modules][0]!;
    const stray = join(dir, "wide");
    await writeAdapterFolder(stray, {
      ...saved,
      modules: new Map([...saved.modules, [module.replace(".0.", ".7."), factors]]),
    });
    await expect(loadLocalCheckpoint(stray, adapted)).rejects.toThrow(/model has no module model\.layers\.7/);
  });
});
