/**
 * The cost of Tinker's protocol: the client backend and the server over a loopback socket, with an engine that computes
 * nothing. The whole time of a call is overhead: arrays to bytes and back, HTTP, futures, the host's share of the loss.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { LossSpec, OptimParams, SampleRequest, TrainBatch } from "../src/engine/contract/backend.ts";
import type { Trainer, TrainerConfig } from "../src/engine/contract/engine.ts";
import { listen } from "../src/leaves/http/listen.ts";
import { createApp } from "../src/serve/tinker/app.ts";
import { Checkpoints } from "../src/serve/tinker/checkpoint/checkpoints.ts";
import { TinkerService } from "../src/serve/tinker/service.ts";
import { TinkerBackend } from "../src/train/backend/tinker/backend.ts";
import { httpFetch } from "../src/train/run/net/http.ts";
import { ToyEngine } from "../test/fixtures/toy_engine.ts";
import { check, heading, report, time } from "./harness.ts";

const KEY = "tml-bench";
const LOSS: LossSpec = {
  name: "cross_entropy",
  loss_agg_mode: "token-sum",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};
const ADAM: OptimParams = {
  learning_rate: 1e-4,
  beta1: 0.9,
  beta2: 0.95,
  eps: 1e-8,
  weight_decay: 0,
  grad_clip_norm: 0,
};
const LORA = { rank: 8, train_attn: true, train_mlp: true, train_unembed: true };

/** Returns a log-prob of -1 for every token, at once. */
class IdleEngine extends ToyEngine {
  override async createTrainer(config: TrainerConfig): Promise<Trainer> {
    const trainer = await super.createTrainer(config);
    trainer.forwardBackward = async ({ targets }) => ({
      logprobs: new Float32Array(targets.length).fill(-1),
      losses: new Float32Array(targets.length).fill(1),
      metrics: {},
    });
    return trainer;
  }
}

export async function run(): Promise<void> {
  const root = await mkdtemp(join(tmpdir(), "grpu-tinker-bench-"));
  const checkpoints = await Checkpoints.open(root);
  const service = new TinkerService({ models: [{ engine: new IdleEngine(), names: ["toy"] }], checkpoints });
  const listening = await listen(createApp({ service }), { host: "127.0.0.1", port: 0 });
  const connect = (fuse: boolean) =>
    TinkerBackend.open({
      baseUrl: listening.url,
      apiKey: KEY,
      fetch: httpFetch,
      sdkVersion: "0.25.0",
      baseModel: "toy",
      lora: LORA,
      fuse,
    });
  const [plain, fused] = [await connect(false), await connect(true)];
  try {
    heading("Tinker's protocol on loopback, with an engine that computes nothing");
    for (const [rows, length] of [
      [8, 32],
      [64, 256],
      [256, 512],
    ])
      await timeSteps({ plain, fused }, batchOf(rows!, length!));
    await timeSamples(plain);
  } finally {
    plain.close();
    fused.close();
    await listening.close();
    service.close();
    await rm(root, { recursive: true });
  }
}

function batchOf(rows: number, length: number): TrainBatch {
  const offsets = Uint32Array.from({ length: rows + 1 }, (_, i) => i * length);
  const tokens = Uint32Array.from({ length: rows * length }, (_, t) => t % 97);
  const mask = tokens.map((_, t) => (t % length === 0 ? 0 : 1));
  return { offsets, tokens, mask, advantages: { level: "row", values: new Float32Array(rows).fill(0.5) } };
}

/** One step of training: a gradient and the optimiser. */
async function timeSteps(of: { plain: TinkerBackend; fused: TinkerBackend }, batch: TrainBatch): Promise<void> {
  const metrics = await of.plain.forwardBackward(batch, LOSS);
  const expected = batch.mask.reduce((sum, one) => sum + 0.5 * one, 0);
  check(Math.abs(metrics["actor/loss"]! / expected - 1) < 1e-6, "a step through the wire");
  await of.plain.optimStep(ADAM);
  const what = `${batch.offsets.length - 1} rows of ${batch.offsets[1]} tokens`;
  const line = (name: string, timing: Awaited<ReturnType<typeof time>>) =>
    report({ what: `${name}, ${what}`, rate: 1 / timing.median, unit: "steps/s", timing });
  // A run takes hundreds of steps; the first dozens, before the engine compiles the code, take twice as long.
  const options = { rounds: 50, warmup: 50 };
  line(
    "step",
    await time(async () => {
      await of.plain.forwardBackward(batch, LOSS);
      await of.plain.optimStep(ADAM);
    }, options),
  );
  line("fused step", await time(() => of.fused.forwardBackwardAndOptimStep!([{ batch, loss: LOSS }], ADAM), options));
}

async function timeSamples(backend: TinkerBackend): Promise<void> {
  const params = { max_tokens: 8, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
  const requests: SampleRequest[] = Array.from({ length: 256 }, (_, seed) => ({
    prompt_ids: [1, 2, 3],
    params,
    seed,
  }));
  const drawn = await backend.sample(requests);
  check(drawn.length === 256 && drawn.every(({ tokens }) => tokens.length === 1), "samples through the wire");
  const timing = await time(() => backend.sample(requests), { rounds: 9 });
  report({ what: "256 samples", rate: 256 / timing.median, unit: "samples/s", timing });
}
