/**
 * GRPO in one file, top to bottom: sample, reward, advantages, one optimiser step, again. No trainer, no configuration.
 *
 *     npx tsx examples/rl_loop/rl_loop.ts MODEL_DIR                                # a LoRA adapter on this machine's GPU
 *     TINKER_API_KEY=... npx tsx examples/rl_loop/rl_loop.ts MODEL_DIR --tinker URL   # the same on a Tinker service
 *
 * Both backends have the same five methods that matter here: sample, logprobs, forwardBackward, optimStep, save. Names of
 * arrays end in their shape: P prompts of a batch, G answers to each, T tokens packed end to end.
 */
import { mkdir } from "node:fs/promises";
import {
  type Backend,
  byteTokenizer,
  LocalBackend,
  openModelFolder,
  type SampledSequence,
  TinkerBackend,
  type TrainBatch,
} from "grpu";
import { groupAdvantages } from "grpu/algorithm";

const config = {
  prompts_per_batch: 4,
  group_size: 8,
  steps: Number(process.env.STEPS ?? 30),
  max_tokens: 48,
  temperature: 1,
  learning_rate: 2e-3,
  lora_rank: 8,
  output: process.env.OUTPUT ?? "checkpoints/rl_loop",
};

const PROMPTS = [
  "There was a small house near the lake.",
  "It was a cold day.",
  "Leo was very hungry.",
  "Mia went to the park with her mom.",
  "One night, the moon was big and bright.",
  "Ben had a red ball.",
];

const ANIMALS = /\b(dog|cat|bird|bear|fish|frog|duck|bunny)s?\b/i;

/** 0.75 for an animal, 0.25 for a whole sentence at the end. */
function reward(story: string): number {
  return (ANIMALS.test(story) ? 0.75 : 0) + (/[.!?]["']?\s*$/.test(story) ? 0.25 : 0);
}

// --- The backend: this machine, or a service that speaks Tinker's protocol.

const [folder, flag, baseUrl] = process.argv.slice(2);
if (!folder) throw new Error("usage: rl_loop.ts MODEL_DIR [--tinker URL]");
const backend = flag === "--tinker" ? await openTinker(folder, baseUrl) : await openLocal(folder);
const tokenizer = backend.tokenizer ?? byteTokenizer();

function openLocal(folder: string): Promise<Backend> {
  return LocalBackend.open(folder, { lora: { rank: config.lora_rank }, seed: 0 });
}

async function openTinker(folder: string, baseUrl = "http://127.0.0.1:8000"): Promise<Backend> {
  const { tokenizer } = await openModelFolder(folder);
  const lora = { rank: config.lora_rank, seed: 0, train_attn: true, train_mlp: true, train_unembed: false };
  const apiKey = process.env.TINKER_API_KEY ?? "";
  const model = { baseModel: folder, baseModelFolder: folder, lora, tokenizer };
  return TinkerBackend.open({ ...model, baseUrl, apiKey, sdkVersion: "0.25.0" });
}

// --- The loop.

const optimizer = { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };

for (let step = 0; step < config.steps; step++) {
  const started = performance.now();
  const { prompts_per_batch: P, group_size: G } = config;

  // 1. P prompts, each G times. A seed fixes its sequence, whatever else is drawn with it.
  const prompts_P = Array.from({ length: P }, (_, p) => PROMPTS[(step * P + p) % PROMPTS.length] as string);
  const params = { max_tokens: config.max_tokens, temperature: config.temperature, top_p: 1, top_k: 0 };
  const requests_PG = prompts_P.flatMap((prompt, p) =>
    Array.from({ length: G }, (_, g) => ({
      prompt_ids: tokenizer.encode(prompt),
      params: { ...params, stop_token_ids: backend.model.eosTokenIds },
      seed: (step * P + p) * G + g,
    })),
  );
  const samples_PG = await backend.sample(requests_PG);

  // 2. What each answer is worth, and how much better than its siblings that is.
  const rewards_PG = samples_PG.map(({ tokens }) => reward(tokenizer.decode(tokens)));
  const rewards_P_G = prompts_P.map((_, p) => rewards_PG.slice(p * G, (p + 1) * G));
  const advantages_PG = groupAdvantages(rewards_P_G, "grpo").flat();

  // 3. Rows of prompt and answer, end to end; only the answer is trained on. A group of equal rewards teaches nothing.
  const rows = samples_PG
    .map((sample, i) => ({
      prompt_ids: requests_PG[i]?.prompt_ids ?? [],
      sample,
      advantage: advantages_PG[i] ?? 0,
    }))
    .filter(({ advantage }) => advantage !== 0);
  const metrics: Record<string, number> = {};
  if (rows.length > 0) {
    // 4. PPO's clipped loss against the log-probs of the sampler, then one step of AdamW.
    const loss = {
      name: "vanilla",
      loss_agg_mode: "token-mean",
      settings: { clip_ratio_low: 0.2, clip_ratio_high: 0.2 },
      entropy_coeff: 0,
      temperature: config.temperature,
    };
    Object.assign(metrics, await backend.forwardBackward(packRows(rows), loss));
    Object.assign(metrics, await backend.optimStep({ ...optimizer, learning_rate: config.learning_rate }));
  }

  // 5. Say how it goes.
  const mean = rewards_PG.reduce((sum, value) => sum + value, 0) / rewards_PG.length;
  const line = { step, reward: mean, ...metrics, seconds: (performance.now() - started) / 1000 };
  console.log(JSON.stringify(line));
}

await mkdir(config.output, { recursive: true });
await backend.save(config.output);
backend.close();

/** Rows of tokens, end to end. Per-token numbers stand at the token that they describe. */
function packRows(
  rows: readonly { prompt_ids: readonly number[]; sample: SampledSequence; advantage: number }[],
): TrainBatch {
  const lengths = rows.map(({ prompt_ids, sample }) => prompt_ids.length + sample.tokens.length);
  const offsets = new Uint32Array(rows.length + 1);
  lengths.forEach((length, i) => {
    offsets[i + 1] = (offsets[i] ?? 0) + length;
  });
  const total_T = offsets[rows.length] ?? 0;
  const tokens_T = new Uint32Array(total_T);
  const mask_T = new Uint32Array(total_T);
  const oldLogprobs_T = new Float32Array(total_T);
  rows.forEach(({ prompt_ids, sample }, i) => {
    const at = offsets[i] ?? 0;
    const answer = at + prompt_ids.length;
    tokens_T.set([...prompt_ids, ...sample.tokens], at);
    mask_T.fill(1, answer, offsets[i + 1]);
    oldLogprobs_T.set(sample.logprobs, answer);
  });
  const values = Float32Array.from(rows, ({ advantage }) => advantage);
  return {
    tokens: tokens_T,
    offsets,
    mask: mask_T,
    oldLogprobs: oldLogprobs_T,
    advantages: { level: "row", values },
  };
}
