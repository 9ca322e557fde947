/** Recipes of the cookbook, unchanged, against `grpu serve tinker`: RL in each of its modes, DPO, self-distillation. */
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, inject, test } from "vitest";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { startServer } from "./server.ts";

const MODEL = sharedPath("models/stories260k");
const CLIENT = fileURLToPath(new URL("cookbook_recipes.py", import.meta.url));

const sdk = inject("sdks").find(({ hasCookbook }) => hasCookbook);
if (!sdk) console.warn("SKIPPED: the cookbook cannot be installed here");

type Rows = readonly Readonly<Record<string, number>>[];

/** Lines about a step that trained: the last line of a run has times alone. */
const stepsOf = (rows: Rows, metric: string): Rows => rows.filter((row) => metric in row);

describe.skipIf(!sdk || !hasShared)("two steps of each recipe", () => {
  test("train, and no request is refused", async () => {
    const server = await startServer(["--model", MODEL, "--stable-reinforce", "score_centering"]);
    const logs = await mkdtemp(join(tmpdir(), "grpu-recipes-"));
    const env = { ...process.env, TINKER_API_KEY: "tml-test", TINKER_TELEMETRY: "0", HF_HUB_OFFLINE: "1" };
    const options = { env, maxBuffer: 2 ** 26, timeout: 500_000 };
    const { stdout } = await promisify(execFile)(sdk!.python!, [CLIENT, server.url, MODEL, logs], options);
    const ran: Readonly<Record<string, Rows>> = JSON.parse(stdout.trim().split("\n").at(-1)!);
    const answers = await (await fetch(`${server.url}/metrics`)).text();
    await rm(logs, { recursive: true });
    expect(await server.stop()).toBe(0);
    // 408 says that a result is not ready yet.
    expect(answers.match(/^grpu_http_answers_total\{.*status="(?!200|204|408).*$/gm)).toBeNull();

    for (const name of [
      ...["rl_basic", "kl", "stream", "async", "async_importance_sampling"],
      "math_rl",
      "math_rl_default",
    ]) {
      const rows = stepsOf(ran[name]!, "env/all/reward/total");
      expect(
        rows.map(({ step }) => step),
        name,
      ).toEqual([0, 1]);
      expect(Math.max(...rows.map((row) => row["env/all/reward/total"]!)), name).toBeGreaterThan(-0.1);
      // Some group had both rewards, so that there was something to learn.
      expect(Math.max(...rows.map(({ grad_norm }) => grad_norm!)), name).toBeGreaterThan(0);
    }
    // Before the first step the policy is the base model, and the sampler is the trainer.
    expect(ran.kl![0]!.kl_policy_base).toBeCloseTo(0, 4);
    expect(ran.kl![1]!.kl_policy_base).toBeGreaterThan(0);
    expect(ran.rl_basic![0]!["optim/kl_sample_train_v2"]).toBeCloseTo(0, 6);

    const [before, after] = ran.dpo!;
    expect([before!.dpo_loss, before!.margin]).toEqual([expect.closeTo(Math.LN2, 5), expect.closeTo(0, 5)]);
    expect(after!.dpo_loss).toBeLessThan(before!.dpo_loss!);
    expect(after!.margin).toBeGreaterThan(0);

    const distilled = stepsOf(ran.sdft!, "sdft/num_datums");
    // Seven of the eight rows train.
    expect(distilled.map((row) => [row.step, row["sdft/num_datums"]])).toEqual([
      [0, 4],
      [1, 3],
    ]);
  });
});
