import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { openAdapter } from "../../../src/engine/model/files/peft.ts";
import { byteTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { saveModelFolder, saveValueModel } from "../../../src/engine/model/save_model.ts";
import type { ValuePassLoss } from "../../../src/engine/model/train/passes.ts";
import { ValueModel } from "../../../src/engine/model/value_model.ts";
import { SCORE } from "../../../src/engine/model/weights.ts";
import { devices, overDevices } from "../../fixtures/devices.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, vocabSize: 258, contextLength: 16, eosTokenIds: [257] };
const LORA = { rank: 2, alpha: 4, targets: ["q_proj", "v_proj", "down_proj"] };
const ROWS = pack([
  [1, 200, 3, 4, 5],
  [7, 8],
  [9, 10, 11],
]);
const MASK = Uint32Array.of(0, 0, 1, 1, 1, 0, 1, 0, 1, 0);
const MASKED = 5;
const OPTIM = { learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0, grad_clip_norm: 0 };
const rows = { ...ROWS, mask: MASK };
const dir = temporaryFolder("values");

/** sum of weights * values, whose gradient in the values is `weights`. */
function weighted(device: Device, weights: Float32Array) {
  return ({ sequences }: { sequences: { from: number; to: number } }): ValuePassLoss => {
    const counts = [3, 1, 1].slice(0, sequences.from).reduce((sum, count) => sum + count, 0);
    const size = [3, 1, 1].slice(sequences.from, sequences.to).reduce((sum, count) => sum + count, 0);
    const dvalues = device.upload(weights.slice(counts, counts + size), "dvalues");
    return { dvalues, reads: [], release: () => device.release(dvalues) };
  };
}

const KINDS = [
  ["all weights", { foldAdapter: false }, (model: LanguageModel) => ValueModel.copyOf(model, { seed: 5 })],
  ["an adapter", { lora: LORA }, (model: LanguageModel) => ValueModel.beside(model, { lora: LORA, seed: 5 })],
] as const;

/** Takes a step, so that B is not zero and the head not the drawn one. */
async function trainedOnce(model: ValueModel): Promise<void> {
  await model.accumulate(rows, { loss: weighted(model.device, floats(MASKED, 8)) });
  await model.optimStep(OPTIM);
}

describe.each(KINDS)("the gradients of a ValueModel that trains %s", (_, options, make) => {
  async function gradientsOn(device: Device) {
    const policy = LanguageModel.create(device, CONFIG, { seed: 3, ...options });
    const critic = make(policy);
    await trainedOnce(critic);
    const weights = floats(MASKED, 4);
    await critic.accumulate(rows, { loss: weighted(device, weights) });
    return { critic, weights, gradients: await critic.optimizer.gradients.read() };
  }

  test("are those of finite differences, and equal on every device", async () => {
    const { critic, weights, gradients } = await gradientsOn(devices[0]!);
    const values = await critic.trainable.read();
    const loss = async () => (await critic.values(rows)).reduce((sum, value, r) => sum + value * weights[r]!, 0);
    let checked = 0;
    for (const [name, data] of values) {
      const found = gradients.get(name)!;
      const at = found.reduce((best, g, i) => (Math.abs(g) > Math.abs(found[best]!) ? i : best), 0);
      const moved = async (step: number) => {
        critic.trainable.write(
          name,
          data.map((value, i) => (i === at ? value + step : value)),
        );
        critic.refresh();
        return loss();
      };
      const step = 4e-3;
      const difference = ((await moved(step)) - (await moved(-step))) / (2 * step);
      await moved(0);
      const gradient = found[at]!;
      const error = Math.abs(difference - gradient);
      expect(error, `${name}: ${gradient}, differences give ${difference}`).toBeLessThan(
        4e-4 + 0.02 * Math.abs(gradient),
      );
      if (Math.abs(gradient) > 1e-3) checked++;
    }
    expect(checked).toBeGreaterThan(values.size / 2);
    for (const device of devices.slice(1)) {
      const other = (await gradientsOn(device)).gradients;
      for (const [name, found] of gradients)
        expectClose(other.get(name)!, found, { relative: 1e-3, absolute: 1e-4 }, name);
    }
  });
});

overDevices("ValueModel", (device) => {
  describe.each(KINDS)("that trains %s", (_, options, make) => {
    const open = (more = {}) => {
      const policy = LanguageModel.create(device, CONFIG, { seed: 3, ...options, ...more });
      return { policy, critic: make(policy) };
    };

    test("passes of one sequence add up to one pass over all, and a row's value is the same alone", async () => {
      const results = [];
      for (const maxTokensPerPass of [64, 5]) {
        const { policy, critic } = open({ maxTokensPerPass });
        await trainedOnce(critic);
        await critic.accumulate(rows, { loss: weighted(device, floats(MASKED, 4)) });
        const gradients = [...(await critic.optimizer.gradients.read()).values()].flatMap((part) => [...part]);
        results.push({ values: await critic.values(rows), gradients });
        critic.release();
        policy.release();
      }
      const [whole, cut] = results as [(typeof results)[0], (typeof results)[0]];
      expectClose(cut.values, whole.values, { relative: 0, absolute: 1e-5 }, "values");
      expectClose(cut.gradients, whole.gradients, { relative: 1e-4, absolute: 1e-5 }, "gradients");
    });

    test("training it leaves the policy's log-probs, and training the policy leaves its values", async () => {
      const { policy, critic } = open();
      const scores = async () => (await policy.logprobs(ROWS, { policy: "current", temperature: 1 })).logprobs;
      const before = { scores: await scores(), values: await critic.values(rows) };
      await trainedOnce(critic);
      expect(await scores()).toEqual(before.scores);
      const values = await critic.values(rows);
      expect(values).not.toEqual(before.values);
      for (const name of policy.trainable.layout.entries.keys()) {
        const { rows, columns } = policy.trainable.entry(name);
        policy.trainable.write(name, floats(rows * columns, 9, 0.1));
      }
      policy.refresh();
      expect(await scores()).not.toEqual(before.scores);
      expect(await critic.values(rows)).toEqual(values);
      critic.release();
      policy.release();
    });
  });
});

describe("files", () => {
  const [device] = devices as [Device];

  test("a copy is saved as transformers' sequence classification, and opened again with the same values", async () => {
    const policy = LanguageModel.create(device, CONFIG, { seed: 3 });
    const critic = ValueModel.copyOf(policy, { seed: 5 });
    await trainedOnce(critic);
    const folder = join(dir, "whole");
    await saveValueModel(folder, { model: critic, tokenizer: byteTokenizer() });
    const files = await openModelFolder(folder);
    expect(files.config).toEqual({ ...CONFIG, scoreHead: true });
    expect(files.tensors.get(SCORE)?.shape).toEqual([1, CONFIG.hiddenSize]);
    expect(files.tensors.has("lm_head.weight")).toBe(false);
    const again = await ValueModel.load(device, files);
    expect(await again.values(rows)).toEqual(await critic.values(rows));
    await expect(LanguageModel.load(device, files)).rejects.toThrow("it ends in a scalar head");
  });

  test("an adapter is saved with its head in PEFT's form, and loaded again", async () => {
    const policy = LanguageModel.create(device, CONFIG, { seed: 3, lora: LORA });
    const critic = ValueModel.beside(policy, { lora: LORA, seed: 5 });
    await trainedOnce(critic);
    const folder = join(dir, "adapter");
    await saveValueModel(folder, { model: critic });
    const saved = await openAdapter(folder);
    expect(saved.score).toEqual((await critic.trainable.read()).get(SCORE));
    const again = ValueModel.beside(policy, { lora: LORA, seed: 6 });
    again.adapter!.load(saved, folder);
    expect(await again.values(rows)).toEqual(await critic.values(rows));
    expect(() => policy.adapter!.load(saved, folder)).toThrow("with a scalar head");
  });

  test("a language model's folder starts with a new head, drawn from the seed", async () => {
    const policy = LanguageModel.create(device, CONFIG, { seed: 3 });
    const folder = join(dir, "policy");
    await saveModelFolder(folder, { model: policy });
    const files = await openModelFolder(folder);
    const of = async (model: ValueModel) => [...(await model.values(rows))];
    const values = await of(await ValueModel.load(device, files, { seed: 5 }));
    expect(values).toEqual(await of(ValueModel.copyOf(policy, { seed: 5 })));
    expect(values).not.toEqual(await of(await ValueModel.load(device, files, { seed: 6 })));
  });
});
