/**
 * The same gradient and optimiser's step by the two contracts: a run's own backend on this machine, and a client of `grpu serve tinker`
 * over a loopback socket. One model, one adapter, one loss (`importance_sampling`), alternating.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Device } from "../src/engine/compute/device.ts";
import type { Backend, LossSpec, TrainBatch } from "../src/engine/contract/backend.ts";
import type { ModelConfig } from "../src/engine/model/config.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../src/engine/model/lora.ts";
import { listen } from "../src/leaves/http/listen.ts";
import { createApp } from "../src/serve/tinker/app.ts";
import { Checkpoints } from "../src/serve/tinker/checkpoint/checkpoints.ts";
import { TinkerService } from "../src/serve/tinker/service.ts";
import { LocalBackend } from "../src/train/backend/local/backend.ts";
import { LocalEngine } from "../src/train/backend/local/engine.ts";
import { TinkerBackend } from "../src/train/backend/tinker/backend.ts";
import { httpFetch } from "../src/train/run/net/http.ts";
import { check, heading, openBenchDevice, report, time } from "./harness.ts";
import { OPTIM, STORIES_SHAPE } from "./model_bench.ts";
import { writeRandomModel } from "./peers/random_model.ts";

const LOSS: LossSpec = {
  name: "importance_sampling",
  loss_agg_mode: "token-sum",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};
const RANK = 8;
const SHAPES: readonly (readonly [name: string, config: ModelConfig, rows: number, length: number])[] = [
  ["260K", STORIES_SHAPE, 64, 128],
  ["6M", { ...STORIES_SHAPE, vocabSize: 4096, hiddenSize: 256, intermediateSize: 688, headDim: 32 }, 16, 128],
];

export async function run(): Promise<void> {
  heading("A LoRA gradient by a run's own backend, and by a client of the server on loopback");
  // The server closes its device.
  for (const shape of SHAPES) await timeShape(await openBenchDevice(), shape);
}

async function timeShape(device: Device, [name, config, rows, length]: (typeof SHAPES)[number]): Promise<void> {
  const root = await mkdtemp(join(tmpdir(), "grpu-engine-bench-"));
  const folder = join(root, "model");
  await writeRandomModel(folder, config);
  const lora = { rank: RANK, alpha: 32, targets: [...ATTENTION_TARGETS, ...MLP_TARGETS] };
  const local = await LocalBackend.open(folder, { device, lora });
  const engine = await LocalEngine.open({ device, folder });
  const service = new TinkerService({ models: [{ engine, names: [name] }], checkpoints: await Checkpoints.open(root) });
  const listening = await listen(createApp({ service }), { host: "127.0.0.1", port: 0 });
  const client = await TinkerBackend.open({
    ...{ baseUrl: listening.url, apiKey: "tml-bench", fetch: httpFetch, sdkVersion: "0.25.0", baseModel: name },
    lora: { rank: RANK, train_attn: true, train_mlp: true, train_unembed: false },
  });
  try {
    const batch = await batchOf(local, { rows, length, vocabSize: config.vocabSize });
    const rate = await timeBoth({ local, client }, batch);
    for (const [who, { seconds, timing }] of Object.entries(rate))
      report({
        what: `gradient of ${rows} rows of ${length} tokens, ${name} parameters, ${who}`,
        ...{ rate: (rows * length) / seconds, unit: "tokens/s", timing },
        against: who === "client" ? { name: "local", rate: (rows * length) / rate.local.seconds } : undefined,
      });
  } finally {
    local.languageModel.release();
    client.close();
    await listening.close();
    service.close();
    await rm(root, { recursive: true });
  }
}

async function batchOf(
  local: LocalBackend,
  { rows, length, vocabSize }: { rows: number; length: number; vocabSize: number },
): Promise<TrainBatch> {
  const offsets = Uint32Array.from({ length: rows + 1 }, (_, i) => i * length);
  const tokens = Uint32Array.from({ length: rows * length }, (_, t) => (t * 7919) % vocabSize);
  const mask = tokens.map((_, t) => (t % length === 0 ? 0 : 1));
  const { logprobs } = await local.logprobs({ tokens, offsets }, { policy: "current", temperature: 1 });
  const values = Float32Array.from({ length: rows }, (_, row) => (row % 2 === 0 ? 0.5 : -0.5));
  return { offsets, tokens, mask, oldLogprobs: logprobs, advantages: { level: "row", values } };
}

/** Alternates, so that whatever else the machine does slows both. */
async function timeBoth(of: { local: Backend; client: Backend }, batch: TrainBatch) {
  const losses = { local: 0, client: 0 };
  const step = (who: keyof typeof of) => async () => {
    losses[who] = (await of[who].forwardBackward(batch, LOSS))["actor/loss"] ?? Number.NaN;
    await of[who].optimStep({ ...OPTIM, learning_rate: 0 });
  };
  const timings = { local: [] as number[], client: [] as number[] };
  for (let round = 0; round < 6; round++)
    for (const who of ["local", "client"] as const) {
      const { median } = await time(step(who), { rounds: 1, warmup: round === 0 ? 1 : 0 });
      timings[who].push(median);
    }
  check(Math.abs(losses.local - losses.client) < 1e-3, `equal losses (${losses.local}, ${losses.client})`);
  return { local: spread(timings.local), client: spread(timings.client) };
}

function spread(seconds: number[]) {
  const [least, ...rest] = seconds.sort((a, b) => a - b) as [number, ...number[]];
  const median = seconds[seconds.length >> 1]!;
  return { seconds: median, timing: { median, least, most: rest.at(-1) ?? least } };
}
