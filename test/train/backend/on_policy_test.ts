/** The first step on fresh rollouts: the trainer's log-probs are the sampler's, bit for bit, so the ratio is exactly 1. */
import { expect, test } from "vitest";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import type { EstimateAdvantages } from "../../../src/train/loop/contract.ts";
import { train } from "../../../src/train/loop/train.ts";
import { singleTurn } from "../../../src/train/task/rollout.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { modelFolder } from "../../fixtures/golden_model.ts";
import { MemoryLogger } from "../../fixtures/loop.ts";
import { hasShared } from "../../fixtures/shared.ts";

const LORA = { rank: 4, alpha: 8, targets: ["q_proj", "o_proj", "down_proj"] };
/** Every kind of matrix: fused, single, and the output matrix, which is the model's embedding table. */
const BESIDE = { rank: 3, alpha: 8, targets: ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"] };
const OPENINGS = ["Once upon a time", "The cat sat", "One day, a", "Lily had a big red ball. She"];

/** Advantages of both signs, so that the loss has a slope. */
const alternate: EstimateAdvantages = (rewards) => ({
  level: "row",
  values: rewards.map((_, i) => (i % 2 ? 1 : -1)),
});

overDevices("the first on-policy step", (device) => {
  test.skipIf(!hasShared).each<[string, LanguageModelOptions | undefined, boolean]>([
    ["all weights, old log-probs from the sampler", undefined, true],
    ["LoRA, old log-probs from the sampler", { lora: LORA }, true],
    ["LoRA beside the weights, old log-probs from the sampler", { lora: BESIDE, foldAdapter: false }, true],
    ["LoRA beside the weights, old log-probs from a forward pass", { lora: BESIDE, foldAdapter: false }, false],
    ["LoRA beside bfloat16 weights, old log-probs from a forward pass", { lora: BESIDE, dtype: "bfloat16" }, false],
    ["all weights, old log-probs from a forward pass", undefined, false],
  ])("has a ratio of exactly 1 and a KL of exactly 0: %s", async (_, how, bypass_mode) => {
    const folder = await modelFolder("stories260k");
    // Small passes, so that rows train in other batches than they were sampled in.
    const model = await LanguageModel.load(device, folder, { ...how, maxTokensPerPass: 64 });
    const log = new MemoryLogger();
    const length = device.info.kind === "cpu" ? 4 : 16;
    await train({
      backend: new LocalBackend({ model, tokenizer: folder.tokenizer, name: "stories" }),
      tasks: {
        train: OPENINGS.map((instruction, i) => ({ id: `story-${i}`, instruction, metadata: {} })),
        val: [],
      },
      rollout: singleTurn("teller", (text) => text.length % 2),
      estimate: alternate,
      settings: {
        data: { train_batch_size: 4 },
        rollout: { n: 4, train: { max_tokens: length, temperature: 0.7 }, val: { max_tokens: 1 } },
        trainer: { total_batches: 2, test_freq: 0, save_freq: 0 },
        training: { learning_rate: 1e-3, seed: 1 },
        algorithm: { rollout_correction: { bypass_mode } },
      },
      loggers: [log],
    });
    const steps = log.of("train").map(({ metrics }) => metrics);
    expect(steps).toHaveLength(2);
    for (const metrics of steps) {
      expect(Math.abs(metrics["actor/ppo_kl"]!)).toBe(0);
      expect(metrics["actor/pg_clipfrac"]).toBe(0);
      expect(metrics["actor/grad_norm"]).toBeGreaterThan(0);
      if (!bypass_mode) expect(metrics["training/rollout_probs_diff_max"]).toBe(0);
    }
    model.release();
  });
});
