/** What a local checkpoint restores, and how one of another model is refused: by its file. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { openModel } from "../../../src/engine/model/open_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { loadLocalCheckpoint, saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const root = temporaryFolder("checkpoint");
let folders = 0;
const newFolder = () => join(root, String(folders++));

const device = new CpuDevice();
afterAll(() => device.destroy());
const LORA = { rank: 2, alpha: 4, targets: ["q_proj"] };
const create = (config: Partial<ModelConfig> = {}, options: { lora?: typeof LORA; seed?: number } = {}) =>
  LanguageModel.create(device, { ...SMALL_MODEL, ...config }, options);

test.each<[string, LanguageModel, LanguageModel, string, string]>([
  [
    "of another shape",
    create({ ropeTheta: 500 }),
    create(),
    "it belongs to another model. The checkpoint and the model differ in ropeTheta: 500, 10000 (",
    "config.json",
  ],
  [
    "of all weights into an adapter",
    create(),
    create({}, { lora: LORA }),
    "it holds all weights of a model, and the model trains an adapter (",
    "",
  ],
  [
    "of an adapter into all weights",
    create({}, { lora: LORA }),
    create(),
    "it holds an adapter, and all weights of the model train (",
    "",
  ],
])("a checkpoint %s is refused", async (_, saved, into, why, file) => {
  const dir = newFolder();
  await saveLocalCheckpoint(dir, { model: saved });
  await expect(loadLocalCheckpoint(dir, into)).rejects.toMatchObject({
    message: expect.stringContaining(`Cannot load the checkpoint: ${why}`),
    file: join(dir, file),
  });
});

test("a checkpoint without its optimiser can be loaded, and training continued from it cannot", async () => {
  const dir = newFolder();
  const [saved, into] = [create({}, { seed: 1 }), create({}, { seed: 2 })];
  await saveLocalCheckpoint(dir, { model: saved, optimizer: false });
  await expect(loadLocalCheckpoint(dir, into)).rejects.toMatchObject({
    message: expect.stringMatching(/no optimizer\.safetensors.*\(model\.name\)/),
    file: dir,
  });
  into.optimizer.step = 5;
  await loadLocalCheckpoint(dir, into, { optimizer: false });
  expect(into.optimizer.step).toBe(0);
  expect(await into.base.values.read()).toEqual(await saved.base.values.read());
});

test("a checkpoint restores the step and the moments, and a frozen reference only where it was saved", async () => {
  const dir = newFolder();
  const saved = create({}, { seed: 1 });
  saved.optimizer.step = 7;
  for (const [scale, values] of [
    [0.5, saved.optimizer.means],
    [0.25, saved.optimizer.variances],
  ] as const)
    for (const [name, { length }] of await values.read())
      values.write(
        name,
        Float32Array.from({ length }, (_, i) => scale * i),
      );
  await saveLocalCheckpoint(dir, { model: saved });
  const plain = create({}, { seed: 2 });
  await loadLocalCheckpoint(dir, plain);
  expect(plain.frozenReference).toBeUndefined();
  expect(plain.optimizer.step).toBe(7);
  for (const kind of ["means", "variances"] as const)
    expect(await plain.optimizer[kind].read()).toEqual(await saved.optimizer[kind].read());
  saved.freezeReference();
  await saveLocalCheckpoint(dir, { model: saved });
  const frozen = create({}, { seed: 3 });
  await loadLocalCheckpoint(dir, frozen);
  expect(await frozen.frozenReference?.values.read()).toEqual(await saved.base.values.read());
});

test("checkpoints of all weights keep the base's generation_config.json, from one to the next", async () => {
  const text = '{"eos_token_id": 3, "temperature": 0.6}';
  let dir = newFolder();
  await saveLocalCheckpoint(dir, { model: create(), generationConfig: text });
  for (let i = 0; i < 2; i++) {
    const backend = await LocalBackend.open(dir, { device });
    dir = newFolder();
    await backend.save(dir);
    backend.languageModel.release();
    expect(readFileSync(join(dir, "generation_config.json"), "utf8")).toBe(text);
  }
  const adapted = await LocalBackend.open(dir, { device, lora: LORA });
  const adapter = newFolder();
  await adapted.save(adapter);
  expect(existsSync(join(adapter, "generation_config.json"))).toBe(false);
  expect((await openModel(adapter)).files.generationConfig).toBe(text);
});
