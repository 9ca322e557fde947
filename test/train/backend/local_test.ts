import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { defineLoss, rowsOfTokens } from "../../../src/engine/algorithm/mod.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import type {
  Advantages,
  LossSpec,
  OptimParams,
  SampleRequest,
  TrainBatch,
} from "../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { perRow, perToken } from "../../fixtures/advantages.ts";
import { refusing } from "../../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../../fixtures/devices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { expectClose, uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

/** Small, with a vocabulary that is not a multiple of 4. */
const CONFIG: ModelConfig = {
  ...SMALL_MODEL,
  vocabSize: 13,
  heads: 4,
  kvHeads: 2,
  qkNorm: true,
  qkvBias: true,
  eosTokenIds: [12],
};
const LORA = { rank: 2, alpha: 4, targets: ["q_proj", "v_proj", "down_proj", "lm_head"] };
const OPTIM: OptimParams = {
  learning_rate: 0.01,
  beta1: 0.9,
  beta2: 0.95,
  eps: 1e-8,
  weight_decay: 0.01,
  grad_clip_norm: 1,
};
const LOSS: LossSpec = {
  name: "vanilla",
  loss_agg_mode: "token-mean",
  settings: { clip_ratio_low: 0.2, clip_ratio_high: 0.2, clip_ratio_c: 3 },
  entropy_coeff: 0.01,
  temperature: 0.7,
};

const folders: string[] = [];
afterAll(() => Promise.all(folders.map((dir) => rm(dir, { recursive: true }))));
async function folder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "grpu-local-"));
  folders.push(dir);
  return dir;
}

function open(device: Device, options: LanguageModelOptions = {}, config = CONFIG): LocalBackend {
  return new LocalBackend({
    model: LanguageModel.create(device, config, { seed: 3, ...options }),
    name: "test",
  });
}

/** Ragged sequences: some of one token, some without a masked token. */
function batch(seed: number): TrainBatch {
  const next = uniform(seed);
  const lengths = [5, 1, 9, 2, 17, 30, 3];
  const { tokens, offsets } = pack(
    lengths.map((length) => Array.from({ length }, () => Math.floor(next() * CONFIG.vocabSize))),
  );
  const mask = Uint32Array.from(tokens, () => (next() < 0.7 ? 1 : 0));
  for (const start of offsets.subarray(0, lengths.length)) mask[start] = 0;
  mask.fill(0, offsets[3], offsets[4]);
  const advantages = perRow(...lengths.map(() => next() * 2 - 1));
  const oldLogprobs = Float32Array.from(tokens, () => -2 - next());
  return { tokens, offsets, mask, advantages, oldLogprobs };
}

function request(prompt_ids: number[], seed: number, params: Partial<SampleRequest["params"]> = {}): SampleRequest {
  return {
    prompt_ids,
    seed,
    params: { max_tokens: 8, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [], ...params },
  };
}

async function weightsOf({ languageModel }: LocalBackend): Promise<Float32Array[]> {
  return [...(await languageModel.trainable.read()).values()].map((values) => values.slice());
}

overDevices("LocalBackend", (device) => {
  describe("sampling", () => {
    test("a sequence depends on its seed, prompt and parameters, not on its batch", async () => {
      const backend = open(device);
      const alone = await backend.sample([request([1, 2, 3], 7)]);
      const company = [request([4], 1, { temperature: 0.5 }), request([1, 2, 3], 8), request([1, 2, 3], 7)];
      const together = await backend.sample([...company, request([5, 6], 2, { top_k: 3 })]);
      expect(together[2]).toEqual(alone[0]);
      expect(together[1]!.tokens).not.toEqual(alone[0]!.tokens);
      backend.languageModel.release();
    });

    test("log-probs equal the trainer's at the same temperature", async () => {
      const backend = open(device);
      for (const temperature of [0.6, 1, 1.7]) {
        const prompts = [[1], [2, 3, 4], [5, 6, 7, 8, 9]];
        const requests = prompts.map((prompt, i) => request(prompt, i, { temperature, top_k: 5, top_p: 0.9 }));
        const sampled = await backend.sample(requests);
        const rows = pack(sampled.map(({ tokens }, i) => [...prompts[i]!, ...tokens]));
        const { logprobs } = await backend.logprobs(rows, { policy: "current", temperature });
        for (const [i, { logprobs: own }] of sampled.entries())
          expectClose(own, logprobs.subarray(rows.offsets[i]! + prompts[i]!.length, rows.offsets[i + 1]), {
            relative: 0,
            absolute: 1e-4,
          });
      }
      backend.languageModel.release();
    });

    test("stops at stop tokens, at max_tokens and at the context's end", async () => {
      const backend = open(device);
      const [free] = await backend.sample([request([1], 5, { max_tokens: 12 })]);
      expect(free).toMatchObject({ finish_reason: "length" });
      expect(free!.tokens).toHaveLength(12);
      const stop = free!.tokens[4]!;
      const [stopped] = await backend.sample([request([1], 5, { max_tokens: 12, stop_token_ids: [stop] })]);
      expect(stopped!.tokens).toEqual(free!.tokens.slice(0, free!.tokens.indexOf(stop) + 1));
      expect(stopped!.finish_reason).toBe("stop");
      const [full] = await backend.sample([request(new Array(30).fill(1), 5)]);
      expect(full!.tokens).toHaveLength(2);
      backend.languageModel.release();
    });

    test("top_k 1 and a tiny top_p are greedy", async () => {
      const backend = open(device);
      const [greedy, byK, byP] = await backend.sample([
        request([3, 1], 0, { temperature: 0 }),
        request([3, 1], 1, { top_k: 1 }),
        request([3, 1], 2, { top_p: 1e-6 }),
      ]);
      expect(byK!.tokens).toEqual(greedy!.tokens);
      expect(byP!.tokens).toEqual(greedy!.tokens);
      backend.languageModel.release();
    });

    test("more requests than cache slots give the same results, in order", async () => {
      const backend = open(device);
      const requests = Array.from({ length: 300 }, (_, i) =>
        request([i % 13, (i * 7) % 13], i, { max_tokens: 1 + (i % 4) }),
      );
      const all = await backend.sample(requests);
      expect(all.map(({ tokens }) => tokens.length)).toEqual(requests.map(({ params }) => params.max_tokens));
      expect(all.slice(290)).toEqual(await backend.sample(requests.slice(290)));
      backend.languageModel.release();
    });

    test.each([
      [{ prompt_ids: [] }, /the prompt is empty/],
      [{ prompt_ids: [13] }, /\[0, 13\) \(13\)/],
      [{ prompt_ids: [1.5] }, /1.5/],
      [{ prompt_ids: new Array(32).fill(1) }, /context of 32 tokens/],
    ])("refuses %o", async (part, message) => {
      const backend = open(device);
      const before = device.memory.live;
      await expect(backend.sample([{ ...request([1], 0), ...part }])).rejects.toThrow(message);
      expect(device.memory.live).toBe(before);
      backend.languageModel.release();
    });

    test("an aborted call rejects and leaves no memory behind", async () => {
      const backend = open(device);
      const before = device.memory.live;
      const abort = AbortSignal.abort(new Error("stop"));
      await expect(backend.sample([request([1], 0)], { signal: abort })).rejects.toThrow("stop");
      expect(device.memory.live).toBe(before);
      backend.languageModel.release();
    });
  });

  describe("training", () => {
    for (const lora of [undefined, LORA]) {
      const kind = lora ? "an adapter" : "all weights";
      test(`${kind}: passes of any size give the same loss, metrics and gradient`, async () => {
        const gradients: Float32Array[][] = [];
        const metrics: Record<string, number>[] = [];
        for (const maxTokensPerPass of [1000, 10]) {
          const backend = open(device, { lora, maxTokensPerPass });
          metrics.push(await backend.forwardBackward(batch(1), LOSS));
          const read = await backend.languageModel.optimizer.gradients.read();
          gradients.push([...read.values()].map((values) => values.slice()));
          backend.languageModel.release();
        }
        for (const [i, one] of gradients[0]!.entries())
          expectClose(gradients[1]![i]!, one, { relative: 1e-4, absolute: 1e-6 });
        for (const [name, value] of Object.entries(metrics[0]!))
          expectClose([metrics[1]![name]!], [value], { relative: 1e-4, absolute: 1e-6 }, name);
      });

      test(`${kind}: a step moves the loss down and a resumed run is the same bit for bit`, async () => {
        const dir = await folder();
        const step = async (backend: LocalBackend, seed: number) => {
          const metrics = await backend.forwardBackward(batch(seed), LOSS);
          return { ...metrics, ...(await backend.optimStep(OPTIM)) };
        };
        const whole = open(device, { lora });
        whole.freezeReference();
        for (const seed of [1, 2]) await step(whole, seed);
        await whole.save(dir);
        const last = [await step(whole, 3), await step(whole, 4)];
        const expected = await weightsOf(whole);
        const scored = await whole.logprobs(batch(5), { policy: "reference", temperature: 1 });

        const resumed = open(device, { lora });
        await resumed.load(dir);
        expect(resumed.weightVersion).toBe(2);
        expect([await step(resumed, 3), await step(resumed, 4)]).toEqual(last);
        expect(await weightsOf(resumed)).toEqual(expected);
        expect(await resumed.logprobs(batch(5), { policy: "reference", temperature: 1 })).toEqual(scored);
        whole.languageModel.release();
        resumed.languageModel.release();
      });

      test(`${kind}: a run resumed with passes of another size equals the first to 1e-6`, async () => {
        const dir = await folder();
        // A rate as for real models: AdamW makes a step of it out of the last digit of a gradient that should be 0.
        const step = async (backend: LocalBackend, seed: number) => {
          const metrics = await backend.forwardBackward(batch(seed), LOSS);
          return { ...metrics, ...(await backend.optimStep({ ...OPTIM, learning_rate: 1e-4 })) };
        };
        const whole = open(device, { lora });
        for (const seed of [1, 2]) await step(whole, seed);
        await whole.save(dir);
        const resumed = open(device, { lora, maxTokensPerPass: 10, gradientCheckpointing: true });
        await resumed.load(dir);
        for (const seed of [3, 4]) {
          const [expected, actual] = [await step(whole, seed), await step(resumed, seed)];
          for (const [name, value] of Object.entries(expected))
            expectClose([actual[name]!], [value], { relative: 1e-6, absolute: 1e-6 }, name);
        }
        const actual = await weightsOf(resumed);
        for (const [i, expected] of (await weightsOf(whole)).entries())
          expectClose(actual[i]!, expected, { relative: 1e-6, absolute: 1e-6 });
        whole.languageModel.release();
        resumed.languageModel.release();
      });
    }

    test.each(["vanilla", "host"])("a pass that is refused memory counts once in the metrics: %s", async (kind) => {
      const name = kind === "host" ? `refused-${device.info.kind}` : kind;
      if (kind === "host")
        await defineLoss({
          name,
          settings: {},
          token: ({ logprob, advantage }) => ({ value: -logprob * advantage, slope: -advantage, metrics: [0, 0, 0] }),
        });
      const spec = { ...LOSS, name, settings: kind === "host" ? {} : LOSS.settings };
      const run = async (share?: number) => {
        const at = { alloc: -1 };
        const refused = refusing(device, at);
        const backend = open(refused.device);
        const warnings: string[] = [];
        backend.onWarning((message) => warnings.push(message));
        await backend.forwardBackward(batch(1), spec);
        await backend.optimStep(OPTIM);
        const [before, live] = [refused.seen.alloc, device.memory.live];
        if (share !== undefined) at.alloc = before + Math.floor(share * allocations);
        const metrics = await backend.forwardBackward(batch(1), spec);
        allocations ||= refused.seen.alloc - before;
        expect(device.memory.live).toBe(live);
        const step = await backend.optimStep(OPTIM);
        backend.languageModel.release();
        return { metrics: { ...metrics, ...step }, warnings: warnings.length };
      };
      let allocations = 0;
      const { metrics: expected } = await run();
      expect(allocations).toBeGreaterThan(40);
      for (let share = 0; share < 1; share += 1 / 19) {
        const { metrics, warnings } = await run(share);
        expect(warnings).toBe(1);
        for (const [key, value] of Object.entries(expected))
          expectClose([metrics[key]!], [value], { relative: 2e-6, absolute: 1e-6 }, `${key} at ${share}`);
      }
    });

    test("a user's loss in TypeScript trains like the equivalent built-in one", async () => {
      const name = `own-reinforce-${device.info.kind}`;
      await defineLoss({
        name,
        settings: {},
        token: ({ logprob, advantage }) => ({
          value: -logprob * advantage,
          slope: -advantage,
          metrics: [0, 0, 0],
        }),
      });
      const gradients: Float32Array[][] = [];
      const losses: number[] = [];
      for (const loss of [name, "gpg"]) {
        const backend = open(device, { maxTokensPerPass: 10 });
        const spec = { ...LOSS, name: loss, settings: {} };
        losses.push((await backend.forwardBackward(batch(1), spec))["actor/loss"]!);
        const read = await backend.languageModel.optimizer.gradients.read();
        gradients.push([...read.values()].map((values) => values.slice()));
        backend.languageModel.release();
      }
      expectClose([losses[0]!], [losses[1]!], { relative: 1e-5, absolute: 1e-7 });
      for (const [i, one] of gradients[1]!.entries())
        expectClose(gradients[0]![i]!, one, { relative: 1e-4, absolute: 1e-6 });
    });

    test("advantages per token and per row train alike, also with as many rows as tokens", async () => {
      const { tokens, offsets } = pack([
        [1, 2, 3],
        [4, 5],
        [6, 7, 8],
      ]);
      const mask = Uint32Array.of(0, 1, 1, 0, 0, 0, 1, 0);
      const gradients: Float32Array[][] = [];
      for (const advantages of [perRow(1, 5, -2), perToken(0, 1, 1, 0, 5, 0, -2, -2)]) {
        const backend = open(device);
        await backend.forwardBackward({ tokens, offsets, mask, advantages }, LOSS);
        const read = await backend.languageModel.optimizer.gradients.read();
        gradients.push([...read.values()].map((values) => values.slice()));
        backend.languageModel.release();
      }
      for (const [i, one] of gradients[0]!.entries())
        expectClose(gradients[1]![i]!, one, { relative: 1e-5, absolute: 1e-7 });
    });

    const REINFORCE: LossSpec = {
      ...LOSS,
      name: "gpg",
      settings: {},
      loss_agg_mode: "token-sum",
      entropy_coeff: 0,
    };

    test.each([0.7, 1, 1.6])("the gradient at temperature %f is that of the log-probs at it", async (temperature) => {
      const backend = open(device);
      const { languageModel: model } = backend;
      const rows = batch(1);
      const spec = { ...REINFORCE, temperature };
      await backend.forwardBackward(rows, spec);
      const gradients = new Map([...(await model.optimizer.gradients.read())].map(([name, g]) => [name, g.slice()]));
      const weights = new Map([...(await model.trainable.read())].map(([name, w]) => [name, w.slice()]));
      const square = [...gradients.values()].reduce((sum, g) => g.reduce((part, x) => part + x * x, sum), 0);
      const lossAt = async (step: number) => {
        for (const [name, w] of weights)
          model.trainable.write(
            name,
            w.map((x, i) => x + step * gradients.get(name)![i]!),
          );
        model.refresh();
        const { logprobs } = await backend.logprobs(rows, { policy: "current", temperature });
        const { offsets, mask, advantages } = rows;
        return -rowsOfTokens(offsets).reduce(
          (sum, row, t) => sum + mask[t]! * advantages.values[row]! * logprobs[t]!,
          0,
        );
      };
      const step = 0.0005 / Math.sqrt(square);
      const slope = ((await lossAt(step)) - (await lossAt(-step))) / (2 * step);
      expect(Math.abs(slope / square - 1)).toBeLessThan(0.03);
      model.release();
    });

    test.each([0.7, 1, 1.6])("at temperature %f the ratio to the policy's own log-probs is 1", async (temperature) => {
      const backend = open(device);
      const { logprobs } = await backend.logprobs(batch(1), { policy: "current", temperature });
      const metrics = await backend.forwardBackward(
        { ...batch(1), oldLogprobs: logprobs },
        { ...LOSS, entropy_coeff: 0, temperature },
      );
      expect(Math.abs(metrics["actor/ppo_kl"]!)).toBeLessThan(1e-6);
      expect(metrics["actor/pg_clipfrac"]).toBe(0);
      backend.languageModel.release();
    });

    test.each(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])(
      "rows without a trained token have no share in the denominators of %s",
      async (loss_agg_mode) => {
        const rows = batch(1);
        const kept = [0, 2, 4, 5];
        const trained = [0, 1, 2, 3, 4, 5, 6].filter((row) =>
          rows.mask.subarray(rows.offsets[row], rows.offsets[row + 1]).includes(1),
        );
        expect(trained).toEqual(expect.arrayContaining(kept));
        expect(trained).not.toEqual(expect.arrayContaining([1]));
        const pick = (values: Uint32Array | Float32Array) =>
          trained.flatMap((row) => [...values.subarray(rows.offsets[row], rows.offsets[row + 1])]);
        const filled: TrainBatch = {
          ...pack(trained.map((row) => [...rows.tokens.subarray(rows.offsets[row], rows.offsets[row + 1])])),
          mask: Uint32Array.from(pick(rows.mask)),
          oldLogprobs: Float32Array.from(pick(rows.oldLogprobs!)),
          advantages: perRow(...trained.map((row) => rows.advantages.values[row]!)),
        };
        const [whole, without] = [open(device), open(device)];
        const spec = { ...LOSS, loss_agg_mode };
        const [a, b] = [await whole.forwardBackward(rows, spec), await without.forwardBackward(filled, spec)];
        expectClose([a["actor/loss"]!], [b["actor/loss"]!], { relative: 1e-5, absolute: 1e-7 });
        const [left, right] = await Promise.all(
          [whole, without].map(({ languageModel }) => languageModel.optimizer.gradients.read()),
        );
        for (const [name, gradient] of right!)
          expectClose(left!.get(name)!, gradient, { relative: 1e-4, absolute: 1e-6 });
        whole.languageModel.release();
        without.languageModel.release();
      },
    );

    test("the weights of a supervised batch replace its advantages", async () => {
      const spec = { ...REINFORCE, name: "cross_entropy" };
      const weights = Float32Array.from(batch(1).tokens, (_, t) => (t % 3) - 0.5);
      const losses: number[] = [];
      for (const rows of [
        { ...batch(1), weights },
        { ...batch(1), advantages: perToken(...weights) },
      ]) {
        const backend = open(device);
        losses.push((await backend.forwardBackward(rows, spec))["actor/loss"]!);
        backend.languageModel.release();
      }
      expect(losses[0]).toBe(losses[1]);
    });

    test("advantages of the wrong length for their level are refused", async () => {
      const backend = open(device);
      for (const advantages of [perRow(1, 2), perToken(1, 2, 3, 4, 5, 6, 7), new Float32Array(7)])
        await expect(
          backend.forwardBackward({ ...batch(1), advantages: advantages as Advantages }, LOSS),
        ).rejects.toThrow(/Cannot take advantages: /);
      backend.languageModel.release();
    });

    test("supervised steps fit a sequence", async () => {
      const backend = open(device);
      const { tokens, offsets } = pack([[1, 4, 2, 8, 5, 7]]);
      const rows = {
        tokens,
        offsets,
        mask: Uint32Array.of(0, 1, 1, 1, 1, 1),
        advantages: perRow(1),
      };
      const spec: LossSpec = {
        ...LOSS,
        name: "cross_entropy",
        settings: {},
        entropy_coeff: 0,
        temperature: 1,
      };
      const losses: number[] = [];
      for (let i = 0; i < 25; i++) {
        losses.push((await backend.forwardBackward(rows, spec))["actor/loss"]!);
        await backend.optimStep({ ...OPTIM, weight_decay: 0 });
      }
      expect(losses[0]).toBeGreaterThan(1.5);
      expect(losses[24]).toBeLessThan(0.3);
      backend.languageModel.release();
    });

    test("refuses an invalid batch, naming the field", async () => {
      const backend = open(device);
      const good = batch(1);
      const empty = { ...good, mask: new Uint32Array(good.tokens.length) };
      await expect(backend.forwardBackward(empty, LOSS)).rejects.toThrow(/mask is 0 for every token/);
      const short = { ...good, oldLogprobs: new Float32Array(3) };
      await expect(backend.forwardBackward(short, LOSS)).rejects.toThrow(/oldLogprobs must have one element per token/);
      const outside = { ...good, tokens: good.tokens.map((t, i) => (i === 5 ? 13 : t)) };
      await expect(backend.forwardBackward(outside, LOSS)).rejects.toThrow(/token 5: .*\[0, 13\) \(13\)/);
      await expect(backend.logprobs(good, { policy: "reference", temperature: 1 })).rejects.toThrow(ConfigError);
      const long = pack([new Array(33).fill(1)]);
      await expect(backend.logprobs(long, { policy: "current", temperature: 1 })).rejects.toThrow(
        /context of 32 tokens/,
      );
      backend.languageModel.release();
    });

    test("a gradient that is not finite is an error and leaves the weights unchanged", async () => {
      const backend = open(device);
      const before = await weightsOf(backend);
      await backend.forwardBackward(batch(1), LOSS);
      backend.languageModel.optimizer.gradients.write("model.norm.weight", Float32Array.of(Number.NaN));
      await expect(backend.optimStep(OPTIM)).rejects.toThrow(/norm is not finite/);
      expect(await weightsOf(backend)).toEqual(before);
      expect(backend.weightVersion).toBe(0);
      await backend.forwardBackward(batch(1), LOSS);
      await expect(backend.optimStep(OPTIM)).resolves.toMatchObject({ "actor/lr": 0.01 });
      expect(backend.weightVersion).toBe(1);
      // Bias correction counts completed steps, so the step after the refused one is the first.
      const untouched = open(device);
      await untouched.forwardBackward(batch(1), LOSS);
      await untouched.optimStep(OPTIM);
      expect(await weightsOf(backend)).toEqual(await weightsOf(untouched));
      untouched.languageModel.release();
      backend.languageModel.release();
    });

    test("targets that the model lacks are refused", () => {
      expect(() => open(device, { lora: { ...LORA, targets: ["wq"] } })).toThrow(/adapter on wq/);
    });
  });
});

overDevices("published weights", (device) => {
  test.each([{ lora: undefined }, { lora: LORA }])(
    "stay what they were while training goes on: %o",
    async (options) => {
      const backend = open(device, options);
      const requests = [3, 4, 5].map((seed) => request([1, 2], seed, { max_tokens: 8 }));
      const sample = (weights: "current" | "published") => backend.sample(requests, { weights });
      await backend.publishWeights();
      const before = await sample("published");
      expect(before).toEqual(await sample("current"));
      const [after] = await Promise.all([
        sample("published"),
        backend.forwardBackward(batch(1), LOSS).then(() => backend.optimStep({ ...OPTIM, learning_rate: 0.5 })),
      ]);
      expect([after, await sample("published")]).toEqual([before, before]);
      const trained = await sample("current");
      expect(trained[0]!.weight_version).toBe(1);
      expect(trained.map(({ tokens }) => tokens)).not.toEqual(before.map(({ tokens }) => tokens));
      await backend.publishWeights();
      expect(await sample("published")).toEqual(trained);
      backend.languageModel.release();
    },
  );
});

describe.skipIf(!gpuDevice)("logits that exceed one window", () => {
  test("give the same log-probs and gradients as those of separate windows", async () => {
    const device = gpuDevice as Device;
    const wide = { ...CONFIG, vocabSize: 40_000, layers: 1, contextLength: 600 };
    const next = uniform(9);
    const rows = pack([500, 1].map((length) => Array.from({ length }, () => Math.floor(next() * wide.vocabSize))));
    const mask = Uint32Array.from(rows.tokens, (_, t) => (rows.offsets.includes(t) ? 0 : 1));
    const spec: LossSpec = {
      ...LOSS,
      name: "cross_entropy",
      settings: {},
      temperature: 1,
      loss_agg_mode: "token-sum",
    };
    // 499 rows of 160 kB exceed the 64 MB of a window; the halves do not.
    const whole = open(device, {}, wide);
    const half = open(device, {}, wide);
    const advantages = perRow(1, 1);
    await whole.forwardBackward({ ...rows, mask, advantages }, spec);
    const at = (from: number, to: number) => mask.map((m, t) => (t >= from && t < to ? m : 0));
    await half.forwardBackward({ ...rows, mask: at(0, 250), advantages }, spec);
    await half.forwardBackward({ ...rows, mask: at(250, 501), advantages }, spec);
    const [a, b] = await Promise.all([whole, half].map((backend) => backend.languageModel.optimizer.gradients.read()));
    for (const [name, values] of a!) expectClose(b!.get(name)!, values, { relative: 1e-3, absolute: 1e-4 }, name);
    whole.languageModel.release();
    half.languageModel.release();
  });
});
