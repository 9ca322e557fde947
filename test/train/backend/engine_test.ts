/** The local engine without a server: several trainers on one base, of all weights or of an adapter. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { EnginePolicy, LossRows, PromptScores, Trainer } from "../../../src/engine/contract/engine.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { loraTargets } from "../../../src/engine/model/lora.ts";
import { saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { OutOfMemoryError } from "../../../src/leaves/errors.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { LocalPolicy } from "../../../src/train/backend/local/engine_policy.ts";
import { changed, refusing } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, layers: 1 };
const ADAM = { learning_rate: 0.05, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 0 };
const ROWS: LossRows = {
  tokens: Uint32Array.of(1, 5, 6, 7, 1, 9),
  offsets: Uint32Array.of(0, 4, 6),
  targets: Uint32Array.of(5, 6, 7, 8, 9, 3),
  inputs: { weights: Float32Array.of(1, 1, -0.5, 2, 0, 1) },
};
const LOSS = { name: "cross_entropy", config: {} };
const ranks = [{ rank: 0 }, { rank: 4 }];
const TARGETS = loraTargets({ attn: true, mlp: true, unembed: true });

interface Opening {
  readonly config: ModelConfig;
  readonly dtype: "F32" | "BF16";
  readonly on: Device;
  readonly warn: (message: string) => void;
}

test("a model that does not fit a server is refused with advice that a server's operator can follow", async () => {
  const folder = mkdtempSync(join(tmpdir(), "grpu-engine-"));
  await saveModelFolder(folder, { model: LanguageModel.create(new CpuDevice(), CONFIG) });
  const device = new CpuDevice({ memoryBudgetBytes: 4096 });
  await expect(LocalEngine.open({ device, folder })).rejects.toThrow(
    /^Cannot fit the run .*\. Take a smaller model, or a device with more memory/,
  );
  rmSync(folder, { recursive: true });
});

test("a server that guesses tokens draws the same, and says how many guesses were right", async () => {
  const folder = mkdtempSync(join(tmpdir(), "grpu-engine-"));
  await saveModelFolder(folder, { model: LanguageModel.create(new CpuDevice(), { ...CONFIG, contextLength: 96 }) });
  const params = { temperature: 0, top_p: 1, top_k: -1, max_tokens: 60, stop_token_ids: [] };
  const draw = async (speculative: LanguageModelOptions["speculative"]) => {
    const engine = await LocalEngine.open({ device: new CpuDevice(), folder, speculative });
    const policy = await engine.openPolicy();
    return policy.sample([{ prompt_ids: [1, 5, 6], seed: 1, params }], {});
  };
  const [plain] = await draw(undefined);
  const [guessed] = await draw({ method: "ngram", numSpeculativeTokens: 4, promptLookupMax: 2 });
  const { speculated, ...drawn } = guessed!;
  expect(drawn).toEqual(plain);
  expect(speculated!.num_accepted_tokens).toBeGreaterThan(10);
  rmSync(folder, { recursive: true });
});

test("a server folds adapters only where a copy fits its budget", async () => {
  const folder = mkdtempSync(join(tmpdir(), "grpu-engine-"));
  await saveModelFolder(folder, { model: LanguageModel.create(new CpuDevice(), CONFIG) });
  const foldsWithin = async (memoryBudgetBytes: number) => {
    const device = new CpuDevice({ memoryBudgetBytes });
    const labels: string[] = [];
    const alloc: Device["alloc"] = (bytes, label) => {
      labels.push(label);
      return device.alloc(bytes, label);
    };
    const engine = await LocalEngine.open({ device: changed(device, { alloc }), folder });
    const config = { rank: 2, trainAttn: true, trainMlp: true, trainUnembed: true, seed: 3 };
    const policy = await (await engine.createTrainer(config)).freeze();
    await policy.scorePrompts([[1, 5, 6, 7]], { topk: 0 });
    return labels.some((label) => label.startsWith("folded weights"));
  };
  expect([await foldsWithin(2 ** 22), await foldsWithin(2 ** 17)]).toEqual([true, false]);
  rmSync(folder, { recursive: true });
});

test("closing the engine frees its base and the device", async () => {
  const folder = mkdtempSync(join(tmpdir(), "grpu-engine-"));
  const device = new CpuDevice();
  const made = LanguageModel.create(device, CONFIG);
  await saveModelFolder(folder, { model: made });
  made.release();
  const live: number[] = [];
  const engine = await LocalEngine.open({
    device: changed(device, { destroy: () => void live.push(device.memory.live) }),
    folder,
  });
  expect(device.memory.live).toBeGreaterThan(0);
  engine.close();
  expect(live).toEqual([0]);
  rmSync(folder, { recursive: true });
});

overDevices("the engine behind the servers", (device: Device) => {
  const open = async ({ config = CONFIG, dtype = "F32", on = device, warn }: Partial<Opening> = {}) => {
    const root = mkdtempSync(join(tmpdir(), "grpu-engine-"));
    const folder = join(root, "model");
    const made = LanguageModel.create(device, config, { seed: 1 });
    await saveModelFolder(folder, { model: made, dtype });
    made.release();
    const engine = await LocalEngine.open({ device: on, folder, warn });
    const trainer = (rank: number) =>
      engine.createTrainer({ rank, trainAttn: true, trainMlp: true, trainUnembed: true, seed: 3 });
    return { root, engine, trainer, clear: () => rmSync(root, { recursive: true }) };
  };
  const train = async (trainer: Trainer, steps: number) => {
    const losses: number[] = [];
    for (let i = 0; i < steps; i++) {
      const { metrics } = await trainer.forwardBackward(ROWS, { loss: LOSS, forwardOnly: false });
      await trainer.optimStep(ADAM);
      losses.push(metrics["loss:sum"]!);
    }
    return losses;
  };
  const score = async (trainer: Trainer) =>
    (await trainer.forwardBackward(ROWS, { loss: LOSS, forwardOnly: true })).logprobs;

  test("says what its clients ask for", async () => {
    const { engine, clear } = await open();
    const { architecture, vocabSize, contextLength, eosTokenIds } = engine;
    expect({ architecture, vocabSize, contextLength, eosTokenIds }).toEqual({
      architecture: "llama",
      vocabSize: 20,
      contextLength: 32,
      eosTokenIds: [2],
    });
    expect(engine.device).toBe(`${device.info.kind}: ${device.info.description}`);
    expect(engine.memory).toEqual(device.memory);
    expect(engine.decode).toBeUndefined();
    clear();
  });

  test("a trainer holds values, gradients and two moments of what it trains, and counts its steps", async () => {
    const { trainer, clear } = await open();
    const [adapter, wider] = [await trainer(4), await trainer(8)];
    const device = new CpuDevice();
    const lora = (rank: number) => LanguageModel.create(device, CONFIG, { lora: { rank, targets: [...TARGETS] } });
    expect([adapter.bytes, wider.bytes]).toEqual([4, 8].map((rank) => 4 * lora(rank).trainable.byteLength));
    expect((await trainer(0)).bytes).toBe(4 * LanguageModel.create(device, CONFIG).trainable.byteLength);
    await train(adapter, 2);
    expect([adapter.step, wider.step]).toEqual([2, 0]);
    clear();
  });

  test.each(ranks)("rank $rank: the loss is the weighted sum, falls, and is saved and resumed", async ({ rank }) => {
    const { root, trainer, clear } = await open();
    const [whole, first] = [await trainer(rank), await trainer(rank)];
    const { logprobs, metrics } = await whole.forwardBackward(ROWS, { loss: LOSS, forwardOnly: true });
    const byHand = -logprobs.reduce((sum, p, t) => sum + p * ROWS.inputs.weights![t]!, 0);
    expect(metrics["loss:sum"]).toBeCloseTo(byHand, 4);
    const losses = await train(whole, 6);
    expect(losses[0]).toBeCloseTo(byHand, 4);
    expect(losses[5]).toBeLessThan(losses[0]! - 0.5);
    await train(first, 3);
    const dir = join(root, "saved");
    await first.save(dir, { optimizer: true });
    const second = await trainer(rank);
    await second.load(dir, { optimizer: true });
    await train(second, 3);
    expect(await score(second)).toEqual(await score(whole));
    for (const each of [whole, first, second]) each.release();
    clear();
  });

  test.each(ranks)("rank $rank: a pass that is refused memory counts once, and is warned of", async ({ rank }) => {
    const at = { alloc: -1 };
    const refused = refusing(device, at);
    const warnings: string[] = [];
    const warn = (message: string) => warnings.push(message);
    const { trainer, clear } = await open({ on: refused.device, warn });
    const [whole, halved] = [await trainer(rank), await trainer(rank)];
    for (const each of [whole, halved]) await train(each, 1);
    const live = device.memory.live;
    const before = refused.seen.alloc;
    const run = (of: Trainer) => of.forwardBackward(ROWS, { loss: LOSS, forwardOnly: false });
    const expected = await run(whole);
    // In the backward pass, after the loss was taken.
    at.alloc = refused.seen.alloc + Math.floor(0.8 * (refused.seen.alloc - before));
    const actual = await run(halved);
    expect(warnings).toEqual([expect.stringContaining("passes hold at most 3 tokens")]);
    expect(actual.metrics["loss:sum"]).toBeCloseTo(expected.metrics["loss:sum"]!, 5);
    expect(actual.logprobs).toEqual(expected.logprobs);
    expect(device.memory.live).toBe(live);
    const [a, b] = [await whole.optimStep(ADAM), await halved.optimStep(ADAM)];
    expect(b.grad_norm).toBeCloseTo(a.grad_norm!, 5);
    for (const each of [whole, halved]) each.release();
    clear();
  });

  test.each(ranks)(
    "rank $rank: several targets per position are the sum of passes over one of them each",
    async ({ rank }) => {
      const { trainer, clear } = await open();
      const [whole, single] = [await trainer(rank), await trainer(rank)];
      // Three targets after each position of the first sequence, two of the second.
      const widths = [3, 3, 3, 3, 2, 2];
      const targets = widths.map((width, t) => Array.from({ length: width }, (_, k) => (3 * t + 5 * k + 1) % 20));
      const weights = widths.map((width, t) => Array.from({ length: width }, (_, k) => 0.5 * k - 0.25 * t + 1));
      const { tokens, offsets } = ROWS;
      const rows = {
        tokens,
        offsets,
        targets: Uint32Array.from(targets.flat()),
        targetOffsets: Uint32Array.of(0, 12, 16),
        inputs: { weights: Float32Array.from(weights.flat()) },
      };
      const all = await whole.forwardBackward(rows, { loss: LOSS, forwardOnly: false });
      expect(await whole.forwardBackward(rows, { loss: LOSS, forwardOnly: true })).toEqual(all);
      const logprobs = widths.map((): number[] => []);
      let sum = 0;
      for (let k = 0; k < 3; k++) {
        const column = {
          tokens,
          offsets,
          targets: Uint32Array.from(targets, (row) => row[k] ?? 0),
          inputs: { weights: Float32Array.from(weights, (row) => row[k] ?? 0) },
        };
        const one = await single.forwardBackward(column, { loss: LOSS, forwardOnly: false });
        sum += one.metrics["loss:sum"]!;
        for (const [t, width] of widths.entries()) if (k < width) logprobs[t]!.push(one.logprobs[t]!);
      }
      expect([...all.logprobs]).toEqual(logprobs.flat());
      expect(all.metrics["loss:sum"]).toBeCloseTo(sum, 4);
      expect(all.losses.reduce((total, loss) => total + loss, 0)).toBeCloseTo(sum, 4);
      const [a, b] = [await whole.optimStep(ADAM), await single.optimStep(ADAM)];
      expect(a.grad_norm! / b.grad_norm!).toBeCloseTo(1, 5);
      const [then, expected] = [await score(whole), await score(single)];
      for (const [t, value] of expected.entries()) expect(Math.abs(then[t]! - value)).toBeLessThan(1e-4);
      for (const each of [whole, single]) each.release();
      clear();
    },
  );

  test("the top tokens of a long prompt are as many as were asked for", async () => {
    // More numbers than a call takes arguments.
    const [length, topk] = [10_000, 20];
    const model = {
      score: async () => ({ logprobs: new Float32Array(length - 1) }),
      top: async () => ({
        tokens: Uint32Array.from({ length: length * topk }, (_, i) => i),
        logprobs: new Float32Array(length * topk).fill(-1),
      }),
    } as unknown as LanguageModel;
    const policy = new LocalPolicy(model, { bytes: 0, weights: () => ({}) as never, release: () => {} });
    const [{ top }] = (await policy.scorePrompts([new Array(length).fill(1)], { topk })) as [PromptScores];
    expect([top!.tokens.length, top!.tokens[topk], top!.tokens.at(-1)]).toEqual([200_000, 0, 199_979]);
    expect([top!.logprobs.length, top!.logprobs[topk - 1], top!.logprobs[topk]]).toEqual([200_000, Number.NaN, -1]);
  });

  test("tokens at places of prompts are scored as if they stood there, alone or beside the prompts' own", async () => {
    const { engine, clear } = await open();
    const policy = await engine.openPolicy();
    const prompts = [
      [1, 5, 6, 7],
      [3, 4],
      [2, 9, 8],
    ];
    const targets = [
      { positions: Uint32Array.of(1, 3, 3, 3), tokens: Uint32Array.of(9, 0, 7, 12) },
      undefined,
      { positions: Uint32Array.of(2), tokens: Uint32Array.of(1) },
    ];
    const [own, both, only] = [
      await policy.scorePrompts(prompts, { topk: 0 }),
      await policy.scorePrompts(prompts, { topk: 2, targets }),
      await policy.scorePrompts(prompts, { topk: 0, own: false, targets }),
    ];
    for (const [i, { logprobs }] of own.entries()) {
      expect(both[i]!.logprobs).toEqual(logprobs);
      expect(both[i]!.top!.tokens).toHaveLength(2 * prompts[i]!.length);
      expect([...only[i]!.logprobs]).toEqual(prompts[i]!.map(() => Number.NaN));
      expect(only[i]!.targets).toEqual(both[i]!.targets);
      if (!targets[i]) expect(both[i]!.targets).toBeUndefined();
      for (const [r, at] of [...(targets[i]?.positions ?? [])].entries()) {
        const changed = prompts[i]!.with(at, targets[i]!.tokens[r]!);
        const [there] = await policy.scorePrompts([changed], { topk: 0 });
        expect(both[i]!.targets![r]).toBe(there!.logprobs[at]);
      }
    }
    policy.release();
    clear();
  });

  test.each(ranks)(
    "rank $rank: a frozen policy stays the same, next to others and the base model",
    async ({ rank }) => {
      const { engine, trainer, clear } = await open();
      const [a, b] = [await trainer(rank), await trainer(4)];
      const base = await engine.openPolicy();
      const prompts = [[1, 5, 6, 7]];
      const scores = async (policy: { scorePrompts: typeof base.scorePrompts }) =>
        [...(await policy.scorePrompts(prompts, { topk: 0 }))[0]!.logprobs].slice(1);
      const untouched = await scores(base);
      await train(a, 2);
      const frozen = await a.freeze();
      const then = await scores(frozen);
      expect(then).not.toEqual(untouched);
      await train(a, 3);
      await train(b, 1);
      expect(await scores(frozen)).toEqual(then);
      expect(await scores(base)).toEqual(untouched);
      frozen.release();
      for (const each of [a, b]) each.release();
      clear();
    },
  );

  test.each(ranks)(
    "rank $rank: what a call makes has its values, and the gradient is cleared, though the driver refuses the next submit",
    async ({ rank }) => {
      const { root, engine, trainer, clear } = await open();
      // A device that refuses memory runs nothing of what was recorded since its last submit.
      const refuse = () => device.rollback(0);
      const prompts = [[1, 5, 6, 7]];
      const scores = async (policy: EnginePolicy) =>
        [...(await policy.scorePrompts(prompts, { topk: 0 }))[0]!.logprobs].slice(1);
      const [made, other] = [await trainer(rank), await trainer(rank)];
      await train(made, 1);
      const dir = join(root, "saved");
      await made.save(dir, { optimizer: false });
      const frozen = await made.freeze();
      refuse();
      const opened = await engine.openPolicy(dir);
      refuse();
      const fresh = await trainer(rank);
      refuse();
      const untouched = await engine.openPolicy();
      expect(await scores(frozen)).toEqual(await scores(opened));
      expect(await scores(frozen)).not.toEqual(await scores(untouched));
      expect(await train(fresh, 2)).toEqual(await train(other, 2));
      await fresh.forwardBackward(ROWS, { loss: LOSS, forwardOnly: false });
      await fresh.clearGradients();
      refuse();
      expect(await train(fresh, 1)).toEqual(await train(other, 1));
      expect(await score(fresh)).toEqual(await score(other));
      for (const each of [made, other, fresh, frozen, opened]) each.release();
      clear();
    },
  );

  test.each(ranks)(
    "rank $rank: memory refused as a policy is made fails that call, and leaves nothing",
    async ({ rank }) => {
      let isRefused = false;
      const submit = async () => {
        if (isRefused) throw new OutOfMemoryError("Cannot allocate it: refused.", { label: "it", bytes: 8 });
        await device.submit();
      };
      const { root, engine, trainer, clear } = await open({ on: changed(device, { submit }) });
      const made = await trainer(rank);
      const dir = join(root, "saved");
      await made.save(dir, { optimizer: false });
      const { live } = device.memory;
      isRefused = true;
      for (const call of [() => made.freeze(), () => engine.openPolicy(dir), () => trainer(rank)])
        await expect(call()).rejects.toThrow(OutOfMemoryError);
      expect(device.memory.live).toBe(live);
      made.release();
      clear();
    },
  );

  test.each(["F32", "BF16"] as const)(
    "an adapter on a tied output matrix of type %s trains, is saved and sampled, and nothing copies the table",
    async (dtype) => {
      const config = { ...CONFIG, vocabSize: 400, tied: true };
      const allocated: [string, number][] = [];
      const alloc: Device["alloc"] = (bytes, label) => {
        allocated.push([label, bytes]);
        return device.alloc(bytes, label);
      };
      const { root, engine, trainer, clear } = await open({ config, dtype, on: changed(device, { alloc }) });
      const base = await engine.openPolicy();
      const scores = async (policy: { scorePrompts: typeof base.scorePrompts }) =>
        [...(await policy.scorePrompts([[1, 5, 6, 7]], { topk: 0 }))[0]!.logprobs].slice(1);
      const untouched = await scores(base);
      allocated.length = 0;
      const [one, two] = [await trainer(4), await trainer(2)];
      const losses = await train(one, 4);
      expect(losses[3]).toBeLessThan(losses[0]! - 0.2);
      const frozen = await one.freeze();
      const then = await scores(frozen);
      await one.save(join(root, "saved"), { optimizer: false });
      await train(two, 1);
      const opened = await engine.openPolicy(join(root, "saved"));
      expect(await scores(opened)).toEqual(then);
      expect(await scores(frozen)).toEqual(then);
      expect(await scores(base)).toEqual(untouched);
      // Products by packed weights unpack them in pieces.
      const large = allocated.filter(([, bytes]) => bytes >= config.vocabSize * config.hiddenSize * 4);
      expect(large.filter(([label]) => label !== "unpacked weights")).toEqual([]);
      for (const each of [frozen, opened, one, two]) each.release();
      clear();
    },
  );

  test.each(ranks)(
    "rank $rank: training between the chunks of a batch changes no sample and no loss",
    async ({ rank }) => {
      const params = { max_tokens: 24, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
      const requests = Array.from({ length: 3 }, (_, seed) => ({ prompt_ids: [1, 5], params, seed }));
      const run = async (isBetween: boolean) => {
        const { engine, trainer, clear } = await open();
        const it = await trainer(rank);
        await train(it, 1);
        const policy = await it.freeze();
        const losses: number[] = [];
        const more = async () => {
          if (isBetween) losses.push(...(await train(it, 1)));
        };
        const sampled = await policy.sample(requests, { more });
        const chunks = losses.length;
        losses.push(...(await train(it, 4 - chunks)));
        for (const each of [policy, it]) each.release();
        engine.unload();
        clear();
        return { sampled, losses, chunks };
      };
      const [between, after] = [await run(true), await run(false)];
      expect([between.chunks > 1, after.chunks]).toEqual([true, 0]);
      expect(between.sampled).toEqual(after.sampled);
      expect(between.losses).toEqual(after.losses);
    },
  );

  test("optimiser settings that would make weights NaN are refused, and change nothing", async () => {
    const { trainer, clear } = await open();
    const it = await trainer(4);
    const before = await score(it);
    const refused: [string, number[]][] = [
      ["learning_rate", [1e308, 101, -1, Number.NaN, Number.POSITIVE_INFINITY]],
      ["beta1", [1, -0.1, 1 - 1e-12, Number.NaN]],
      ["beta2", [1, -0.1, 1 - 1e-12, Number.NaN]],
      ["eps", [0, 1e-45, 2, 1e300, Number.NaN]],
      ["weight_decay", [1e308, -1, Number.NaN]],
      ["grad_clip_norm", [1e300, -1, Number.NaN]],
    ];
    for (const [name, values] of refused)
      for (const value of values) {
        await it.forwardBackward(ROWS, { loss: LOSS, forwardOnly: false });
        const step = it.optimStep({ ...ADAM, [name]: value });
        await expect(step, `${name} ${value}`).rejects.toThrow(
          new RegExp(`Cannot take the optimiser step: ${name} must be`),
        );
      }
    expect(await score(it)).toEqual(before);
    await it.clearGradients();
    // Last, because after a step of 100 the next gradient overflows.
    for (const edge of [
      { eps: 1e-30 },
      { beta1: 0, beta2: 0 },
      { grad_clip_norm: 1e30 },
      { learning_rate: 100, weight_decay: 0 },
    ]) {
      await it.forwardBackward(ROWS, { loss: LOSS, forwardOnly: false });
      await it.optimStep({ ...ADAM, ...edge });
    }
    it.release();
    clear();
  });

  test.each(ranks)("rank $rank: weights that hold NaN are not saved", async ({ rank }) => {
    const { root, trainer, clear } = await open();
    const it = await trainer(rank);
    const dir = join(root, "saved");
    await it.save(dir, { optimizer: true });
    const file = join(dir, rank > 0 ? "adapter_model.safetensors" : "model.safetensors");
    const bytes = readFileSync(file);
    bytes.writeFloatLE(Number.NaN, bytes.length - 4);
    writeFileSync(file, bytes);
    await it.load(dir, { optimizer: true });
    await expect(it.save(join(root, "next"), { optimizer: true })).rejects.toThrow(
      /^Cannot save the weights: .* holds NaN at index/,
    );
    it.release();
    clear();
  });
});
