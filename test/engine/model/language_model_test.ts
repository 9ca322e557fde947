import { describe, expect, test } from "vitest";
import type { Device } from "../../../src/engine/compute/device.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { changed } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { likelihood } from "../../fixtures/likelihood.ts";
import { expectClose, uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, vocabSize: 13, heads: 4, kvHeads: 2, eosTokenIds: [12] };
const SMALL = { rank: 2, alpha: 4, targets: ["q_proj", "v_proj"] };
const LARGE = { rank: 5, alpha: 32, targets: ["k_proj", "o_proj", "up_proj", "down_proj", "lm_head"] };
const OPTIM = {
  learning_rate: 0.02,
  beta1: 0.9,
  beta2: 0.95,
  eps: 1e-12,
  weight_decay: 0,
  grad_clip_norm: 0,
};

function rows(seed: number) {
  const next = uniform(seed);
  return pack([7, 1, 4].map((length) => Array.from({ length }, () => Math.floor(next() * CONFIG.vocabSize))));
}

async function train(model: LanguageModel, seed: number): Promise<void> {
  const { tokens, offsets } = rows(seed);
  const mask = new Uint32Array(tokens.length).fill(1);
  const loss = likelihood(model.device);
  await model.accumulate({ tokens, offsets, mask }, { temperature: 1, loss });
  await model.optimStep(OPTIM);
}

async function valuesOf(model: LanguageModel): Promise<number[][]> {
  return [...(await model.trainable.read()).values()].map((values) => [...values]);
}

const scoresOf = async (model: LanguageModel, policy: Parameters<LanguageModel["logprobs"]>[1]["policy"]) =>
  (await model.logprobs(rows(9), { policy, temperature: 1 })).logprobs;

overDevices("LanguageModel", (device) => {
  describe("adapters side by side", () => {
    test.each([1, 2])("trained in turns on one base, they end as each alone (%i copies)", async (adapterSlots) => {
      const open = () => LanguageModel.create(device, CONFIG, { seed: 3, adapterSlots });
      const alone = [];
      for (const [i, lora] of [SMALL, LARGE].entries()) {
        const base = open();
        const model = base.branch({ lora, seed: i });
        for (const step of [1, 2, 3]) await train(model, step);
        alone.push({ values: await valuesOf(model), scores: await scoresOf(model, "current") });
        model.release();
        base.release();
      }
      const base = open();
      const untouched = await scoresOf(base, "current");
      const models = [SMALL, LARGE].map((lora, i) => base.branch({ lora, seed: i }));
      for (const step of [1, 2, 3]) for (const model of models) await train(model, step);
      for (const [i, model] of models.entries()) {
        expect(await valuesOf(model)).toEqual(alone[i]!.values);
        expect(await scoresOf(model, "current")).toEqual(alone[i]!.scores);
        expect(await scoresOf(model, "reference")).toEqual(untouched);
      }
      for (const model of models) model.release();
      base.release();
    });

    test("a frozen policy stays the same while others use its copy of the weights", async () => {
      const base = LanguageModel.create(device, CONFIG, { seed: 3 });
      const model = base.branch({ lora: LARGE, seed: 1 });
      const kept = [];
      for (const step of [1, 2, 3]) {
        await train(model, step);
        kept.push({ policy: model.freeze(), scores: await scoresOf(model, "current") });
      }
      for (const { policy, scores } of kept) expect(await scoresOf(model, policy)).toEqual(scores);
      expect(kept[0]!.scores).not.toEqual(kept[1]!.scores);
      const whole = base.freeze();
      expect(await scoresOf(base, whole)).toEqual(await scoresOf(base, "current"));
      for (const policy of [whole, ...kept.map(({ policy }) => policy)]) policy.release();
      model.release();
      base.release();
    });
  });

  test.each([
    ["by either way", CONFIG, 2],
    ["by way of its factors", { ...CONFIG, hiddenSize: 192, headDim: 48, intermediateSize: 256 }, 4],
    ["of a rank not in fours", { ...CONFIG, hiddenSize: 192, headDim: 48, intermediateSize: 256 }, 3],
  ])("an adapter's gradients %s match those derived from the weights' gradients", async (_, config, rank) => {
    const targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"];
    const base = LanguageModel.create(device, config, { seed: 3 });
    const model = base.branch({ lora: { rank, alpha: 3, targets }, seed: 1 });
    // B is zero before it, and with it the gradient of A.
    await train(model, 1);
    const { tokens, offsets } = rows(2);
    const pass = { tokens, offsets, mask: new Uint32Array(tokens.length).fill(1) };
    const options = { temperature: 1, loss: likelihood(device) };
    await model.accumulate(pass, options);
    const gradients = await model.optimizer.gradients.read();
    const factors = await model.trainable.read();
    const whole = LanguageModel.create(device, config);
    whole.base.copyFrom(base.base);
    model.adapter!.addTo(whole.base);
    await whole.accumulate(pass, options);
    const weightGradients = await whole.base.readTensors(whole.optimizer.gradients);
    for (const part of [...model.adapter!.parts.values()].flat()) {
      const module = part.tensor.replace(".weight", "");
      const dW = weightGradients.get(part.tensor)!;
      const [A, B] = ["A", "B"].map((factor) => factors.get(`${module}.${factor}`)!);
      const dA = new Float64Array(A!.length);
      const dB = new Float64Array(B!.length);
      for (let r = 0; r < rank; r++)
        for (let o = 0; o < part.rows; o++)
          for (let i = 0; i < part.columns; i++) {
            const g = (3 / rank) * dW[o * part.columns + i]!;
            dA[r * part.columns + i]! += g * B![o * rank + r]!;
            dB[o * rank + r]! += g * A![r * part.columns + i]!;
          }
      for (const [factor, expected] of [
        ["A", dA],
        ["B", dB],
      ] as const) {
        const absolute = 1e-5 * Math.hypot(...expected);
        expect(absolute).toBeGreaterThan(0);
        expectClose(gradients.get(`${module}.${factor}`)!, expected, { relative: 0, absolute }, module);
      }
    }
    for (const it of [whole, model, base]) it.release();
  });

  test("the base of an adapter is transposed only when it is scored itself", async () => {
    const base = LanguageModel.create(device, CONFIG, { seed: 3 });
    const model = base.branch({ lora: SMALL, seed: 1 });
    const turned = base.base.byteLength - base.base.values.byteLength;
    await scoresOf(model, "current");
    const before = device.memory.live;
    const untouched = await scoresOf(model, "reference");
    expect(device.memory.live - before).toBeGreaterThanOrEqual(turned);
    expect(await scoresOf(base, "current")).toEqual(untouched);
    model.release();
    base.release();
  });

  test("with a mask, log-probs are computed for its tokens alone", async () => {
    let headRows = 0;
    const dispatch: Device["dispatch"] = (kernel, options) => {
      if (kernel.name.startsWith("head/logprob")) headRows += (options.params as { rows: number }).rows;
      device.dispatch(kernel, options);
    };
    const model = LanguageModel.create(changed(device, { dispatch }), CONFIG, { seed: 4 });
    const packed = pack([7, 1, 4, 6].map((length) => Array.from({ length }, (_, t) => t)));
    const all = await model.logprobs(packed, { policy: "current", temperature: 1 });
    expect(headRows).toBe(6 + 0 + 3 + 5);
    // First tokens have no log-prob; the last sequence has no masked token.
    const mask = Uint32Array.of(1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0);
    headRows = 0;
    const some = await model.logprobs(packed, { policy: "current", temperature: 1, mask });
    expect(headRows).toBe(4);
    const wanted = (values: Float32Array) => values.map((value, t) => (mask[t] === 1 ? value : 0));
    expect(some).toEqual({ logprobs: wanted(all.logprobs), entropy: wanted(all.entropy) });
    const none = await model.logprobs(packed, { policy: "current", temperature: 1, mask: new Uint32Array(18) });
    expect(none).toEqual({ logprobs: new Float32Array(18), entropy: new Float32Array(18) });
    expect(headRows).toBe(4);
    model.release();
  });

  describe("any target at every position", () => {
    test("gives the masked pass's scores and gradients where the targets are the next tokens", async () => {
      const model = LanguageModel.create(device, CONFIG, { seed: 4, maxTokensPerPass: 8 });
      const whole = rows(5);
      const { logprobs } = await model.logprobs(whole, { policy: "current", temperature: 1 });
      const inputs = pack(sequences(whole).map((ids) => ids.slice(0, -1)));
      const targets = Uint32Array.from(sequences(whole).flatMap((ids) => ids.slice(1)));
      const scored = await model.score({ ...inputs, targets }, { temperature: 1 });
      const offsets = [...whole.offsets];
      expectClose(
        scored.logprobs,
        logprobs.filter((_, t) => !offsets.includes(t)),
        { relative: 0, absolute: 1e-6 },
      );
      const loss = likelihood(device);
      await model.accumulate(
        { ...whole, mask: new Uint32Array(whole.tokens.length).fill(1) },
        { temperature: 1, loss },
      );
      const masked = [...(await model.optimizer.gradients.read()).values()].flatMap((it) => [...it]);
      model.optimizer.gradients.clear();
      await model.accumulate({ ...inputs, targets }, { temperature: 1, loss });
      const free = [...(await model.optimizer.gradients.read()).values()].flatMap((it) => [...it]);
      expect(Math.hypot(...masked)).toBeGreaterThan(0.1);
      expectClose(free, masked, { relative: 0, absolute: 1e-5 });
      model.release();
    });

    test("a mask or targets that are not one per token are refused", async () => {
      const model = LanguageModel.create(device, CONFIG);
      const mask = Uint32Array.of(1, 1, 1);
      await expect(model.logprobs(pack([[1, 2]]), { policy: "current", temperature: 1, mask })).rejects.toThrow(
        "Cannot run a pass: mask must have one element per token (3 of 2)",
      );
      const targets = Uint32Array.of(1);
      await expect(model.score({ ...pack([[1, 2]]), targets }, { temperature: 1 })).rejects.toThrow(
        "targets must have one element per token (1 of 2)",
      );
      model.release();
    });

    test("a target outside the vocabulary is refused with its position", async () => {
      const model = LanguageModel.create(device, CONFIG);
      const targets = Uint32Array.of(0, 13);
      await expect(model.score({ ...pack([[1, 2]]), targets }, { temperature: 1 })).rejects.toThrow(
        "Cannot run target 1: ids must lie in [0, 13) (13)",
      );
      model.release();
    });
  });

  test.each([1, 3, 8, 9])(
    "%i rows of a wide model are sampled with the log-probs that scoring gives",
    async (count) => {
      const config = { ...CONFIG, hiddenSize: 384, headDim: 96, intermediateSize: 512 };
      const model = LanguageModel.create(device, config, { seed: 5 });
      const requests = Array.from({ length: count }, (_, seed) => ({
        prompt_ids: [1, 2, seed % 13],
        params: { temperature: 1, top_p: 1, top_k: -1, max_tokens: 6, stop_token_ids: [] },
        seed,
      }));
      const samples = await model.sample(requests, { weightVersion: 0 });
      const rows = pack(samples.map(({ tokens }, i) => [...requests[i]!.prompt_ids, ...tokens]));
      const { logprobs } = await model.logprobs(rows, { policy: "current", temperature: 1 });
      for (const [i, sample] of samples.entries()) {
        const start = rows.offsets[i]! + requests[i]!.prompt_ids.length;
        const scored = logprobs.subarray(start, start + sample.tokens.length);
        expectClose(sample.logprobs, scored, { relative: 0, absolute: 2e-5 }, `sample ${i}`);
      }
      model.release();
    },
  );

  test("sequences take turns where memory cannot hold a cache for all of them", async () => {
    const requests = Array.from({ length: 12 }, (_, seed) => ({
      prompt_ids: [1, 2, seed],
      params: { temperature: 1, top_p: 1, top_k: -1, max_tokens: 20, stop_token_ids: [] },
      seed,
    }));
    // A sequence reads 22 positions: two pages, 2,048 bytes of keys and as many of values in each of two layers.
    const labels: [string, number][] = [];
    const samples = [];
    for (const free of [Number.POSITIVE_INFINITY, 2 * 5 * 4 * 2048]) {
      const memory = { live: 0, pooled: 0, peak: 0, budget: free, budgetSource: "the test" };
      const alloc: Device["alloc"] = (bytes, label) => {
        labels.push([label, bytes]);
        return device.alloc(bytes, label);
      };
      const model = LanguageModel.create(changed(device, { memory, alloc }), CONFIG, { seed: 5 });
      samples.push(await model.sample(requests, { weightVersion: 0 }));
      model.release();
    }
    const room = labels.filter(([label]) => label === "key cache").map(([, bytes]) => bytes / 2048);
    expect(room).toEqual([12, 12, 5, 5]);
    expect(samples[1]).toEqual(samples[0]);
  });

  test("the most likely tokens come best first and sum to one over the vocabulary", async () => {
    const model = LanguageModel.create(device, CONFIG, { seed: 4, maxTokensPerPass: 4 });
    const { tokens, offsets } = rows(6);
    const k = CONFIG.vocabSize;
    const top = await model.top({ tokens, offsets }, { k, policy: "current" });
    for (let t = 0; t < tokens.length; t++) {
      const [ids, logprobs] = [top.tokens, top.logprobs].map((of) => [...of.subarray(t * k, (t + 1) * k)]);
      expect([...ids!].sort((a, b) => a - b)).toEqual(ids!.map((_, id) => id));
      expect(logprobs).toEqual([...logprobs!].sort((a, b) => b - a));
      expect(logprobs!.reduce((sum, p) => sum + Math.exp(p), 0)).toBeCloseTo(1, 5);
      const targets = new Uint32Array(tokens.length).fill(ids![0]!);
      const { logprobs: scored } = await model.score({ tokens, offsets, targets }, { temperature: 1 });
      expect(scored[t]).toBeCloseTo(logprobs![0]!, 5);
    }
    model.release();
  });

  describe("an adapter beside the weights", () => {
    const open = (config: ModelConfig, foldAdapter: boolean, lora = LARGE) =>
      LanguageModel.create(device, config, { seed: 3, lora, foldAdapter });

    test("trains and scores as one folded into them, within rounding", async () => {
      const [beside, folded] = [open(CONFIG, false), open(CONFIG, true)];
      for (const model of [beside, folded]) for (const step of [1, 2, 3]) await train(model, step);
      const [a, b] = [await scoresOf(beside, "current"), await scoresOf(folded, "current")];
      expectClose(a, b, { relative: 0, absolute: 1e-4 });
      expect(a).not.toEqual(b);
      expect(a).not.toEqual(await scoresOf(beside, "reference"));
      for (const model of [beside, folded]) model.release();
    });

    test("holds no second copy of the weights, and copies its own values when it is published", async () => {
      const model = open(CONFIG, false);
      await scoresOf(model, "current");
      const [before, pooled] = [device.memory.live, 2 * model.adapter!.values.byteLength];
      const copy = model.copyPolicy();
      copy.update();
      const then = await scoresOf(model, copy);
      expect(then).toEqual(await scoresOf(model, "current"));
      // Its values, and on software adapters its factors transposed. Buffers are rounded up.
      expect(device.memory.live - before).toBeLessThanOrEqual(1.3 * pooled);
      await train(model, 1);
      expect(await scoresOf(model, copy)).toEqual(then);
      copy.update();
      expect(await scoresOf(model, copy)).toEqual(await scoresOf(model, "current"));
      expect(await scoresOf(model, copy)).not.toEqual(then);
      copy.release();
      model.release();
    });

    test("on a tied output matrix leaves the embedding unchanged", async () => {
      const lora = { rank: 2, alpha: 4, targets: ["lm_head"] };
      const tied = open({ ...CONFIG, tied: true }, false, lora);
      const table = await tied.base.readTensors();
      const plain = LanguageModel.create(device, CONFIG, { seed: 3, lora, foldAdapter: true });
      // The same model with the table a second time as its output matrix.
      for (const part of plain.base.parts)
        plain.base.writeTensor(part, table.get(part.tensor) ?? table.get("model.embed_tokens.weight")!);
      plain.base.refresh();
      plain.refresh();
      for (const model of [tied, plain]) for (const step of [1, 2]) await train(model, step);
      const scores = await scoresOf(tied, "current");
      expectClose(scores, await scoresOf(plain, "current"), { relative: 0, absolute: 1e-5 });
      const untouched = await scoresOf(tied, "reference");
      expect(Math.max(...scores.map((p, t) => Math.abs(p - untouched[t]!)))).toBeGreaterThan(1e-3);
      expect(await tied.base.readTensors()).toEqual(table);
      for (const model of [tied, plain]) model.release();
    });

    test("on a tied output matrix is never folded", () => {
      const config = { ...CONFIG, tied: true };
      const lora = { rank: 2, alpha: 4, targets: ["q_proj", "lm_head"] };
      const model = open(config, true, lora);
      expect(() => model.weights).toThrow(/^Cannot fold the adapter into the weights: it changes the output matrix/);
      model.release();
    });

    test("a frozen model without one is not trained", async () => {
      const model = LanguageModel.create(device, CONFIG, { seed: 3, frozen: true });
      await expect(train(model, 1)).rejects.toThrow(/^Cannot train the model: its weights are frozen/);
      const branch = model.branch({ lora: SMALL });
      await train(branch, 1);
      for (const it of [branch, model]) it.release();
    });
  });
});

function sequences({ tokens, offsets }: { tokens: Uint32Array; offsets: Uint32Array }): number[][] {
  return Array.from({ length: offsets.length - 1 }, (_, i) => [...tokens.subarray(offsets[i], offsets[i + 1])]);
}
