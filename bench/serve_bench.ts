/**
 * The Tinker server under load: 64 clients that sample without pause and two that train, for two minutes
 * (SERVE_BENCH_SECONDS changes it). It must answer without errors, in constant memory and evenly to all clients.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { saveLocalCheckpoint } from "../src/backend/local/checkpoint.ts";
import { LocalEngine } from "../src/backend/local/engine.ts";
import { LanguageModel } from "../src/model/language_model.ts";
import { runServeLoad } from "../test/fixtures/serve_load.ts";
import { check, heading, openBenchDevice, remark } from "./harness.ts";
import { STORIES_SHAPE } from "./model_bench.ts";

const SAMPLERS = 64;
const TRAINERS = 2;
const MEBI = 2 ** 20;

export async function run(): Promise<void> {
  const seconds = Number(process.env.SERVE_BENCH_SECONDS ?? 120);
  const root = await mkdtemp(join(tmpdir(), "grpu-serve-bench-"));
  const device = await openBenchDevice();
  const folder = join(root, "model");
  await saveLocalCheckpoint(folder, { model: LanguageModel.create(device, STORIES_SHAPE, { seed: 1 }) });
  const engine = await LocalEngine.open({ device, folder });
  heading(`${SAMPLERS} clients sample and ${TRAINERS} train for ${seconds} s on ${device.info.description}`);
  const load = await runServeLoad({
    engine,
    root: join(root, "saved"),
    seconds,
    samplers: SAMPLERS,
    trainers: TRAINERS,
    policyBytes: 64 * MEBI,
  });
  await rm(root, { recursive: true });
  check(load.errors.length === 0, `${load.errors.length} errors, the first: ${load.errors[0]}`);
  const steps = load.steps.reduce((a, b) => a + b, 0);
  remark(
    `${Math.round(load.sampledTokens / seconds)} tokens/s sampled, ${(steps / seconds).toFixed(1)} optimiser steps/s`,
  );
  const at = (share: number) => load.latencies[Math.floor(share * (load.latencies.length - 1))]!;
  remark(`a sample of 32 tokens takes ${at(0.5).toFixed(0)} ms (99 of 100 at most ${at(0.99).toFixed(0)})`);
  remark(
    `samples of a client: ${Math.min(...load.samples)} to ${Math.max(...load.samples)}; steps: ${load.steps.join(", ")}`,
  );
  const [half, last] = [load.memory[Math.floor(load.memory.length / 2)]!, load.memory.at(-1)!];
  const mebi = ({ rss, held, device, results }: typeof last) =>
    `process ${(rss / MEBI).toFixed(0)}, objects ${(held / MEBI).toFixed(0)} (results ${(results / MEBI).toFixed(0)} of them), device ${(device / MEBI).toFixed(1)}`;
  remark(`MiB at half time: ${mebi(half)}; at the end: ${mebi(last)}`);
}
