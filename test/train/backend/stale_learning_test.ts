/** Whether the losses learn from tokens of an old policy. */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { mean } from "../../../src/leaves/statistics.ts";
import { type StaleRun, staleRun } from "../../fixtures/stale_run.ts";

/** The mean reward of the last batches, over some seeds. */
async function learned(loss: string, more: Partial<StaleRun> = {}): Promise<number> {
  const runs = [];
  for (const seed of [1, 2, 3])
    runs.push(
      await staleRun({ device: new CpuDevice(), loss, stale: 6, steps: 80, seed, learningRate: 0.05, ...more }),
    );
  return mean(runs.map((rewards) => mean(rewards.slice(-5))));
}

test("without staleness score centering takes the steps of importance sampling", async () => {
  const run = { device: new CpuDevice(), stale: 0, steps: 6, seed: 0, learningRate: 0.02 };
  const [weighted, centred] = [
    await staleRun({ ...run, loss: "importance_sampling" }),
    await staleRun({ ...run, loss: "score_centering" }),
  ];
  for (const [step, reward] of centred.entries()) expect(reward).toBeCloseTo(weighted[step]!, 1);
});

describe("six steps behind, at a rate that is too high for importance sampling", () => {
  test("score centering learns, with a penalty and without", async () => {
    const [weighted, centred, penalised] = [
      await learned("importance_sampling"),
      await learned("score_centering"),
      await learned("score_centering", { config: { kl_coeff: 0.05 } }),
    ];
    expect(weighted).toBeLessThan(0.2);
    expect(centred).toBeGreaterThan(weighted + 0.2);
    expect(penalised).toBeGreaterThan(weighted + 0.2);
  });
});
