/** The local backend against results of PyTorch and transformers (float32), on both devices. */
import { beforeAll, describe, expect, test } from "vitest";
import type { LossSpec, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { perToken } from "../../fixtures/advantages.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { type GoldenModel, goldenModel, MODEL_NAMES, modelFolder } from "../../fixtures/golden_model.ts";
import { expectClose } from "../../fixtures/numbers.ts";
import { hasShared } from "../../fixtures/shared.ts";

const LOGPROB_TOLERANCE = { relative: 0, absolute: 1e-4 };
const GRADIENT_TOLERANCE = 1e-3;
const ADAM_TOLERANCE = 1e-2;
const LOSS_TOLERANCE = 0.01;

const LOSSES = {
  cross_entropy: "cross_entropy",
  importance_sampling: "importance_sampling",
  ppo: "ppo",
  cispo: "tinker.cispo",
  dro: "tinker.dro",
} as const;

const FOLDS = [
  { where: "folded into the weights", foldAdapter: true },
  { where: "beside the weights", foldAdapter: false },
];

describe.skipIf(!hasShared)("golden results", () => {
  for (const name of MODEL_NAMES)
    overDevices(name, (device) => {
      let golden: GoldenModel;
      beforeAll(async () => {
        golden = await goldenModel(name);
      });

      const load = async (options?: LanguageModelOptions) =>
        LanguageModel.load(device, await modelFolder(name), options);

      test("log-probabilities and entropies of every sequence", async () => {
        const model = await load();
        const { packed, figures } = golden;
        const got = await model.logprobs(packed, { policy: "current", temperature: 1 });
        for (let i = 0; i + 1 < packed.offsets.length; i++) {
          const [from, to] = [packed.offsets[i]! + 1, packed.offsets[i + 1]];
          expectClose(got.logprobs.subarray(from, to), await figures.read(`base.${i}.logprobs`), LOGPROB_TOLERANCE);
          const entropy = (await figures.read(`base.${i}.entropy`)).subarray(0, to! - from);
          expectClose(got.entropy.subarray(from, to), entropy, LOGPROB_TOLERANCE, "entropy");
        }
        model.release();
      });

      test("greedy continuation, token for token, with the log-probs that scoring gives", async () => {
        const model = await load();
        const prompt_ids = [...(await golden.figures.readIntegers("greedy.prompt"))];
        const whole = [...(await golden.figures.readIntegers("greedy.tokens"))];
        const params = { max_tokens: whole.length - prompt_ids.length, temperature: 0, top_p: 1, top_k: -1 };
        const [sampled] = await model.sample([{ prompt_ids, seed: 0, params: { ...params, stop_token_ids: [] } }], {
          weightVersion: 0,
        });
        expect(sampled!.tokens).toEqual(whole.slice(prompt_ids.length));
        const offsets = Uint32Array.of(0, whole.length);
        const scored = await model.logprobs(
          { tokens: Uint32Array.from(whole), offsets },
          { policy: "current", temperature: 1 },
        );
        expectClose(sampled!.logprobs, scored.logprobs.subarray(prompt_ids.length), LOGPROB_TOLERANCE);
        model.release();
      });

      test("gradient of every base weight", async () => {
        const model = await load();
        const backend = new LocalBackend({ model, name });
        const tokens = Uint32Array.from(await golden.fullGradients.readIntegers("tokens"));
        const mask = new Uint32Array(tokens.length).fill(1);
        mask[0] = 0;
        const advantages = perToken(...mask.map(() => 1));
        const batch = { tokens, offsets: Uint32Array.of(0, tokens.length), mask, advantages };
        await backend.forwardBackward(batch, spec("cross_entropy"));
        const gradients = await model.base.readTensors(model.optimizer.gradients);
        for (const [tensor, got] of gradients) {
          const expected = await golden.fullGradients.read(`grad.${tensor}`);
          expect(relativeDistance(got, expected), tensor).toBeLessThan(GRADIENT_TOLERANCE);
        }
        model.release();
      });

      const adapted = (Object.keys(LOSSES) as (keyof typeof LOSSES)[]).flatMap((loss) =>
        FOLDS.map((it) => ({ loss, ...it })),
      );
      for (const { loss, where, foldAdapter } of adapted)
        test(`${loss} with an adapter ${where}: value and gradients`, async () => {
          const { backend, model } = await withAdapter(await load({ ...lora(golden), foldAdapter }), golden);
          const metrics = await backend.forwardBackward(await lossBatch(golden, loss), specOf(golden, loss));
          expect(relative(metrics["actor/loss"]!, golden.meta.loss_sum[loss]!)).toBeLessThan(1e-3);
          const gradients = await model.optimizer.gradients.read();
          for (const [factor, got] of gradients) {
            const expected = await golden.figures.read(`grad.${loss}.${factor}`);
            expect(relativeDistance(got, expected), factor).toBeLessThan(GRADIENT_TOLERANCE);
          }
          model.release();
        });

      test.each(FOLDS)("ten AdamW steps of an adapter $where", async ({ foldAdapter }) => {
        const { backend, model } = await withAdapter(await load({ ...lora(golden), foldAdapter }), golden);
        const batch = await lossBatch(golden, "ppo");
        const { lr, beta1, beta2, eps, loss_sum } = golden.meta.adam;
        const params = { learning_rate: lr, beta1, beta2, eps, weight_decay: 0, grad_clip_norm: 0 };
        for (const [step, expected] of loss_sum.entries()) {
          const metrics = await backend.forwardBackward(batch, specOf(golden, "ppo"));
          expect(relative(metrics["actor/loss"]!, expected), `loss of step ${step}`).toBeLessThan(LOSS_TOLERANCE);
          await backend.optimStep(params);
          if (step > 0) continue;
          for (const [factor, got] of await model.adapter!.values.read()) {
            const after = await golden.figures.read(`adam.step1.${factor}`);
            const before = await golden.figures.read(`lora.init.${factor}`);
            expect(relativeDistance(minus(got, before), minus(after, before)), factor).toBeLessThan(ADAM_TOLERANCE);
          }
        }
        model.release();
      });
    });
});

function lora({ meta }: GoldenModel): LanguageModelOptions {
  return { lora: meta.lora };
}

/** Replaces the adapter's initial values by the stored ones. */
async function withAdapter(model: LanguageModel, golden: GoldenModel) {
  for (const factor of model.adapter!.values.layout.entries.keys())
    model.adapter!.values.write(factor, await golden.figures.read(`lora.init.${factor}`));
  model.refresh();
  return { model, backend: new LocalBackend({ model, name: "golden" }) };
}

function spec(name: string, settings: Record<string, number> = {}): LossSpec {
  return { name, loss_agg_mode: "token-sum", settings, entropy_coeff: 0, temperature: 1 };
}

function specOf({ meta }: GoldenModel, loss: keyof typeof LOSSES): LossSpec {
  return spec(LOSSES[loss], meta.loss_fn_config[loss]);
}

/** Sequences 0-4 with the stored inputs, which are aligned with the tokens after the first. */
async function lossBatch({ figures, packed }: GoldenModel, loss: keyof typeof LOSSES): Promise<TrainBatch> {
  const offsets = packed.offsets.slice(0, 6);
  const tokens = packed.tokens.slice(0, offsets[5]);
  const spread = async (field: string) => {
    const all = new Float32Array(tokens.length);
    for (let i = 0; i < 5; i++) all.set(await figures.read(`loss.${i}.${field}`), offsets[i]! + 1);
    return all;
  };
  const mask = new Uint32Array(tokens.length).fill(1);
  for (const start of offsets.subarray(0, 5)) mask[start] = 0;
  const sampling = await spread("sampling_logprobs");
  return loss === "cross_entropy"
    ? { tokens, offsets, mask, advantages: { level: "token", values: await spread("weights") } }
    : {
        tokens,
        offsets,
        mask,
        advantages: { level: "token", values: await spread("advantages") },
        oldLogprobs: sampling,
      };
}

function minus(a: Float32Array, b: Float32Array): Float64Array {
  return Float64Array.from(a, (x, i) => x - b[i]!);
}

function relative(a: number, b: number): number {
  return Math.abs(a - b) / Math.abs(b);
}

function relativeDistance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let apart = 0;
  let size = 0;
  for (let i = 0; i < b.length; i++) {
    apart += (a[i]! - b[i]!) ** 2;
    size += b[i]! ** 2;
  }
  return Math.sqrt(apart / Math.max(size, 1e-30));
}
