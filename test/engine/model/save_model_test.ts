import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { readAdapterShape } from "../../../src/engine/model/files/peft.ts";
import { byteTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { LORA_DEFAULTS, loraTargets } from "../../../src/engine/model/lora.ts";
import { saveAdapterFolder, saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, vocabSize: 258, contextLength: 16, eosTokenIds: [257] };
const ROWS = { tokens: Uint32Array.of(1, 200, 3, 4, 5), offsets: Uint32Array.of(0, 5) };

const dir = temporaryFolder("save");
const device = new CpuDevice();
afterAll(() => {
  device.destroy();
});

async function logprobsOf(model: LanguageModel): Promise<Float32Array> {
  return (await model.logprobs(ROWS, { policy: "current", temperature: 1 })).logprobs;
}

/** A model whose adapter changes its log-probs. */
function adapted(): LanguageModel {
  const model = LanguageModel.create(device, CONFIG, { seed: 3, lora: { rank: 2 } });
  for (const { name, rows, columns } of model.trainable.layout.entries.values())
    if (name.endsWith(".B")) model.trainable.write(name, floats(rows * columns, rows, 0.1));
  model.refresh();
  return model;
}

test.each([
  ["F32", 1e-6],
  ["BF16", 0.05],
] as const)(
  "saveModelFolder() merges the adapter, and the folder gives the same log-probs in %s",
  async (dtype, absolute) => {
    const model = adapted();
    const expected = await logprobsOf(model);
    const base = (await model.logprobs(ROWS, { policy: "reference", temperature: 1 })).logprobs;
    expect(Math.max(...expected.map((value, i) => Math.abs(value - base[i]!)))).toBeGreaterThan(0.1);
    const folder = join(dir, dtype);
    await saveModelFolder(folder, { model, tokenizer: byteTokenizer(), dtype });
    const saved = await openModelFolder(folder);
    expect(saved.config).toMatchObject(CONFIG);
    expect(saved.tokenizer?.encode("a")).toEqual([97]);
    expect(saved.tensors.get("lm_head.weight")?.dtype).toBe(dtype);
    const loaded = await LanguageModel.load(device, saved);
    expectClose(await logprobsOf(loaded), expected, { relative: 0, absolute });
  },
);

test("saveModelFolder() writes the generation_config.json that it is given, and none otherwise", async () => {
  const model = LanguageModel.create(device, CONFIG);
  const [folder, plain] = [join(dir, "generation"), join(dir, "no generation")];
  const text = '{"eos_token_id": [257, 2], "top_k": 20}';
  await saveModelFolder(folder, { model, generationConfig: text });
  const saved = await openModelFolder(folder);
  expect(saved.generationConfig).toBe(text);
  expect(saved.config.eosTokenIds).toEqual([257, 2]);
  await saveModelFolder(plain, { model });
  expect((await openModelFolder(plain)).generationConfig).toBeUndefined();
});

test("saveAdapterFolder() writes the adapter with its base and the defaults that it was made with", async () => {
  const folder = join(dir, "adapter");
  const base = { folder: "some/base", fingerprint: "abc" };
  await saveAdapterFolder(folder, { model: adapted(), base });
  expect(await readAdapterShape(folder)).toMatchObject({
    rank: 2,
    alpha: LORA_DEFAULTS.alpha,
    targets: loraTargets({ attn: true, mlp: true, unembed: false }),
    base: base.folder,
    fingerprint: base.fingerprint,
  });
});

test("saveAdapterFolder() refuses a model without an adapter", async () => {
  const model = LanguageModel.create(device, CONFIG);
  await expect(saveAdapterFolder(join(dir, "none"), { model })).rejects.toThrow(/the model has none/);
});
