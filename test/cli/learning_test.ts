/** The two ready-made runs, whole, on the GPU (a software one will do): they must learn what their pages promise. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";

const dir = temporaryFolder("learning");

const MINUTES = 60_000;

function linesOf(name: string, phase: string): Record<string, number>[] {
  const lines = readFileSync(join(dir, name, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n");
  return lines.map((line) => JSON.parse(line)).filter((line) => line.phase === phase);
}

describe.skipIf(!gpuDevice)("on the GPU", () => {
  test(
    "the main job lifts held-out accuracy from about a third to nine in ten",
    async () => {
      const { code, err } = await grpu([
        "train",
        "examples/arithmetic/run.yaml",
        "--device",
        "webgpu",
        `training.default_local_dir=${join(dir, "arithmetic")}`,
      ]);
      expect(err).toMatch(/report .*report\.html\nsample +grpu sample --model .*global_step_60/);
      expect(code).toBe(0);
      const scores = linesOf("arithmetic", "val").map((line) => line["val/arithmetic/pass@1"]);
      expect(scores[0]).toBeGreaterThan(0.2);
      expect(scores[0]).toBeLessThan(0.45);
      expect(scores.at(-1)).toBeGreaterThanOrEqual(0.9);
    },
    10 * MINUTES,
  );

  test.skipIf(!hasShared)(
    "the stories run doubles its mean reward within 40 steps",
    async () => {
      const { code } = await grpu([
        "train",
        "examples/stories/run.yaml",
        `model.name=${sharedPath("models/stories260k")}`,
        "--import",
        "examples/stories/reward.ts",
        "--device",
        "webgpu",
        "rllm.trainer.total_batches=12",
        `training.default_local_dir=${join(dir, "stories")}`,
      ]);
      expect(code).toBe(0);
      const scores = linesOf("stories", "val").map((line) => line["val/reward/single_turn/mean"]);
      expect(scores.at(-1)).toBeGreaterThanOrEqual(2 * scores[0]!);
    },
    10 * MINUTES,
  );
});
