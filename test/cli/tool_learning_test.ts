/** The game with a tool, on the GPU (a software one will do): wins rise as its example promises. */
import { describe, expect, test } from "vitest";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { trainExample } from "../fixtures/trained_example.ts";

const dir = temporaryFolder("agents");

const MINUTES = 60_000;
const train = (name: string, overrides: readonly string[]) => trainExample(name, { dir, overrides });

describe.skipIf(!gpuDevice)("on the GPU", () => {
  test(
    "a game of turns with a tool: wins rise from three in ten to more than seven",
    async () => {
      const run = await train("tool_game", ["--import", "examples/tool_game/game.ts"]);
      const wins = run.val("val/guess_digit/pass@1");
      expect(wins[0]).toBeLessThan(0.35);
      expect(wins.at(-1)).toBeGreaterThan(0.7);
      // Calls and answers of the tool continue on the tokens that were sampled: one row of training for each game.
      expect(run.train("batch/steps_per_traj/max")).toEqual(new Array(80).fill(1));
    },
    10 * MINUTES,
  );

  test(
    "a game of turns improves in asynchronous training too",
    async () => {
      const run = await train("multi_turn", [
        "rllm.trainer.total_batches=40",
        "rllm.async_training.enable=true",
        "rllm.async_training.mini_batch_size=16",
        "rllm.async_training.staleness_threshold=0.5",
      ]);
      const scores = run.val("val/guess_digit/pass@1");
      expect(scores[0]).toBeLessThan(0.35);
      expect(scores.at(-1)).toBeGreaterThan(0.4);
      expect(Math.max(...run.train("async/staleness_max"))).toBe(1);
    },
    10 * MINUTES,
  );
});
