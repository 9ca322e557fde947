/** The local backend's own state: what it says of itself, what it keeps for a lost device, what it refuses. */
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { LossSpec, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { byteTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { UnsupportedError } from "../../../src/leaves/errors.ts";
import { LocalBackend, type LocalBackendOptions } from "../../../src/train/backend/local/backend.ts";
import { keepState } from "../../../src/train/backend/local/kept_state.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { changed } from "../../fixtures/changed_device.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const root = temporaryFolder("local-state");
const ADAM = { learning_rate: 0.05, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };
const LOSS: LossSpec = {
  name: "vanilla",
  loss_agg_mode: "token-mean",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};
const BATCH: TrainBatch = {
  tokens: Uint32Array.of(1, 5, 6, 7, 1, 9),
  offsets: Uint32Array.of(0, 4, 6),
  mask: Uint32Array.of(0, 1, 1, 1, 0, 1),
  advantages: perRow(1, -1),
};
const MODES: readonly { readonly kind: string; readonly options: LanguageModelOptions }[] = [
  { kind: "all weights", options: { seed: 3 } },
  { kind: "an adapter", options: { seed: 3, lora: { rank: 2 } } },
];

function open(options: LanguageModelOptions = { seed: 3 }, more: Partial<LocalBackendOptions> = {}) {
  const reopened: number[] = [];
  // A reopened device of the cpu forgets nothing, but the model on it is made again.
  const reopen = async () => void reopened.push(1);
  const device = changed(new CpuDevice(), { reopen });
  const make = () => LanguageModel.create(device, { ...SMALL_MODEL, layers: 1 }, options);
  const backend = new LocalBackend({ model: make(), remake: async () => make(), ...more });
  return { backend, device, reopened };
}

async function step(backend: LocalBackend): Promise<void> {
  await backend.forwardBackward(BATCH, LOSS);
  await backend.optimStep(ADAM);
}

const valuesOf = async ({ languageModel: { trainable, optimizer } }: LocalBackend) => ({
  values: await trainable.read(),
  means: await optimizer.means.read(),
  variances: await optimizer.variances.read(),
});
const logprobs = (backend: LocalBackend, policy: "current" | "reference") =>
  backend.logprobs(BATCH, { policy, temperature: 1 });

describe.each(MODES)("a lost device, with $kind", ({ options }) => {
  test("is reopened with the state that was kept last, and training goes on as if nothing had happened", async () => {
    const [{ backend, reopened }, { backend: whole }] = [open(options), open(options)];
    const before = backend.languageModel;
    for (const it of [backend, whole]) {
      it.freezeReference();
      for (let i = 0; i < 2; i++) await step(it);
    }
    await backend.keep();
    await step(backend);
    await backend.forwardBackward(BATCH, LOSS);
    expect(await backend.recover()).toBe(true);
    expect(reopened).toEqual([1]);
    expect(backend.languageModel).not.toBe(before);
    expect(backend.weightVersion).toBe(2);
    expect(await valuesOf(backend)).toEqual(await valuesOf(whole));
    for (const it of [backend, whole]) await step(it);
    expect(await valuesOf(backend)).toEqual(await valuesOf(whole));
    for (const policy of ["current", "reference"] as const)
      expect(await logprobs(backend, policy)).toEqual(await logprobs(whole, policy));
  });

  test("before the first step has the model as it was made, and a frozen reference", async () => {
    const { backend } = open(options);
    backend.freezeReference();
    const reference = await logprobs(backend, "reference");
    await backend.keep();
    await step(backend);
    expect(await backend.recover()).toBe(true);
    expect(backend.weightVersion).toBe(0);
    expect(await logprobs(backend, "reference")).toEqual(reference);
    expect(await logprobs(backend, "current")).toEqual(reference);
  });
});

describe("a lost device", () => {
  test("that nothing was kept of is reopened without the trained state, and says so", async () => {
    const { backend } = open();
    await step(backend);
    expect(await backend.recover()).toBe(false);
    expect(backend.weightVersion).toBe(0);
  });

  test("of weights that do not change needs nothing kept", async () => {
    const { backend } = open({ seed: 3 }, { fixedTo: "folder" });
    await backend.keep();
    expect(await backend.recover()).toBe(true);
  });

  test("forgets published weights, and warnings still reach their listener", async () => {
    const { backend } = open();
    const warnings: string[] = [];
    backend.onWarning((message) => warnings.push(message));
    const sample = async () => {
      const params = { max_tokens: 3, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
      const [drawn] = await backend.sample([{ prompt_ids: [1, 5], params, seed: 1 }], { weights: "published" });
      return drawn!.weight_version;
    };
    await backend.publishWeights();
    await step(backend);
    await backend.keep();
    expect(await sample()).toBe(0);
    await backend.recover();
    expect(await sample()).toBe(1);
    const shared = backend.languageModel as unknown as { shared: { passes: { warn: (message: string) => void } } };
    shared.shared.passes.warn("less memory");
    expect(warnings).toEqual(["less memory"]);
  });

  test.each<[string, Partial<LocalBackendOptions>, Partial<Device>]>([
    ["a model that was given", { remake: undefined }, {}],
    ["a device that cannot be reopened", {}, { reopen: undefined as never }],
  ])("ends the run with %s, and nothing is kept for it", async (_, more, parts) => {
    const device = changed(new CpuDevice(), { reopen: async () => {}, ...parts });
    const reads: number[] = [];
    const model = LanguageModel.create(device, { ...SMALL_MODEL, layers: 1 });
    const backend = new LocalBackend({ model, remake: async () => model, ...more });
    await step(backend);
    const read = model.trainable.read.bind(model.trainable);
    model.trainable.read = () => {
      reads.push(1);
      return read();
    };
    await backend.keep();
    expect(reads).toEqual([]);
    await expect(backend.recover()).rejects.toMatchObject({
      message: "Cannot reopen the model: this backend was given it and cannot make it again.",
      part: "local",
      capability: "recover",
    });
  });
});

test("a state of more than 512 MiB is not kept: before the first step only a frozen reference counts", async () => {
  const MIB = 2 ** 20;
  const values = (mib: number) => ({ byteLength: mib * MIB, read: async () => new Map() });
  const kept = (model: { step: number; trained: number; reference?: number }) => {
    const { step, trained, reference } = model;
    const optimizer = { means: values(trained), variances: values(trained) };
    const frozenReference = reference === undefined ? undefined : { ...values(reference), values: values(reference) };
    return keepState({ step, trainable: values(trained), optimizer, frozenReference } as unknown as LanguageModel);
  };
  expect(await kept({ step: 1, trained: 512 / 3 })).toHaveProperty("trained");
  expect(await kept({ step: 1, trained: 512 / 3 + 1 })).toBeUndefined();
  expect(await kept({ step: 0, trained: 9999 })).toEqual({});
  expect(await kept({ step: 0, trained: 9999, reference: 512 })).toEqual({ reference: new Map() });
  expect(await kept({ step: 0, trained: 9999, reference: 513 })).toBeUndefined();
  expect(await kept({ step: 1, trained: 100, reference: 213 })).toBeUndefined();
});

describe("weights that are fixed", () => {
  const { backend } = open({ seed: 3 }, { name: "base", fixedTo: "the-folder" });

  test("are not trained, saved or replaced", async () => {
    const acts: [string, () => Promise<unknown>][] = [
      ["train", () => backend.forwardBackward(BATCH, LOSS)],
      ["save", () => backend.save(join(root, "fixed"))],
      ["load another checkpoint into", () => backend.load(join(root, "other"))],
    ];
    for (const [act, call] of acts) {
      const refused = expect(call()).rejects;
      await refused.toThrow(UnsupportedError);
      await expect(call()).rejects.toMatchObject({
        message: `Cannot ${act} base: it was opened to sample and score only.`,
        part: "local",
        capability: act,
      });
    }
  });

  test("are loaded already", async () => {
    await expect(backend.load("the-folder")).resolves.toBeUndefined();
  });
});

test("a backend describes its model, and ends sequences at the model's and the tokenizer's tokens", () => {
  const { backend } = open({ seed: 3, lora: { rank: 2, targets: ["q_proj"] } });
  const { parameters, hiddenSize, heads, headDim } = { ...SMALL_MODEL, parameters: backend.languageModel.parameters };
  expect(backend.model).toEqual({
    name: "model",
    vocabSize: SMALL_MODEL.vocabSize,
    contextLength: SMALL_MODEL.contextLength,
    eosTokenIds: [2],
    parameters,
    trainableParameters: 2 * (hiddenSize + heads * headDim),
  });
  expect(backend.tokenizer).toBeUndefined();
  const tokenizer = byteTokenizer();
  const named = open({}, { name: "mine", tokenizer }).backend;
  expect(named.model.name).toBe("mine");
  expect(named.model.eosTokenIds).toEqual([2, ...tokenizer.eosTokenIds.filter((id) => id !== 2)]);
  expect(new Set(named.model.eosTokenIds).size).toBe(named.model.eosTokenIds.length);
});

test("closing frees the model, the published copy and the device", async () => {
  const device = new CpuDevice();
  const model = LanguageModel.create(device, { ...SMALL_MODEL, layers: 1 });
  let destroyed = 0;
  let liveThen = -1;
  const closing = changed(device, {
    destroy() {
      destroyed++;
      liveThen = device.memory.live;
    },
  });
  const own = new LocalBackend({ model: LanguageModel.create(closing, { ...SMALL_MODEL, layers: 1 }) });
  model.release();
  await own.publishWeights();
  own.close();
  expect([destroyed, liveThen]).toEqual([1, 0]);
});
