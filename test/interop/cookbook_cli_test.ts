/** Recipes of the cookbook by their command lines, with the names of models that they have, and its export of weights. */
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, inject, test } from "vitest";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { startServer } from "./server.ts";

const run = promisify(execFile);
const script = (name: string) => fileURLToPath(new URL(name, import.meta.url));
const NAMES = ["Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-9B-Base", "Qwen/Qwen3.6-35B-A3B"];

const sdk = inject("sdks").find(({ hasCookbook }) => hasCookbook);
if (!sdk) console.warn("SKIPPED: the cookbook cannot be installed here");

type Rows = readonly Readonly<Record<string, number>>[];

describe.skipIf(!sdk || !hasShared)("recipes by their command lines", () => {
  test("take two steps each, and no request is refused", async () => {
    const folder = await mkdtemp(join(tmpdir(), "grpu-cookbook-"));
    await run(sdk!.python!, [script("cookbook_hub.py"), sharedPath("models/stories260k"), folder]);
    const model = join(folder, "model");
    const names = NAMES.flatMap((name) => ["--model-name", name]);
    const server = await startServer(["--model", model, ...names, "--stable-reinforce", "score_centering"]);
    const logs = join(folder, "logs");
    const env = {
      ...process.env,
      TINKER_BASE_URL: server.url,
      TINKER_API_KEY: "tml-test",
      TINKER_TELEMETRY: "0",
      TINKER_COOKBOOK_RUNS_DIR: logs,
      HF_HUB_OFFLINE: "1",
      HF_HOME: join(folder, "home"),
    };
    const options = { env, cwd: folder, maxBuffer: 2 ** 26, timeout: 500_000 };
    const { stdout } = await run(sdk!.python!, [script("cookbook_cli.py"), model, logs], options);
    const { weights, ...ran } = JSON.parse(stdout.trim().split("\n").at(-1)!);
    const answers = await (await fetch(`${server.url}/metrics`)).text();
    expect(await server.stop()).toBe(0);
    await rm(folder, { recursive: true });
    // 408 says that a result is not ready yet.
    expect(answers.match(/^grpu_http_answers_total\{.*status="(?!200|204|408).*$/gm)).toBeNull();

    const column = (name: string, metric: string) =>
      (ran[name] as Rows).filter((row) => metric in row).map((row) => row[metric]!);
    for (const name of ["chat_sl", "prompt_distillation", "off_policy"]) {
      const [first, second, ...more] = column(name, "train_mean_nll");
      expect(more, name).toEqual([]);
      expect(second, name).toBeLessThan(first!);
    }
    const sampled = ["on_policy", "multi_teacher", "guess_number", "forecasting", "rlhf"];
    for (const name of sampled) expect(column(name, "env/all/reward/total"), name).toHaveLength(2);
    for (const name of ["on_policy", "multi_teacher"]) {
      // An estimate from samples, which may be below 0.
      expect(Math.abs(column(name, "teacher_kl")[0]!), name).toBeGreaterThan(0);
      expect(column(name, "grad_norm")[0], name).toBeGreaterThan(0);
    }
    // Some group had two rewards, so that there was something to learn.
    expect(Math.max(...column("guess_number", "grad_norm"))).toBeGreaterThan(0);
    // Before the first step the sampler is the trainer.
    for (const name of sampled) expect(column(name, "optim/kl_sample_train_v2")[0], name).toBeCloseTo(0, 5);
    const brier = column("decisions", "train/loss");
    expect(brier).toHaveLength(2);
    expect(column("decisions", "test/brier_reward")).toHaveLength(2);

    // Downloaded encrypted, and merged by the cookbook.
    expect(weights.merged).toBeLessThan(1e-4);
    expect(weights.base).toBeGreaterThan(0.1);
  });
});
