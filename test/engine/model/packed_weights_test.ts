/** A base that is held in a packed format: exact where it is bfloat16, small, and under an adapter. */
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { CountingDevice } from "../../../src/engine/compute/counting.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { parseModelConfig } from "../../../src/engine/model/files/config_json.ts";
import { type ModelFolder, openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { packElements, unpackElements } from "../../../src/engine/model/formats/pack.ts";
import { fusedParts } from "../../../src/engine/model/fused_parts.ts";
import { loadWeights } from "../../../src/engine/model/initial_weights.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { parameterCount } from "../../../src/engine/model/layers.ts";
import { loraConfig } from "../../../src/engine/model/lora.ts";
import { loadModel, openModel } from "../../../src/engine/model/open_model.ts";
import { saveAdapterFolder, saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { packedFormats } from "../../../src/engine/model/storage_format.ts";
import { StoredWeights } from "../../../src/engine/model/stored_weights.ts";
import { LoraAdapter } from "../../../src/engine/model/train/lora_adapter.ts";
import { loadLocalCheckpoint, saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { likelihood } from "../../fixtures/likelihood.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";
import { publishedConfig } from "../../fixtures/published.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, architecture: "qwen2", vocabSize: 21, tied: true, qkvBias: true };
const LORA = { rank: 3, alpha: 6, targets: ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"] };
const ROWS = pack([
  [1, 5, 6, 7, 20, 3, 3],
  [1, 9],
]);
const OPTIM = { learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 0 };
const MATRIX = /(embed_tokens|qkv|o_proj|gate_up|down_proj)\.weight$/;

const root = temporaryFolder("packed-weights");

/** A folder of weights in bfloat16, as models are published. */
async function publish(device: Device, config = CONFIG): Promise<string> {
  const dir = mkdtempSync(join(root, "model-"));
  const model = LanguageModel.create(device, config, { seed: 3 });
  await saveModelFolder(dir, { model, dtype: "BF16" });
  model.release();
  return dir;
}

const scoresOf = async (model: LanguageModel) =>
  (await model.logprobs(ROWS, { policy: "current", temperature: 1 })).logprobs;

/** An adapter that changes the log-probs. */
function fill(model: LanguageModel): LanguageModel {
  for (const { name, rows, columns } of model.trainable.layout.entries.values())
    model.trainable.write(name, floats(rows * columns, rows + columns, 0.1));
  model.refresh();
  return model;
}

overDevices("packed weights", (device) => {
  test("are the file's, every one of them", async () => {
    const folder = await openModelFolder(await publish(device));
    const model = await LanguageModel.load(device, folder, { frozen: true });
    const formats = new Map(
      [...new Set(model.base.parts.map(({ fused }) => fused))].map((it) => [it, model.base.formatOf(it)]),
    );
    for (const [name, format] of formats) expect(format, name).toBe(MATRIX.test(name) ? "bfloat16" : "float32");
    const loaded = await model.base.readTensors();
    expect([...loaded.keys()]).toEqual([...folder.tensors.keys()]);
    for (const [name, values] of loaded) expect(values, name).toEqual(await folder.read(name));
    model.release();
  });

  test.each([
    ["bfloat16", {}],
    ["int8", { quantization: "int8" }],
    ["nf4", { quantization: "nf4" }],
  ] as const)("give the log-probs and gradients of the same weights in float32: %s", async (format, how) => {
    const options = { ...how, lora: LORA, foldAdapter: false };
    const packed = fill(await LanguageModel.load(device, await openModelFolder(await publish(device)), options));
    expect(packed.base.formatOf("model.embed_tokens.weight")).toBe("bfloat16");
    expect(packed.base.formatOf("model.layers.1.mlp.gate_up.weight")).toBe(format);
    const wide = fill(LanguageModel.create(device, CONFIG, { lora: LORA, foldAdapter: false }));
    const values = await packed.base.readTensors();
    for (const part of wide.base.parts) wide.base.writeTensor(part, values.get(part.tensor)!);
    wide.base.refresh();
    const figures = [];
    for (const model of [packed, wide]) {
      const mask = new Uint32Array(ROWS.tokens.length).fill(1);
      await model.accumulate({ ...ROWS, mask }, { temperature: 1, loss: likelihood(device) });
      const gradients = [...(await model.optimizer.gradients.read()).values()].flatMap((it) => [...it]);
      figures.push({ scores: await scoresOf(model), gradients });
      model.release();
    }
    expectClose(figures[0]!.scores, figures[1]!.scores, { relative: 0, absolute: 1e-5 });
    expect(Math.hypot(...figures[1]!.gradients)).toBeGreaterThan(0.1);
    expectClose(figures[0]!.gradients, figures[1]!.gradients, { relative: 1e-4, absolute: 1e-5 });
  });

  test.each([{}, { dtype: "float32" }, { quantization: "int8" }, { quantization: "nf4" }] as const)(
    "are the same when they are read in pieces: %o",
    async (how) => {
      const folder = await openModelFolder(await publish(device));
      const tensors = [];
      for (const pieceElements of [64, 128, 2 ** 24]) {
        const weights = await loadWeights(device, folder, { ...how, frozen: true, pieceElements });
        tensors.push(await weights.readTensors());
        weights.release();
      }
      expect(tensors[0]).toEqual(tensors[2]);
      expect(tensors[1]).toEqual(tensors[2]);
    },
  );

  test.each(["int8", "nf4"] as const)("are rounded to %s by the blocks of the file's tensors", async (quantization) => {
    const folder = await openModelFolder(await publish(device));
    const model = await LanguageModel.load(device, folder, { frozen: true, quantization });
    for (const [name, values] of await model.base.readTensors()) {
      const file = await folder.read(name);
      const isLayer = /layers.*_proj.weight/.test(name);
      const packed = isLayer && unpackElements(quantization, packElements(quantization, file), file.length);
      expect(values, name).toEqual(packed || file);
    }
    model.release();
  });

  test("are folded with an adapter into float32 where that is asked for", async () => {
    const dir = await publish(device, { ...CONFIG, tied: false });
    const open = async (foldAdapter: boolean | undefined) =>
      fill(await LanguageModel.load(device, await openModelFolder(dir), { lora: LORA, foldAdapter }));
    const [beside, folded, chosen] = [await open(false), await open(true), await open(undefined)];
    expect(folded.weights.plain).toBeDefined();
    expect(chosen.weights.plain).toBeUndefined();
    const scores = await scoresOf(beside);
    expectClose(await scoresOf(folded), scores, { relative: 0, absolute: 1e-5 });
    expect(await scoresOf(chosen)).toEqual(scores);
    for (const model of [beside, folded, chosen]) model.release();
  });

  test("are merged with an adapter into a folder", async () => {
    const model = fill(await LanguageModel.load(device, await openModelFolder(await publish(device)), { lora: LORA }));
    const dir = mkdtempSync(join(root, "merged-"));
    await saveModelFolder(dir, { model });
    const merged = await openModelFolder(dir);
    // The adapter is on the output matrix, which is no longer the embedding table.
    expect(merged.config.tied).toBe(false);
    const loaded = await LanguageModel.load(device, merged);
    expectClose(await scoresOf(loaded), await scoresOf(model), { relative: 0, absolute: 1e-5 });
    for (const it of [loaded, model]) it.release();
  });

  test.each([{}, { quantization: "nf4" }] as const)(
    "are trained on, saved and resumed bit for bit: %o",
    async (how) => {
      const opened = await openModel(await publish(device));
      const open = () => loadModel(device, opened, { ...how, lora: LORA, seed: 4 });
      const train = async (model: LanguageModel) => {
        const mask = new Uint32Array(ROWS.tokens.length).fill(1);
        await model.accumulate({ ...ROWS, mask }, { temperature: 1, loss: likelihood(device) });
        await model.optimStep(OPTIM);
      };
      const [whole, first, second] = [await open(), await open(), await open()];
      for (const _ of [1, 2, 3, 4]) await train(whole);
      for (const _ of [1, 2]) await train(first);
      const dir = mkdtempSync(join(root, "checkpoint-"));
      await saveLocalCheckpoint(dir, { model: first, base: opened.mark });
      await loadLocalCheckpoint(dir, second, { base: opened.mark });
      for (const _ of [1, 2]) await train(second);
      expect(await scoresOf(second)).toEqual(await scoresOf(whole));
      expect(await scoresOf(second)).not.toEqual(await scoresOf(first));
      for (const model of [whole, first, second]) model.release();
    },
  );

  test("take several adapters, one on another", async () => {
    const dir = await publish(device);
    const first = fill(await loadModel(device, await openModel(dir), { lora: LORA }));
    const saved = mkdtempSync(join(root, "adapter-"));
    await saveAdapterFolder(saved, { model: first, base: (await openModel(dir)).mark });
    const expected = await scoresOf(first);
    first.release();
    const figures = [];
    for (const dtype of ["auto", "float32"] as const) {
      const options = { lora: { ...LORA, rank: 2 }, dtype, foldAdapter: false };
      const model = await loadModel(device, await openModel(saved), options);
      // A fresh adapter changes nothing.
      expectClose(await scoresOf(model), expected, { relative: 0, absolute: 1e-5 });
      expect(await scoresOf(model)).toEqual(
        (await model.logprobs(ROWS, { policy: "reference", temperature: 1 })).logprobs,
      );
      const mask = new Uint32Array(ROWS.tokens.length).fill(1);
      for (const _ of [1, 2]) {
        await model.accumulate({ ...ROWS, mask }, { temperature: 1, loss: likelihood(device) });
        await model.optimStep(OPTIM);
      }
      figures.push(await scoresOf(model));
      model.release();
    }
    expectClose(figures[0]!, figures[1]!, { relative: 0, absolute: 1e-4 });
    expect(Math.max(...figures[0]!.map((p, t) => Math.abs(p - expected[t]!)))).toBeGreaterThan(1e-2);
  });
});

describe("model.dtype", () => {
  const device = new CountingDevice();
  const head = "model.embed_tokens.weight";
  const open = async (config: ModelConfig, options: LanguageModelOptions) => {
    const model = LanguageModel.create(device, config, options);
    const formats = [model.base.formatOf(head), model.base.formatOf("model.layers.0.self_attn.qkv.weight")];
    model.release();
    return formats.join();
  };

  test("is float32 for weights that train, and where there are no files, unless it is set", async () => {
    expect(await open(CONFIG, {})).toBe("float32,float32");
    expect(await open(CONFIG, { dtype: "bfloat16" })).toBe("float32,float32");
    expect(await open(CONFIG, { lora: LORA })).toBe("float32,float32");
    expect(await open(CONFIG, { lora: LORA, dtype: "bfloat16" })).toBe("bfloat16,bfloat16");
    expect(await open(CONFIG, { frozen: true, dtype: "bfloat16" })).toBe("bfloat16,bfloat16");
  });

  test("packs no weights that train, and no tensor that is not whole blocks", () => {
    const quantized = (config: ModelConfig, options: LanguageModelOptions) => () =>
      LanguageModel.create(device, config, { ...options, quantization: "nf4" });
    expect(quantized(CONFIG, {})).toThrow(/^Cannot hold the weights as nf4: all of them train/);
    const odd = { ...CONFIG, intermediateSize: 28, hiddenSize: 12 };
    expect(quantized(odd, { lora: LORA })).toThrow(
      /k_proj.weight as nf4: its weights are not whole blocks of 64 \(8 x 12\)/,
    );
  });

  test("follows the file: a fused matrix with one wider part is float32", async () => {
    const folder = await openModelFolder(await publish(device));
    const tensors = new Map(folder.tensors);
    const name = "model.layers.0.self_attn.k_proj.weight";
    tensors.set(name, { ...tensors.get(name)!, dtype: "F32" });
    const mixed: ModelFolder = { ...folder, tensors };
    const model = await LanguageModel.load(device, mixed, { frozen: true });
    const at = (layer: number) => model.base.formatOf(`model.layers.${layer}.self_attn.qkv.weight`);
    expect([at(0), at(1)]).toEqual(["float32", "bfloat16"]);
    model.release();
  });
});

test.each(["Qwen2.5-0.5B", "Qwen3-0.6B", "Llama-3.2-1B"])(
  "%s in bfloat16 with an adapter takes its file's bytes and the adapter's",
  (name) => {
    const device = new CountingDevice();
    const config = parseModelConfig(publishedConfig(name));
    const typeOf = () => "BF16" as const;
    const lora = loraConfig({ rank: 16 });
    const formats = packedFormats(fusedParts(config), { lora, typeOf });
    const weights = new StoredWeights(device, config, { formats });
    const adapter = new LoraAdapter(weights, lora);
    const expected = 2 * parameterCount(config) + adapter.values.byteLength;
    expect(weights.byteLength).toBeGreaterThan(2 * parameterCount(config));
    expect(device.memory.live / expected).toBeGreaterThan(1);
    expect(device.memory.live / expected).toBeLessThan(1.03);
  },
);

test("the gradient of an adapter of high rank makes no dW of a large matrix", async () => {
  const device = new CountingDevice();
  const config = { ...parseModelConfig(publishedConfig("Qwen2.5-0.5B", 1)), hiddenSize: 4100, heads: 64 };
  const lora = { rank: 4096, alpha: 32, targets: ["o_proj"] };
  const model = LanguageModel.unread(device, { config, typeOf: () => "BF16" }, { lora });
  void model.optimizer;
  const allocated: number[] = [];
  const { alloc } = device;
  device.alloc = (bytes, label) => {
    if (label === "gradient") allocated.push(bytes);
    return alloc.call(device, bytes, label);
  };
  const rows = pack([Array.from({ length: 5000 }, () => 1)]);
  const mask = new Uint32Array(5000).fill(1);
  await model.accumulate({ ...rows, mask }, { temperature: 1, loss: likelihood(device) });
  expect(allocated).not.toEqual([]);
  expect(allocated).not.toContain(config.hiddenSize * config.heads * config.headDim * 4);
});
