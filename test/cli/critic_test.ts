/** `grpu train` with a critic on the reference device: its files, a resumed run, what is refused. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { smallRun } from "../fixtures/small_run.ts";

const dir = temporaryFolder("train-critic");
const MINUTES = 60_000;
const PPO = ["+preset=ppo", "rllm.algorithm.lr_schedule=constant", "critic.optim.lr=0.01", "warmup.steps=1"];

const filesOf = (folder: string) => {
  const files = (readdirSync(folder, { recursive: true }) as string[]).filter((name) => name.endsWith(".safetensors"));
  return Object.fromEntries(files.map((name) => [name, readFileSync(join(folder, name)).toString("base64")]));
};

test("a run that was stopped and resumed ends with the bits of a whole one, its critic's too", {
  timeout: 4 * MINUTES,
}, async () => {
  const [whole, resumed] = [join(dir, "whole"), join(dir, "resumed")];
  expect(await smallRun(whole, PPO)).toMatchObject({ code: 0 });
  const first = [...PPO, "training.resume_mode=auto"];
  expect(await smallRun(resumed, [...first, "rllm.trainer.total_batches=1"])).toMatchObject({ code: 0 });
  expect(await smallRun(resumed, first)).toMatchObject({ code: 0 });
  const files = filesOf(join(whole, "global_step_2"));
  expect(Object.keys(files).sort()).toEqual([
    "critic/model.safetensors",
    "critic/optimizer.safetensors",
    "model.safetensors",
    "optimizer.safetensors",
  ]);
  expect(filesOf(join(resumed, "global_step_2"))).toEqual(files);
  const lines = readFileSync(join(whole, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  const steps = lines.filter(({ phase }) => phase === "train");
  expect(steps).toHaveLength(2);
  for (const name of [
    "vf_loss",
    "vf_clipfrac",
    "vpred_mean",
    "grad_norm",
    "lr",
    "values/mean",
    "returns/max",
    "vf_explained_var",
  ])
    expect(steps[1][`critic/${name}`], name).toEqual(expect.any(Number));
  const config = JSON.parse(readFileSync(join(whole, "global_step_2/critic/config.json"), "utf8"));
  expect(config).toMatchObject({ architectures: ["LlamaForSequenceClassification"], id2label: { "0": "LABEL_0" } });
});

test.each([
  ["no critic for gae", ["+preset=ppo", "critic.enable=false"], "gae needs a critic. Set it to null"],
  ["an adapter on weights that all train", ["+preset=ppo", "critic.model.lora_rank=2"], "Set critic.model.lora_rank=0"],
  ["a critic that is to sample", ["model.name=CRITIC"], "it ends in a scalar head"],
])("refuses %s", { timeout: 2 * MINUTES }, async (_, settings, message) => {
  const placed = settings.map((each) => each.replace("CRITIC", join(dir, "whole/global_step_2/critic")));
  const { code, err } = await smallRun(join(dir, "refused"), placed);
  expect(err).toContain(message);
  expect(code).toBe(3);
});

test("grpu plan counts the critic", async () => {
  const plan = async (...settings: string[]) => {
    const { out } = await grpu(["plan", "examples/arithmetic/run.yaml", "--memory", "1GiB", "--json", ...settings]);
    return JSON.parse(out);
  };
  const [without, both] = [await plan(), await plan("+preset=ppo")];
  expect(both.optimizer_bytes).toBeGreaterThan(1.9 * without.optimizer_bytes);
  expect(both.weights_bytes).toBeGreaterThan(1.9 * without.weights_bytes);
});
