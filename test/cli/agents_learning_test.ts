/** The ready-made runs of more than one call, on the GPU (a software one will do): they must improve as they promise. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { startTypeScriptAgent } from "../fixtures/agent_process.ts";
import { grpu } from "../fixtures/cli.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const dir = temporaryFolder("agents");

const MINUTES = 60_000;

async function train(name: string, overrides: readonly string[]) {
  const folder = join(dir, name + overrides.length);
  const { code, err } = await grpu([
    "train",
    `examples/${name}/run.yaml`,
    "--device",
    "webgpu",
    `training.default_local_dir=${folder}`,
    ...overrides,
  ]);
  expect(code, err).toBe(0);
  const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
  const read = lines.map((line) => JSON.parse(line) as Record<string, number | string>);
  const of = (phase: string, metric: string) =>
    read.filter((line) => line.phase === phase).map((line) => Number(line[metric]));
  return { val: (metric: string) => of("val", metric), train: (metric: string) => of("train", metric) };
}

const FORTY_STEPS = ["rllm.trainer.total_batches=40"];
let played: ReturnType<typeof train> | undefined;
/** The game of turns, trained once for all tests. */
function game(): ReturnType<typeof train> {
  played ??= train("multi_turn", FORTY_STEPS);
  return played;
}

describe.skipIf(!gpuDevice)("on the GPU", () => {
  test(
    "a game of turns: wins rise from one in four to more than half",
    async () => {
      const run = await game();
      const wins = run.val("val/guess_digit/pass@1");
      expect(wins[0]).toBeLessThan(0.35);
      expect(wins.at(-1)).toBeGreaterThan(0.5);
      // All turns of a game are one row of training, whatever was sampled.
      expect(run.train("batch/steps_per_traj/max")).toEqual(new Array(40).fill(1));
      expect(Math.min(...run.train("batch/num_turns"))).toBeGreaterThan(2);
    },
    4 * MINUTES,
  );

  test(
    "the same game in another process: the figures of the run in this one",
    async () => {
      const agent = await startTypeScriptAgent();
      const remote = [`task.agent=${agent.url}`, "rllm.sdk.proxy.port=0", ...FORTY_STEPS];
      const there = await train("remote_agent", remote).finally(() => agent.child.kill());
      const wins = there.val("val/guess_digit/pass@1");
      expect(wins[0]).toBeLessThan(0.35);
      expect(wins.at(-1)).toBeGreaterThan(0.5);
      const here = await game();
      for (const metric of ["actor/loss", "actor/grad_norm", "batch/num_turns"])
        expect(there.train(metric), metric).toEqual(here.train(metric));
      expect(wins).toEqual(here.val("val/guess_digit/pass@1"));
    },
    10 * MINUTES,
  );

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
    8 * MINUTES,
  );

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
    4 * MINUTES,
  );

  test.each([
    { name: "multi_turn", batch: 16, metric: "val/guess_digit/pass@1", before: 0.35, after: 0.4 },
    { name: "solver_judge", batch: 32, metric: "val/reward/solver/mean", before: 0.45, after: 0.7 },
  ])(
    "$name improves in asynchronous training too",
    async ({ name, batch, metric, before, after }) => {
      const run = await train(name, [
        "rllm.trainer.total_batches=40",
        "rllm.async_training.enable=true",
        `rllm.async_training.mini_batch_size=${batch}`,
        "rllm.async_training.staleness_threshold=0.5",
      ]);
      const scores = run.val(metric);
      expect(scores[0]).toBeLessThan(before);
      expect(scores.at(-1)).toBeGreaterThan(after);
      expect(Math.max(...run.train("async/staleness_max"))).toBe(1);
    },
    4 * MINUTES,
  );
});
