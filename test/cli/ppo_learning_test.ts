/** PPO with a critic learns the game of turns on the GPU (a software one will do), and the critic knows who will win. */
import { expect, test } from "vitest";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { trainExample } from "../fixtures/trained_example.ts";

const dir = temporaryFolder("ppo");
const MINUTES = 60_000;
const PPO = ["+preset=ppo", "critic.optim.lr=1e-3", "rllm.trainer.total_batches=30"];

test.skipIf(!gpuDevice)(
  "PPO with a critic wins the game of turns more often, and its critic foresees returns",
  {
    timeout: 10 * MINUTES,
  },
  async () => {
    const run = await trainExample("multi_turn", { dir, overrides: PPO });
    const wins = run.val("val/guess_digit/pass@1");
    expect(wins[0]).toBeLessThan(0.35);
    expect(wins.at(-1)).toBeGreaterThan(0.45);
    // The exact values of the states explain 0.08 of the first policy's returns, and 0.14 and more of a trained one's.
    const explained = run.train("critic/vf_explained_var").slice(-10);
    expect(Math.min(...explained)).toBeGreaterThan(0.03);
  },
);
