/** The game of turns on the GPU (a software one will do): an agent in this process and one in another learn alike. */
import { describe, expect, test } from "vitest";
import { startTypeScriptAgent } from "../fixtures/agent_process.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { trainExample } from "../fixtures/trained_example.ts";

const dir = temporaryFolder("agents");

const MINUTES = 60_000;
const train = (name: string, overrides: readonly string[]) => trainExample(name, { dir, overrides });

const STEPS = 40;
/** Enough to compare two runs whose every figure must agree. */
const FEW_STEPS = 10;
const ofSteps = (steps: number) => `rllm.trainer.total_batches=${steps}`;
describe.skipIf(!gpuDevice)("on the GPU", () => {
  test(
    "a game of turns: wins rise from one in four to more than half",
    async () => {
      const run = await train("multi_turn", [ofSteps(STEPS)]);
      const wins = run.val("val/guess_digit/pass@1");
      expect(wins[0]).toBeLessThan(0.35);
      expect(wins.at(-1)).toBeGreaterThan(0.5);
      // All turns of a game are one row of training, whatever was sampled.
      expect(run.train("batch/steps_per_traj/max")).toEqual(new Array(STEPS).fill(1));
      expect(Math.min(...run.train("batch/num_turns"))).toBeGreaterThan(2);
    },
    10 * MINUTES,
  );

  test(
    "the same game in another process: the figures of the run in this one",
    async () => {
      const agent = await startTypeScriptAgent();
      const remote = [`task.agent=${agent.url}`, "rllm.sdk.proxy.port=0", ofSteps(FEW_STEPS)];
      const there = await train("remote_agent", remote).finally(() => agent.child.kill());
      const here = await train("multi_turn", [ofSteps(FEW_STEPS)]);
      for (const metric of ["actor/loss", "actor/grad_norm", "batch/num_turns"])
        expect(there.train(metric), metric).toEqual(here.train(metric));
      expect(there.train("actor/loss")).toHaveLength(FEW_STEPS);
      expect(there.val("val/guess_digit/pass@1")).toEqual(here.val("val/guess_digit/pass@1"));
    },
    10 * MINUTES,
  );
});
