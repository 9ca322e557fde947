/** rLLM's own trainer with its Tinker backend, unchanged, against `grpu serve tinker`. */
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { rllmTrainer } from "./rllm.ts";
import { startServer } from "./server.ts";

const MODEL = sharedPath("models/stories260k");
const CLIENT = fileURLToPath(new URL("rllm_trainer.py", import.meta.url));
const GAP = "train/kl_sample_train_v1";
const REWARD = "reward/default_traj_name_0/mean";

const rllm = hasShared ? await rllmTrainer() : undefined;

type Rows = readonly Readonly<Record<string, number>>[];

test.skipIf(!rllm)("trains synchronously, fused and asynchronously, and resumes", async () => {
  const { python, path } = rllm!;
  const server = await startServer(["--model", MODEL]);
  const logs = await mkdtemp(join(tmpdir(), "grpu-rllm-"));
  const own = { TINKER_API_KEY: "tml-local", TINKER_TELEMETRY: "0", HF_HUB_OFFLINE: "1", PYTHONPATH: path };
  const options = { env: { ...process.env, ...own }, maxBuffer: 2 ** 26, timeout: 500_000 };
  const { stdout } = await promisify(execFile)(python, [CLIENT, server.url, MODEL, logs], options);
  const ran: Readonly<Record<string, Rows>> = JSON.parse(stdout.trim().split("\n").at(-1)!);
  const answers = await (await fetch(`${server.url}/metrics`)).text();
  await rm(logs, { recursive: true });
  expect(await server.stop()).toBe(0);

  // No request was refused; 408 says that a result is not ready yet.
  expect(answers.match(/^grpu_http_answers_total\{.*status="(?!200|204|408).*$/gm)).toBeNull();
  const trained = (name: string) => ran[name]!.filter((row) => GAP in row);
  const validated = (name: string) => ran[name]!.filter((row) => `val/${REWARD}` in row).map(({ step }) => step);
  const stepsOf = (name: string) => trained(name).map(({ step }) => step);

  expect([stepsOf("synchronous"), stepsOf("resumed"), stepsOf("fused")]).toEqual([[1, 2], [3], [1, 2]]);
  expect([validated("synchronous"), validated("resumed")]).toEqual([
    [0, 2],
    [2, 3],
  ]);
  // The sampler has the trainer's weights, after the resumption too.
  for (const row of ["synchronous", "resumed", "fused"].flatMap(trained)) {
    expect(row[GAP]).toBeLessThan(1e-5);
    expect(row["progress/lr"]).toBe(1e-3);
  }
  for (const name of ["asynchronous", "partial"]) {
    expect(stepsOf(name), name).toEqual([1, 2, 3]);
    expect(validated(name), name).toEqual([2]);
    const [first, ...later] = trained(name);
    expect([first!["async/staleness_max"], first![GAP]], name).toEqual([0, expect.closeTo(0, 5)]);
    // Rollouts of older weights: the gap is that of the step between.
    for (const row of later) expect(row["async/staleness_max"]! > 0, name).toBe(row[GAP]! > 1e-3);
    expect(later.some((row) => row["async/staleness_max"]! > 0)).toBe(true);
  }
});
