/**
 * Training and sampling tokens per second of a 260K-parameter Llama (the shape of llama2.c's stories260K, random
 * weights), against the same work in PyTorch where `python3` has it.
 */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { Device } from "../src/engine/compute/device.ts";
import type { LossSpec, SampleRequest, TrainBatch } from "../src/engine/contract/backend.ts";
import type { ModelConfig } from "../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../src/engine/model/language_model.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../src/engine/model/lora.ts";
import { LocalBackend } from "../src/train/backend/local/backend.ts";
import { check, heading, openBenchDevice, report, type Timing, time } from "./harness.ts";

export const STORIES_SHAPE: ModelConfig = {
  architecture: "llama",
  vocabSize: 512,
  hiddenSize: 64,
  intermediateSize: 172,
  layers: 5,
  heads: 8,
  kvHeads: 4,
  headDim: 8,
  contextLength: 512,
  rmsNormEps: 1e-5,
  ropeTheta: 10_000,
  tied: true,
  qkNorm: false,
  qkvBias: false,
  eosTokenIds: [2],
};
export const BATCH = 64;
export const LENGTH = 128;
/** The clipped loss that training is timed with. */
export const CLIPPED_LOSS: LossSpec = {
  name: "vanilla",
  loss_agg_mode: "token-mean",
  settings: { clip_ratio_low: 0.2, clip_ratio_high: 0.2, clip_ratio_c: 3 },
  entropy_coeff: 0,
  temperature: 1,
};
/** The optimiser that training is timed with. */
export const OPTIM = { learning_rate: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };
export const LORA = { rank: 8, alpha: 16, targets: [...ATTENTION_TARGETS, ...MLP_TARGETS] };

type Peer = Readonly<Record<string, number>>;

export async function run(): Promise<void> {
  const peer = torchRates();
  const device = await openBenchDevice();
  heading(`A 260K-parameter Llama on ${device.info.description}: ${BATCH} sequences of ${LENGTH} tokens`);
  await timeSampling(device, peer);
  await timeTraining(device, { what: "train_full", title: "training, all weights", peer });
  await timeTraining(device, {
    what: "train_lora",
    title: "training, LoRA rank 8",
    options: { lora: LORA },
    peer,
  });
  device.destroy();
}

function open(device: Device, options: LanguageModelOptions = {}): LocalBackend {
  return new LocalBackend({ model: LanguageModel.create(device, STORIES_SHAPE, options), name: "bench" });
}

async function timeSampling(device: Device, peer: Peer): Promise<void> {
  const { rate, timing } = await samplingRate(device);
  report({ what: `sampling, batch ${BATCH}`, rate, unit: "tokens/s", timing, against: against(peer, "sample") });
}

/** Tokens per second, and the time of the whole batch. */
interface Rate {
  readonly rate: number;
  readonly timing: Timing;
}

/** Of sampling {@link BATCH} sequences of {@link LENGTH} tokens. */
export async function samplingRate(device: Device): Promise<Rate> {
  const backend = open(device);
  const params = { max_tokens: LENGTH - 1, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
  const requests: SampleRequest[] = Array.from({ length: BATCH }, (_, seed) => ({
    prompt_ids: [1],
    seed,
    params,
  }));
  const [first] = await backend.sample(requests.slice(0, 1));
  const all = await backend.sample(requests);
  check(`${all[0]!.tokens}` === `${first!.tokens}`, "sampling");
  const timing = await time(() => backend.sample(requests));
  backend.languageModel.release();
  return { rate: (BATCH * (LENGTH - 1)) / timing.median, timing };
}

async function timeTraining(
  device: Device,
  it: { what: string; title: string; options?: LanguageModelOptions; peer: Peer },
): Promise<void> {
  const { rate, timing } = await trainingRate(device, it.options);
  report({ what: it.title, rate, unit: "tokens/s", timing, against: against(it.peer, it.what) });
}

/** Of a gradient and an optimiser step over {@link BATCH} sequences of {@link LENGTH} tokens. */
export async function trainingRate(device: Device, options?: LanguageModelOptions): Promise<Rate> {
  const backend = open(device, options);
  const rows = randomBatch();
  const { logprobs } = await backend.logprobs(rows, { policy: "current", temperature: 1 });
  const batch = { ...rows, oldLogprobs: logprobs };
  const losses: number[] = [];
  const timing = await time(async () => {
    losses.push((await backend.forwardBackward(batch, CLIPPED_LOSS))["actor/loss"]!);
    await backend.optimStep(OPTIM);
  });
  check(losses[losses.length - 1]! < losses[0]!, "training");
  backend.languageModel.release();
  return { rate: batch.tokens.length / timing.median, timing };
}

function randomBatch(): TrainBatch {
  const tokens = Uint32Array.from({ length: BATCH * LENGTH }, (_, i) => (i * 7919) % STORIES_SHAPE.vocabSize);
  const mask = Uint32Array.from(tokens, (_, t) => (t % LENGTH === 0 ? 0 : 1));
  const offsets = Uint32Array.from({ length: BATCH + 1 }, (_, i) => i * LENGTH);
  return {
    tokens,
    offsets,
    mask,
    advantages: { level: "row", values: Float32Array.from({ length: BATCH }, (_, i) => (i % 2 ? 1 : -1)) },
  };
}

function against(peer: Peer, what: string) {
  return peer[what] ? { name: "PyTorch", rate: peer[what] } : undefined;
}

/** Rates of the peer script by name; empty, with a message, where there is no PyTorch. */
function torchRates(): Peer {
  const script = fileURLToPath(new URL("./peer_torch.py", import.meta.url));
  const { stdout, error } = spawnSync("python3", [script, "--batch", `${BATCH}`, "--length", `${LENGTH}`], {
    encoding: "utf8",
  });
  if (error) {
    console.error("peer skipped: there is no python3");
    return {};
  }
  const lines = stdout.split("\n").filter((line) => line.startsWith("{"));
  const results = lines.map((line) => JSON.parse(line) as { what?: string; tokens_per_s?: number; skipped?: string });
  for (const { skipped } of results) if (skipped) console.error(`peer skipped: ${skipped}`);
  return Object.fromEntries(results.flatMap(({ what, tokens_per_s }) => (what ? [[what, tokens_per_s ?? 0]] : [])));
}
