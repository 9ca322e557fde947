/** Solver and judge on the GPU (a software one will do): both roles improve, in asynchronous training too. */
import { describe, expect, test } from "vitest";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { trainExample } from "../fixtures/trained_example.ts";

const dir = temporaryFolder("agents");

const MINUTES = 60_000;
const train = (name: string, overrides: readonly string[]) => trainExample(name, { dir, overrides });

describe.skipIf(!gpuDevice)("on the GPU", () => {
  test(
    "solver and judge: both roles rise from a third to three in four",
    async () => {
      const run = await train("solver_judge", ["rllm.trainer.total_batches=40"]);
      for (const role of ["solver", "judge"]) {
        const rewards = run.val(`val/reward/${role}/mean`);
        expect(rewards[0]).toBeLessThan(0.45);
        expect(rewards.at(-1)).toBeGreaterThan(0.7);
      }
      // Two solvers and a judge in each of 8 rollouts of 32 tasks, in 64 groups.
      expect(new Set(run.train("groups/num_groups"))).toEqual(new Set([64]));
      expect(new Set(run.train("groups/num_trajs_after_filter"))).toEqual(new Set([32 * 8 * 3]));
    },
    10 * MINUTES,
  );

  test(
    "the solver improves in asynchronous training too",
    async () => {
      const run = await train("solver_judge", [
        "rllm.trainer.total_batches=40",
        "rllm.async_training.enable=true",
        "rllm.async_training.mini_batch_size=32",
        "rllm.async_training.staleness_threshold=0.5",
      ]);
      const scores = run.val("val/reward/solver/mean");
      expect(scores[0]).toBeLessThan(0.45);
      expect(scores.at(-1)).toBeGreaterThan(0.7);
      expect(Math.max(...run.train("async/staleness_max"))).toBe(1);
    },
    10 * MINUTES,
  );
});
