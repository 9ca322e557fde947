/** The critic of the local backend: its values, its loss, its files, and what it refuses. */
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { valueLoss } from "../../../src/engine/algorithm/mod.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { type CriticOptions, criticOf } from "../../../src/train/backend/local/critic.ts";
import { planRun } from "../../../src/train/backend/local/plan/plan.ts";
import { DEFAULT_SHAPE } from "../../../src/train/backend/local/plan/run_shape.ts";
import { changed } from "../../fixtures/changed_device.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const root = temporaryFolder("critic");
const CONFIG = { ...SMALL_MODEL, layers: 1 };
const ADAM = { learning_rate: 0.05, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };
const ROWS = { tokens: Uint32Array.of(1, 5, 6, 7, 2, 9), offsets: Uint32Array.of(0, 4, 6) };
const MASK = Uint32Array.of(0, 1, 1, 1, 0, 1);
const BATCH = { ...ROWS, mask: MASK, oldValues: floats(6, 3, 0.3), returns: Float32Array.of(0, 1, 1, 1, 0, -1) };
const LOSS = { loss_agg_mode: "token-mean", cliprange_value: 0.2 };
const WIDE = { ...LOSS, cliprange_value: 10 };
const LORA = { rank: 2, alpha: 4, targets: ["q_proj", "v_proj"] };
const MODES: readonly { readonly kind: string; readonly options: LanguageModelOptions }[] = [
  { kind: "all weights", options: { seed: 3 } },
  { kind: "an adapter", options: { seed: 3, lora: LORA } },
];

/** A backend with a critic, on a device that can be opened again. */
async function open(options: LanguageModelOptions = { seed: 3 }, critic: CriticOptions = { seed: 7 }) {
  const device = changed(new CpuDevice(), { reopen: async () => {} });
  const make = () => LanguageModel.create(device, CONFIG, options);
  const model = make();
  const opened = await criticOf(model, critic, options);
  return new LocalBackend({ model, remake: async () => make(), critic: opened });
}

const valuesOf = ({ critic }: LocalBackend) => critic!.values(ROWS, { mask: MASK });

async function step({ critic }: LocalBackend, loss = LOSS) {
  const metrics = await critic!.forwardBackward(BATCH, loss);
  return { ...metrics, ...(await critic!.optimStep(ADAM)) };
}

describe.each(MODES)("the critic of a policy that trains $kind", ({ options }) => {
  test("has a value before each masked token, and its loss is the published one", async () => {
    const backend = await open(options);
    const values = await valuesOf(backend);
    expect(Array.from(values, (value) => Number(value !== 0))).toEqual([...MASK]);
    const { metrics } = valueLoss({ ...BATCH, values }, LOSS);
    const measured = await step(backend);
    expect(Object.keys(measured)).toEqual([...Object.keys(metrics), "critic/grad_norm", "critic/lr"]);
    for (const [name, value] of Object.entries(metrics)) expect(measured[name], name).toBeCloseTo(value, 5);
    expect(measured["critic/lr"]).toBe(ADAM.learning_rate);
    expect(backend.critic!.version).toBe(1);
    expect(backend.weightVersion).toBe(0);
  });

  test("learns the returns, in passes of any size alike", async () => {
    const ends = [];
    for (const maxTokensPerPass of [64, 4]) {
      const backend = await open({ ...options, maxTokensPerPass });
      const first = await step(backend, WIDE);
      ends.push(await valuesOf(backend));
      for (let i = 0; i < 15; i++) await step(backend, WIDE);
      const last = await step(backend, WIDE);
      expect(last["critic/vf_loss"]).toBeLessThan(0.5 * first["critic/vf_loss"]!);
    }
    expectClose(ends[1]!, ends[0]!, { relative: 1e-3, absolute: 1e-3 }, "values");
  });

  test("values a reply by its prompt, which is not trained on", async () => {
    const backend = await open(options);
    const rows = { tokens: Uint32Array.of(5, 2, 7, 6, 2, 7), offsets: Uint32Array.of(0, 3, 6) };
    const mask = Uint32Array.of(0, 0, 1, 0, 0, 1);
    const batch = { ...rows, mask, oldValues: new Float32Array(6), returns: Float32Array.of(0, 0, 1, 0, 0, -1) };
    for (let i = 0; i < 30; i++) {
      await backend.critic!.forwardBackward(batch, WIDE);
      await backend.critic!.optimStep(ADAM);
    }
    const values = await backend.critic!.values(rows, { mask });
    expect(values[2]).toBeGreaterThan(0.5);
    expect(values[5]).toBeLessThan(-0.5);
  });

  test("continues from a checkpoint, and after a lost device, bit for bit", async () => {
    const whole = await open(options);
    await step(whole);
    const dir = join(root, options.lora ? "adapter" : "whole");
    await whole.save(dir);
    await whole.keep();
    const kept = await valuesOf(whole);
    await step(whole);
    const expected = await valuesOf(whole);
    expect(expected).not.toEqual(kept);
    const resumed = await open(options, { seed: 8 });
    await resumed.load(dir);
    expect(resumed.critic!.version).toBe(1);
    await step(resumed);
    expect(await valuesOf(resumed)).toEqual(expected);
    await whole.recover();
    expect(await valuesOf(whole)).toEqual(kept);
    await step(whole);
    expect(await valuesOf(whole)).toEqual(expected);
  });

  test("is in the plan: weights of its own only where all weights train", async () => {
    const { info } = new CpuDevice();
    const request = { model: { config: CONFIG, typeOf: () => undefined }, options, info, budget: 2 ** 30 };
    const plan = async (critic?: object) =>
      (await planRun({ ...request, shape: DEFAULT_SHAPE, critic })).phases.at(-1)!;
    const [alone, both] = [await plan(), await plan({})];
    expect((both.parts.critic_weights ?? 0) > 0).toBe(options.lora === undefined);
    expect(both.parts.moments).toBeGreaterThan(1.8 * alone.parts.moments!);
  });
});

test("a critic that trains all weights starts as the policy is at its first use, not as it was when it was opened", async () => {
  const backend = await open();
  const { trainable } = backend.languageModel;
  for (const [name, data] of await trainable.read())
    trainable.write(
      name,
      data.map((value) => 0.5 * value),
    );
  backend.languageModel.refresh();
  const dir = join(root, "unused");
  await backend.save(dir);
  const later = await open();
  await later.load(dir);
  const values = await valuesOf(later);
  expect(values).toEqual(await valuesOf(backend));
  expect(values).not.toEqual(await valuesOf(await open()));
});

describe("a critic with a model of its own", () => {
  const folder = join(root, "own");
  const saved = saveModelFolder(folder, {
    model: LanguageModel.create(new CpuDevice(), { ...CONFIG, layers: 2 }, { seed: 5 }),
  });

  test.each([
    ["all weights", null],
    ["an adapter", LORA],
  ] as const)("trains %s of it", async (_, lora) => {
    await saved;
    const backend = await open({ seed: 3, lora: LORA }, { folder, lora, seed: 7 });
    const before = await valuesOf(backend);
    const first = await step(backend, WIDE);
    for (let i = 0; i < 5; i++) await step(backend, WIDE);
    expect((await step(backend, WIDE))["critic/vf_loss"]).toBeLessThan(0.8 * first["critic/vf_loss"]!);
    expect(await valuesOf(backend)).not.toEqual(before);
    expect(backend.critic!.model.base.config.layers).toBe(2);
  });

  test("is refused with another vocabulary", async () => {
    const other = join(root, "other");
    const config = { ...CONFIG, vocabSize: CONFIG.vocabSize + 1 };
    await saveModelFolder(other, { model: LanguageModel.create(new CpuDevice(), config, { seed: 5 }) });
    await expect(open({ seed: 3 }, { folder: other })).rejects.toThrow(`Cannot use ${other} as the critic`);
  });
});

test.each([
  ["an adapter on weights that all train", () => open({ seed: 3 }, { lora: LORA }), /Set critic\.model\.lora_rank=0/],
  [
    "returns of another length",
    async () => (await open()).critic!.forwardBackward({ ...BATCH, returns: floats(5, 1) }, LOSS),
    /returns must have one element per token \(5 of 6\)/,
  ],
  [
    "a batch without a trained token",
    async () => (await open()).critic!.forwardBackward({ ...BATCH, mask: new Uint32Array(6) }, LOSS),
    /its mask is 0 for every token/,
  ],
  [
    "a gradient that is not finite",
    async () => {
      const { critic } = await open();
      await critic!.forwardBackward({ ...BATCH, returns: new Float32Array(6).fill(Number.NaN) }, LOSS);
      return critic!.optimStep(ADAM);
    },
    /Cannot take the critic's optimiser step/,
  ],
])("refuses %s", async (_, act, message) => {
  await expect(act()).rejects.toThrow(message);
});
