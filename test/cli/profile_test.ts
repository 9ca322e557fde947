/** `--profile` as a person uses it: the trace in the run's folder, the table, and a run with the same results. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { TraceEvent } from "../../src/engine/compute/profile/trace.ts";
import { grpu } from "../fixtures/cli.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { SMALL_SETTINGS } from "../fixtures/small_run.ts";

const dir = temporaryFolder("profile");
const DEVICE = ["--device", gpuDevice ? "webgpu" : "cpu"];
const STAGES = ["generate", "transform", "reject", "batch", "process", "advantages", "update"];

async function trained(name: string, flags: readonly string[]) {
  const sizes = ["warmup.steps=2", "warmup.batch_size=8", "rllm.trainer.total_batches=2", "rllm.trainer.test_freq=1"];
  const vals = join(dir, "val.jsonl");
  writeFileSync(vals, '{"prompt":"11+2=","answer":"13"}\n');
  const place = [`data.val_files=${vals}`, `training.default_local_dir=${join(dir, name)}`];
  const small = SMALL_SETTINGS.filter((setting) => setting.includes("="));
  const ran = await grpu(["train", "examples/arithmetic/run.yaml", ...small, ...sizes, ...place, ...DEVICE, ...flags]);
  expect(ran.code, ran.err).toBe(0);
  return ran;
}

/** Metrics of the last training step. */
function train(name: string): Record<string, number> {
  const lines = readFileSync(join(dir, name, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n");
  return JSON.parse(lines.findLast((line) => line.includes('"phase":"train"'))!);
}

function traceOf(name: string): TraceEvent[] {
  return JSON.parse(readFileSync(join(dir, name, "profile.json"), "utf8")).traceEvents;
}

/** The spans of a group of lanes, by name. */
function spansOf(events: readonly TraceEvent[], group: RegExp): Map<string, [start: number, end: number][]> {
  const { pid } = events.find(({ name, args }) => name === "process_name" && group.test(String(args!.name)))!;
  const spans = new Map<string, [number, number][]>();
  for (const event of events.filter((it) => it.pid === pid && it.ph === "X"))
    spans.set(event.name, [...(spans.get(event.name) ?? []), [event.ts!, event.ts! + event.dur!]]);
  return spans;
}

test("writes phases within steps and kernels within the run, and leaves every bit", { timeout: 180_000 }, async () => {
  const { err } = await trained("watched", ["--profile"]);
  await trained("plain", []);
  const weights = (name: string) => readFileSync(join(dir, name, "global_step_2", "model.safetensors"));
  expect(weights("watched").equals(weights("plain"))).toBe(true);
  const lines = (name: string) =>
    readFileSync(join(dir, name, "metrics.jsonl"), "utf8").replaceAll(/"(time|perf)\/[^,}]*[,}]/g, "");
  expect(lines("watched")).toBe(lines("plain"));
  for (const name of ["perf/flops/actor", "perf/flops/rollout", "perf/rollout_throughput", "perf/throughput"])
    expect(train("plain")[name], name).toBeGreaterThan(0);
  for (const name of ["perf/mfu/actor", "perf/mfu/rollout", "perf/mfu"]) {
    if (gpuDevice) expect(train("plain")[name], name).toBeGreaterThan(0);
    else expect(train("plain")[name], name).toBeUndefined();
  }
  expect(readdirSync(join(dir, "plain"))).not.toContain("profile.json");

  expect(err).toMatch(/^kernel +time +calls +each +share$/m);
  expect(err).toContain(`profile  ${join(dir, "watched", "profile.json")}`);
  const events = traceOf("watched");
  const phases = spansOf(events, /^phases$/);
  expect([...phases.keys()].sort()).toEqual([...STAGES, "save", "step", "validate", "warmup"].sort());
  const steps = phases.get("step")!;
  expect(steps).toHaveLength(2);
  for (const stage of STAGES)
    for (const [i, [start, end]] of phases.get(stage)!.entries()) {
      expect(start, stage).toBeGreaterThanOrEqual(steps[i]![0] - 1);
      expect(end, stage).toBeLessThanOrEqual(steps[i]![1] + 1);
    }
  const kernels = spansOf(events, /^kernels/);
  for (const name of ["norm/rms_norm", "optimizer/adamw", "loss/tinker.ppo"])
    expect(kernels.has(name), `${name} of ${[...kernels.keys()].join(", ")}`).toBe(true);
  // Two warm-up steps and two steps of training take an optimiser step each; its work lies in the phase that asked for it.
  const holders = [...phases.get("warmup")!, ...phases.get("update")!].sort((a, b) => a[0] - b[0]);
  for (const [start, end] of kernels.get("optimizer/adamw")!)
    expect(holders.some((holder) => start >= holder[0] && end <= holder[1])).toBe(true);
});

test("sft has a profile too", { timeout: 120_000 }, async () => {
  const rows = join(dir, "rows.jsonl");
  writeFileSync(rows, Array.from({ length: 8 }, (_, i) => `{"prompt":"${i}+1=","response":"${i + 1}"}\n`).join(""));
  const model = "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}";
  const sizes = ["data.train_batch_size=4", "data.max_length=32", "trainer.total_training_steps=2"];
  const place = `trainer.default_local_dir=${join(dir, "sft")}`;
  const { code, err } = await grpu([
    "sft",
    `data.train_files=${rows}`,
    model,
    ...sizes,
    place,
    "--device",
    "cpu",
    "--profile",
  ]);
  expect(code, err).toBe(0);
  const events = traceOf("sft");
  expect(spansOf(events, /^phases$/).get("step")).toHaveLength(2);
  expect(spansOf(events, /^kernels/).get("optimizer/adamw")!.length).toBeGreaterThan(0);
});
