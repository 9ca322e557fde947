/** The cookbook's minimal loops, unchanged, against `grpu serve tinker`. */
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, inject, test } from "vitest";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { startServer } from "./server.ts";

const MODEL = sharedPath("models/stories260k");
const CLIENT = fileURLToPath(new URL("cookbook_client.py", import.meta.url));

const sdk = inject("sdks").find(({ hasCookbook }) => hasCookbook);
if (!sdk) console.warn("SKIPPED: the cookbook cannot be installed here");

test.skipIf(!sdk || !hasShared)("sl_loop and rl_loop train, save and resume", async () => {
  const server = await startServer(["--model", MODEL, "--stable-reinforce", "score_centering"]);
  const logs = await mkdtemp(join(tmpdir(), "grpu-cookbook-"));
  const env = { ...process.env, TINKER_API_KEY: "tml-test", TINKER_TELEMETRY: "0", HF_HUB_OFFLINE: "1" };
  const options = { env, maxBuffer: 2 ** 26, timeout: 500_000 };
  const { stdout } = await promisify(execFile)(sdk!.python!, [CLIENT, server.url, MODEL, logs], options);
  const output = JSON.parse(stdout.trim().split("\n").at(-1)!);
  const answers = await (await fetch(`${server.url}/metrics`)).text();
  await rm(logs, { recursive: true });
  expect(await server.stop()).toBe(0);

  // No request was refused; 408 says that a result is not ready yet.
  expect(answers.match(/^grpu_http_answers_total\{.*status="(?!200|204|408).*$/gm)).toBeNull();

  const losses = output.sl.map((row: { train_mean_nll: number }) => row.train_mean_nll);
  expect(output.sl.map((row: { step: number }) => row.step)).toEqual([0, 1, 2, 3, 4, 4, 5]);
  expect(losses[4]).toBeLessThan(losses[0] / 3);
  // The resumed run repeats the step after the checkpoint.
  expect(losses[5]).toBeCloseTo(losses[4], 5);
  expect(losses[6]).toBeLessThan(losses[4]);
  // Resumed at step 4, the run saves that step again.
  expect(output.sl_checkpoints.map(({ name }: { name: string }) => name)).toEqual([
    "000002",
    "000004",
    "000004",
    "final",
  ]);

  const rewardsOf = (loss: string): number[] =>
    output.rl[loss].map((row: Record<string, number>) => row["reward/total"]);
  // stable_reinforce is the default.
  for (const loss of ["importance_sampling", "stable_reinforce"]) {
    const rewards = rewardsOf(loss);
    expect(rewards, loss).toHaveLength(5);
    expect(rewards[4], loss).toBeGreaterThan(1.5 * rewards[0]!);
  }
  for (const loss of ["cispo", "gspo"]) {
    expect(rewardsOf(loss)).toHaveLength(2);
    for (const reward of rewardsOf(loss)) expect(reward).toBeGreaterThan(0);
    expect(output.rl_checkpoints[loss].at(-1).sampler_path).toMatch(/^tinker:\/\/.+\/sampler_weights\/final$/);
  }
});
