/** Our client against SkyRL's server, with JAX on the CPU. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { installSkyRl, startSkyRl } from "./skyrl.ts";

const MODEL = sharedPath("models/stories260k");
const skyrl = hasShared ? await installSkyRl() : "there is no model to serve";
if (typeof skyrl === "string") console.warn(`SKIPPED: SkyRL's server: ${skyrl}`);

test.skipIf(typeof skyrl === "string")("trains, validates, saves and resumes there", async () => {
  const server = await startSkyRl(skyrl as Exclude<typeof skyrl, string>, MODEL);
  const root = await mkdtemp(join(tmpdir(), "grpu-skyrl-run-"));
  const env = { TINKER_BASE_URL: server.url, TINKER_API_KEY: "tml-test" };
  const train = (batches: number, overrides: readonly string[] = []) =>
    grpu(
      [
        ...["train", "examples/stories/tinker.yaml", `model.name=${MODEL}`, "tinker_wire=json"],
        ...["--import", "examples/stories/reward.ts", "training.seed=1"],
        ...["rllm.data.train_batch_size=2", "rllm.rollout.n=4", "rllm.data.max_response_length=16"],
        ...[`rllm.trainer.total_batches=${batches}`, "rllm.trainer.test_freq=2", "rllm.trainer.save_freq=2"],
        ...["rllm.trainer.val_before_train=false", `training.default_local_dir=${root}`, ...overrides],
      ],
      { env },
    );
  try {
    const first = await train(2);
    expect(first.code, first.err + server.said().slice(-3000)).toBe(0);
    const second = await train(3, ["training.resume_mode=auto"]);
    expect(second.err).toContain("Continuing from global_step_2");
    expect(second.code, second.err + server.said().slice(-3000)).toBe(0);
  } finally {
    await server.stop();
  }
  const lines = (await readFile(join(root, "metrics.jsonl"), "utf8")).trimEnd().split("\n");
  const records = lines.map((line) => JSON.parse(line));
  const steps = records.filter(({ phase }) => phase === "train");
  expect(steps.map(({ step }) => step)).toEqual([1, 2, 3]);
  for (const step of steps) {
    // SkyRL's sampler and trainer are two programs of one model.
    expect(Math.abs(step["optim/kl_sample_train_v1"])).toBeLessThan(0.1);
    expect(step["response_length/mean"]).toBeGreaterThan(1);
  }
  expect(records.filter(({ phase }) => phase === "val").map(({ step }) => step)).toEqual([2, 3]);
  await rm(root, { recursive: true });
});
