import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { openLoadedServer, runServeLoad } from "../../fixtures/serve_load.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

/** Small enough for the cpu device, with the tokens of the prompts. */
const CONFIG: ModelConfig = {
  ...SMALL_MODEL,
  vocabSize: 512,
  layers: 1,
  kvHeads: 2,
  contextLength: 64,
  tied: true,
};

const POLICY_BYTES = 2 ** 19;
/** The engine's own bound, and what a copy of these weights and its transposed matrices take. */
const MOST_COPIES = 8;
const COPY_BYTES = 200_000;

test("64 sampling and two training clients: no error, equal shares, results freed", async () => {
  const root = await mkdtemp(join(tmpdir(), "grpu-serve-load-"));
  const device = await openDevice({ device: "cpu" });
  const folder = join(root, "model");
  await saveLocalCheckpoint(folder, { model: LanguageModel.create(device, CONFIG, { seed: 1 }) });
  const engine = await LocalEngine.open({ device, folder });
  const server = await openLoadedServer({ engine, root: join(root, "saved"), limits: { policyBytes: POLICY_BYTES } });
  const load = await runServeLoad({ server, seconds: 6, samplers: 64, trainers: 2 });
  await server.close();
  await rm(root, { recursive: true });
  expect(load.errors).toEqual([]);
  expect(load.samples).toHaveLength(64);
  const [least, most] = [Math.min(...load.samples), Math.max(...load.samples)];
  expect(least).toBeGreaterThan(0);
  expect(most - least).toBeLessThanOrEqual(Math.max(3, 0.2 * most));
  const [a, b] = load.steps;
  expect(Math.min(a!, b!)).toBeGreaterThan(0);
  expect(Math.abs(a! - b!)).toBeLessThanOrEqual(Math.max(2, 0.2 * a!));
  // Policies of steps gone by stay for who may ask again, within their share; the engine folds some into copies.
  const held = load.memory.map((it) => it.device);
  expect(Math.max(...held)).toBeLessThanOrEqual(held[0]! + POLICY_BYTES + MOST_COPIES * COPY_BYTES);
});
