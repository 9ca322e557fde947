/**
 * One GRPO step of LoRA on the whole depth of Qwen2.5-0.5B, random weights in bfloat16, within 4 GB of device memory:
 * its loss and the norm of its gradient against PyTorch's.
 */
import { join } from "node:path";
import { expect, test } from "vitest";
import { WebGpuDevice } from "../../src/engine/compute/webgpu/device.ts";
import type { TrainBatch } from "../../src/engine/contract/backend.ts";
import { openAdapter } from "../../src/engine/model/files/peft.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../src/engine/model/lora.ts";
import { LocalBackend } from "../../src/train/backend/local/backend.ts";
import { pack } from "../fixtures/golden_model.ts";
import { uniform } from "../fixtures/numbers.ts";
import { publishedConfig } from "../fixtures/published.ts";
import { PYTHON, type Reference, type ReferenceRequest, withReference } from "./reference.ts";

const MEMORY_BYTES = 4e9;
const LORA = { rank: 16, alpha: 32, targets: [...ATTENTION_TARGETS, ...MLP_TARGETS] };
const CLIP = 0.2;
/** Two groups of four: a prompt of 8 tokens, replies of several lengths. */
const PROMPT = 8;
const REPLIES = [24, 9, 40, 17, 33, 5, 28, 40];

function stepRequest(): ReferenceRequest {
  const config = publishedConfig("Qwen2.5-0.5B");
  const next = uniform(11);
  const token = () => Math.floor(next() * (config.vocab_size as number));
  const prompts = [0, 1].map(() => Array.from({ length: PROMPT }, token));
  const sequences = REPLIES.map((length, i) => [...prompts[i >> 2]!, ...Array.from({ length }, token)]);
  const masks = REPLIES.map((length) => [...Array(PROMPT).fill(0), ...Array(length).fill(1)]);
  const trained = REPLIES.flatMap((length, i) => Array(length).fill([1, -0.5, 0.25, -0.75][i % 4]!));
  return {
    config,
    dtype: "bfloat16",
    seed: 5,
    sequences,
    masks,
    greedy: 0,
    gradients: true,
    lora: { ...LORA, deviation: 0.3 },
    // Ratios on both sides of the clip.
    policy_loss: { shift: trained.map(() => next() * 0.8 - 0.4), advantages: trained, clip: CLIP },
  };
}

/** The same rows as the trainer has them: an array element per token, whether it counts or not. */
async function trainBatch(request: ReferenceRequest, { figures }: Reference): Promise<TrainBatch> {
  const rows = pack(request.sequences);
  const mask = Uint32Array.from(request.masks.flat());
  const logprobs = await figures.read("logprobs");
  const { shift, advantages } = request.policy_loss!;
  const [old, values] = [new Float32Array(mask.length), new Float32Array(mask.length)];
  let r = 0;
  for (const [t, isTrained] of mask.entries()) {
    if (!isTrained) continue;
    old[t] = logprobs[r]! + shift[r]!;
    values[t] = advantages[r]!;
    r++;
  }
  return { ...rows, mask, oldLogprobs: old, advantages: { level: "token", values } };
}

async function gradientNorm({ figures }: Reference): Promise<number> {
  let sum = 0;
  for (const name of figures.tensors.keys())
    if (name.startsWith("grad.")) for (const value of await figures.read(name)) sum += value * value;
  return Math.sqrt(sum);
}

/** Samples a group, and scores it: the trainer's log-probs are the sampler's to the bit. */
async function expectOnPolicy(backend: LocalBackend, { sequences }: ReferenceRequest): Promise<void> {
  const prompt = sequences[0]!.slice(0, PROMPT);
  const params = { max_tokens: 3, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
  const drawn = await backend.sample([1, 2, 3, 4].map((seed) => ({ prompt_ids: prompt, params, seed })));
  const rows = pack(drawn.map(({ tokens }) => [...prompt, ...tokens]));
  const { logprobs } = await backend.logprobs(rows, { policy: "current", temperature: 1 });
  for (const [i, { logprobs: own }] of drawn.entries())
    expect([...logprobs.subarray(rows.offsets[i]! + PROMPT, rows.offsets[i + 1])]).toEqual([...own]);
}

test.skipIf(!PYTHON)("a GRPO step of Qwen2.5-0.5B within 4 GB", async () => {
  const request = stepRequest();
  await withReference(request, async (reference) => {
    const device = await WebGpuDevice.open({ memoryBudgetBytes: MEMORY_BYTES });
    const backend = await LocalBackend.open(join(reference.folder, "model"), { lora: LORA, device: device! });
    try {
      const dir = join(reference.folder, "adapter");
      backend.languageModel.adapter!.load(await openAdapter(dir), dir);
      backend.languageModel.refresh();
      await expectOnPolicy(backend, request);
      const metrics = await backend.forwardBackward(await trainBatch(request, reference), {
        name: "vanilla",
        loss_agg_mode: "token-mean",
        settings: { clip_ratio_low: CLIP, clip_ratio_high: CLIP, clip_ratio_c: 10 },
        entropy_coeff: 0,
        temperature: 1,
      });
      const step = await backend.optimStep({
        learning_rate: 1e-5,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0,
        grad_clip_norm: 1,
      });
      const [loss] = await reference.figures.read("loss");
      const norm = await gradientNorm(reference);
      expect(Math.abs(metrics["actor/pg_loss"]! - loss!)).toBeLessThan(1e-3 * Math.abs(loss!));
      expect(Math.abs(step["actor/grad_norm"]! - norm)).toBeLessThan(1e-3 * norm);
      expect(device!.memory.peak).toBeLessThan(MEMORY_BYTES);
    } finally {
      backend.close();
    }
  });
});
