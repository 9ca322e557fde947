import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { ConfigError } from "../../src/leaves/errors.ts";
import { readMemorySize } from "../../src/train/run/model/plan_request.ts";
import { plannedWork } from "../../src/train/run/model/plan_settings.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { SMALL_MODEL } from "../fixtures/small_model.ts";
import { smallRun } from "../fixtures/small_run.ts";
import { compose } from "../train/config/disk.ts";

const root = temporaryFolder("plan-cli");
const QWEN = fileURLToPath(new URL("../fixtures/published/Qwen2.5-0.5B", import.meta.url));
const LENGTHS = ["data.max_prompt_length=256", "data.max_response_length=768", "data.train_batch_size=8"];
const plan = (...args: string[]) => grpu(["plan", `model.name=${QWEN}`, ...LENGTHS, ...args]);

describe("grpu plan", () => {
  test("plans from config.json alone, and prints what programs read", async () => {
    const { code, out, err } = await plan("model.lora_rank=16", "--memory", "24GiB", "--json");
    expect([code, err]).toEqual([0, ""]);
    const made = JSON.parse(out);
    expect(Object.keys(made)).toEqual([
      "fits",
      "budget_bytes",
      "weights_bytes",
      "adapter_bytes",
      "optimizer_bytes",
      "kv_bytes",
      "slots",
      "tokens_per_pass",
      "gradient_checkpointing",
      "phases",
      "advice",
    ]);
    expect(made).toMatchObject({ fits: true, budget_bytes: 24 * 2 ** 30, slots: 64, advice: [] });
    expect(made.phases.map(({ name }: { name: string }) => name)).toEqual(["load", "sampling", "scoring", "training"]);
    for (const { peak_bytes, parts } of made.phases)
      expect(Object.values<number>(parts).reduce((sum, bytes) => sum + bytes, 0)).toBe(peak_bytes);
  });

  test("prints a table for people", async () => {
    const { code, out } = await plan("model.lora_rank=16", "--memory", "24GiB");
    expect(code).toBe(0);
    expect(out).toMatch(/^budget {4}24\.00 GiB \(--memory\)$/m);
    expect(out).toMatch(/^ +load +sampling +scoring +training$/m);
    expect(out).toMatch(/^kv cache +\S+ GiB/m);
    expect(out).toMatch(/^fits: \S+ GiB to spare$/m);
  });

  test("says what to change where the run does not fit, and that fits", async () => {
    const { code, out } = await plan("--memory", "6GiB", "--json");
    const { fits, advice } = JSON.parse(out);
    expect([code, fits]).toEqual([1, false]);
    expect(advice).toContain("model.lora_rank=16");
    for (const set of advice) expect((await plan("--memory", "6GiB", ...set.split(" "))).code).toBe(0);
    expect((await plan("--memory", "6GiB")).out).toMatch(/^does not fit: .* Set model\.lora_rank=16/m);
  });

  test("plans for this machine's device and its budget where no memory is given", async () => {
    const { code, out } = await plan("model.lora_rank=16", "--device", "cpu", "memory_budget_bytes=30000000000");
    expect(code).toBe(0);
    expect(out).toMatch(/^device {4}cpu/m);
    expect(out).toMatch(/^budget {4}27\.94 GiB \(memory_budget_bytes\)$/m);
  });

  test("plans the models that configurations describe", async () => {
    const { code, out } = await grpu(["plan", "examples/arithmetic/run.yaml", "--memory", "64MiB"]);
    expect([code, out.includes("a new model")]).toEqual([0, true]);
  });

  test("advises no adapter on a new model, which has none", async () => {
    const { code, out } = await grpu(["plan", "examples/arithmetic/run.yaml", "--memory", "1.7MB"]);
    expect(code).toBe(1);
    expect(out).toMatch(/^does not fit: .* Take a smaller model, or a device with more memory\.$/m);
  });

  test.each([
    [["--memory", "lots"], 2, /Cannot read --memory: it is no size \(lots\)/],
    [["model.name=/nowhere", "--memory", "8GiB"], 4, /does not exist/],
    [
      ["rllm/backend=tinker", "training.group_size=2", "validation.group_size=1", "--memory", "8GiB"],
      1,
      /Cannot plan a run on the backend tinker/,
    ],
  ] as const)("refuses %j", async (args, status, message) => {
    const { code, err } = await plan(...args);
    expect(err).toMatch(message);
    expect(code).toBe(status);
  });
});

test("samples the greedy attempts of ReMax together with the rollouts", () => {
  const sampledOf = (estimator: string) => {
    const overrides = [
      "model.name=m",
      "rllm.data.train_batch_size=4",
      "rllm.rollout.n=2",
      "rllm.data.val_batch_size=1",
    ];
    const { config } = compose([...overrides, "rllm.rollout.n_val=1", `rllm.algorithm.adv_estimator=${estimator}`]);
    return plannedWork(config, { model: { config: SMALL_MODEL, typeOf: () => "F32" }, isTrained: true }).shape.sampled;
  };
  expect(["rloo", "remax"].map(sampledOf)).toEqual([8, 12]);
});

test("a run that cannot fit ends before it reads weights, with advice", async () => {
  const dir = join(root, "run");
  const { code, err } = await grpu([
    "train",
    "examples/arithmetic/run.yaml",
    "memory_budget_bytes=300000",
    `training.default_local_dir=${join(dir, "out")}`,
    "--device",
    "cpu",
  ]);
  expect(code).toBe(3);
  expect(err).toMatch(/Cannot fit the run into the memory budget of 0\.286 MiB: \S+ needs at least \S+ MiB \(/);
});

test("an adapter is advised for a model that is given, not for a run that continues with all weights", async () => {
  const dir = join(root, "resumed");
  expect((await smallRun(dir)).code).toBe(0);
  const short = async (...args: string[]) => {
    const { code, err } = await smallRun(dir, ["memory_budget_bytes=80000", "rllm.trainer.total_batches=3", ...args]);
    expect(code).toBe(3);
    return err;
  };
  const elsewhere = ["training.resume_mode=disable", `training.default_local_dir=${join(root, "elsewhere")}`];
  expect(await short(`model.name=${join(dir, "global_step_2")}`, ...elsewhere)).toMatch(/Set model\.lora_rank=/);
  expect(await short("training.resume_mode=auto")).toMatch(
    / MiB\)\. Take a smaller model, or a device with more memory/,
  );
});

test("sizes are read in decimal and binary units", () => {
  expect(["8GiB", "1.5 gb", "512MiB", "4096", "2kb"].map(readMemorySize)).toEqual([
    8 * 2 ** 30,
    1.5e9,
    512 * 2 ** 20,
    4096,
    2000,
  ]);
  for (const text of ["", "-1", "8 apples", "0"]) expect(() => readMemorySize(text)).toThrow(ConfigError);
});
