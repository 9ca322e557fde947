import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { SMALL_SETTINGS } from "../fixtures/small_run.ts";

const dir = temporaryFolder("train");

/** A run of seconds on the reference device. */
const SMALL = [
  "examples/arithmetic/run.yaml",
  ...SMALL_SETTINGS,
  "warmup.steps=4",
  "warmup.batch_size=8",
  "rllm.trainer.total_batches=4",
  "rllm.trainer.test_freq=2",
  "rllm.trainer.save_freq=2",
];

function trainInto(name: string, args: readonly string[] = [], signal?: AbortSignal) {
  const options = signal ? { signal } : {};
  return grpu(
    ["train", ...SMALL, `data.val_files=${valFile()}`, `training.default_local_dir=${join(dir, name)}`, ...args],
    options,
  );
}

function valFile(): string {
  const file = join(dir, "val.jsonl");
  writeFileSync(file, '{"prompt":"11+2=","answer":"23"}\n{"prompt":"20+3=","answer":"23"}\n');
  return file;
}

/** The lines without what differs between equal runs: times. */
function metricsOf(name: string): Record<string, number>[] {
  const lines = readFileSync(join(dir, name, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n");
  return lines.map((line) => {
    const entries = Object.entries(JSON.parse(line) as Record<string, number>);
    return Object.fromEntries(entries.filter(([key]) => !/^(time|perf)\//.test(key)));
  });
}

test("grpu train writes metrics, a report and a model that can be sampled, scored and evaluated", async () => {
  const { code, out, err } = await trainInto("whole", ["--json", "training.max_ckpt_to_keep=1"]);
  expect(err).toContain("step 4/4");
  expect(code).toBe(0);
  const result = JSON.parse(out);
  expect(result).toMatchObject({ complete: true, step: 4, model: join(dir, "whole", "global_step_4") });
  expect(result.validation["val/val/pass@1"]).toBeTypeOf("number");
  expect(readFileSync(result.report, "utf8")).toContain("actor/pg_clipfrac");
  expect(existsSync(join(dir, "whole", "global_step_2"))).toBe(false);
  const phases = metricsOf("whole").map((line) => `${line.phase} ${line.step}`);
  expect(phases.slice(0, 5)).toEqual(["warmup 1", "warmup 2", "warmup 3", "warmup 4", "val 0"]);
  expect(phases.slice(5)).toEqual(["train 1", "train 2", "val 2", "train 3", "train 4", "val 4"]);
  expect(metricsOf("whole")[5]).toMatchObject({ "training/global_step": 1, "prompt_length/mean": 5 });
  for (const name of [
    "reward/arithmetic/mean",
    "advantage/arithmetic/mean",
    "actor/pg_loss",
    "actor/entropy",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/grad_norm",
    "actor/lr",
    "response_length/mean",
    "groups/num_groups",
    "batch/solve_none",
  ]) {
    expect(metricsOf("whole")[5], name).toHaveProperty([name]);
  }

  const sampled = await grpu([
    "sample",
    "--model",
    result.model,
    "--prompt",
    "11+2=",
    "--max-tokens",
    "3",
    "--device",
    "cpu",
    "--json",
  ]);
  expect(JSON.parse(sampled.out)).toMatchObject({ prompt: "11+2=" });
  expect(sampled.err).toBe("temperature 1, because the model recommends none (--temperature sets it)\n");
  const evaluate = [
    "eval",
    ...SMALL,
    `data.val_files=${valFile()}`,
    "--checkpoint",
    result.model,
    "--no-cache",
    "--json",
  ];
  const evaluated = await grpu(evaluate);
  expect(JSON.parse(evaluated.out)["val/val/pass@1"]).toBe(result.validation["val/val/pass@1"]);
});

test("grpu eval needs no training data", async () => {
  const args = [
    "task.name=single_turn",
    "task.reward=exact_match",
    "model.init.alphabet='0123456789+='",
    "--device",
    "cpu",
  ];
  const lengths = ["rllm.data.max_prompt_length=8", "rllm.rollout.val.max_tokens=2"];
  const { code, out, err } = await grpu([
    "eval",
    ...args,
    ...lengths,
    `data.val_files=${valFile()}`,
    "--n",
    "2",
    "--no-cache",
  ]);
  expect(err).toContain("2 tasks");
  expect(out).toMatch(/val\/val\/pass@1 +0/);
  expect(out).toContain("val/val/pass@2");
  expect(code).toBe(0);
});

test("the same seed gives the same metrics, another seed others", async () => {
  await trainInto("again");
  expect(metricsOf("again")).toEqual(metricsOf("whole"));
  await trainInto("other", ["training.seed=5"]);
  expect(metricsOf("other")).not.toEqual(metricsOf("whole"));
});

test("Ctrl-C saves and leaves; resume_mode=auto ends with the same metrics", async () => {
  const interrupt = new AbortController();
  let written = "";
  const io = {
    signal: interrupt.signal,
    err: (text: string) => {
      written += text;
      if (text.includes("step 3/4")) interrupt.abort();
    },
  };
  const args = ["train", ...SMALL, `data.val_files=${valFile()}`, `training.default_local_dir=${join(dir, "stopped")}`];
  expect((await grpu(args, io)).code).toBe(130);
  expect(written).toMatch(
    /stopped after step 3; continue with: {2}grpu train .* 'model.init=\{.*\}' .* training.resume_mode=auto --device cpu\n/,
  );
  expect(existsSync(join(dir, "stopped", "global_step_3", "loop.json"))).toBe(true);
  const resumed = await grpu([...args, "training.resume_mode=auto"]);
  expect(resumed.err).toContain("Continuing from global_step_3");
  expect(resumed.err).not.toContain("warning");
  expect(resumed.code).toBe(0);
  expect(metricsOf("stopped")).toEqual(metricsOf("whole"));
  const changed = await grpu([...args, "training.resume_mode=auto", "training.learning_rate=0.5"]);
  expect(changed.err).toMatch(/warning: training\.learning_rate was 0\.\d+ and is now 0\.5\n/);
});

test("log_episodes writes every episode in the published folder form", async () => {
  const logs = join(dir, "logs");
  const args = ["rllm.episode_logging.log_episodes=true", `rllm.episode_logging.episode_log_dir=${logs}`];
  const { err } = await trainInto("logged", [...args, "rllm.trainer.total_batches=1"]);
  expect(err).toContain("step 1/1");
  const folder = join(logs, "episodes", "train_step_1_epoch_0");
  const summary = JSON.parse(readFileSync(join(folder, "batch_summary.json"), "utf8"));
  expect(summary).toMatchObject({ training_step: 1, mode: "train", num_episodes: 16 });
  expect(new Set(summary.episode_files).size).toBe(16);
  expect(summary.episode_files[0]).toMatch(/^episode_hash[0-9a-f]{8}_idarithmetic_train-\d+_0_0\.json$/);
  const episode = JSON.parse(readFileSync(join(folder, summary.episode_files[0]), "utf8"));
  expect(episode.task_hash).toBe(/hash(\w{8})/.exec(summary.episode_files[0])?.[1]);
  expect(episode.trajectories[0]).toMatchObject({ name: "arithmetic", num_steps: 1 });
  expect(existsSync(join(logs, "episodes", "val_step_0_epoch_0", "batch_summary.json"))).toBe(true);
});

test("a fresh start sets the earlier run aside", async () => {
  const { err } = await trainInto("again");
  expect(err).toMatch(/Moved the earlier run from .* to .*again\.1/);
  expect(existsSync(join(dir, "again.1", "report.html"))).toBe(true);
});

test("a model that cannot be opened leaves the earlier run where it is", async () => {
  const { err } = await trainInto("again", ["model.name=/nowhere"]);
  expect(err).toMatch(/does not exist/);
  expect(err).not.toContain("Moved the earlier run");
  expect(existsSync(join(dir, "again", "report.html"))).toBe(true);
});

test.runIf(existsSync("/proc/self"))("a folder that cannot be made ends in an error, not in a loop", async () => {
  const { code, err } = await trainInto("nowhere", ["training.default_local_dir=/proc/grpu/run"]);
  expect(err).toMatch(/Cannot make the folder that training\.default_local_dir names: .*\/proc\/grpu/);
  expect(code).toBe(4);
});

test("--import registers a reward that the configuration names, in the registry of this very program", async () => {
  const file = join(dir, "mine.ts");
  writeFileSync(
    file,
    'import { ConfigError, registerReward, type RewardFunction } from "grpu";\n' +
      "const mine: RewardFunction = (response: string) => { if (response.length > 99) throw new ConfigError('no'); return 0.5; };\n" +
      'registerReward("half", mine);\n',
  );
  const { code, err } = await trainInto("mine", ["--import", file, "task.reward=half", "rllm.trainer.total_batches=1"]);
  expect(err).toContain("reward 0.500");
  expect(code).toBe(0);
});

test("data comes from a folder's split files and from a data set that a module makes", async () => {
  const folder = join(dir, "sums");
  mkdirSync(join(folder, "data"), { recursive: true });
  const rows = (from: number) =>
    Array.from({ length: 4 }, (_, i) => `{"prompt":"1${from + i}+2=","answer":"1${from + i + 2}"}\n`).join("");
  writeFileSync(join(folder, "data", "train-0.jsonl"), rows(0));
  writeFileSync(join(folder, "data", "train-1.jsonl"), rows(4));
  const file = join(dir, "made.ts");
  writeFileSync(
    file,
    'import { registerDataset } from "grpu";\n' +
      'registerDataset("made", async function* (split) { yield { prompt: "10+1=", answer: "11", data_source: split }; });\n',
  );
  const args = [`data.train_files=${folder}`, "data.val_files=made", "--import", file];
  const task = ["task.name=single_turn", "task.reward=exact_match", "warmup.steps=0"];
  const { err, code } = await trainInto("folder", [...args, ...task, "rllm.trainer.total_batches=1"]);
  expect(err).toContain("(8 training, 1 held out)");
  expect(code).toBe(0);
  expect(metricsOf("folder").find(({ phase }) => `${phase}` === "val")).toHaveProperty(["val/val/pass@1"]);
  const none = await trainInto("folder", [`data.train_files=${folder}`, `data.val_files=${folder}`]);
  expect(none.err).toMatch(/for val: its files are named for other splits \(data\/train-0\.jsonl,/);
});

test("a reward that is NaN stops the run with the trajectory's name", async () => {
  const file = join(dir, "nan.ts");
  writeFileSync(file, 'import { registerReward } from "grpu";\nregisterReward("nan", () => Number.NaN);\n');
  const { code, err } = await trainInto("nan", ["--import", file, "task.reward=nan"]);
  expect(err).toMatch(/grpu: Cannot train on the trajectory val-0:0\/0 .*: its reward must be a finite number \(NaN\)/);
  expect(code).toBe(1);
});

test.each([
  ["rllm.async_training.enable=true", /raise_on_error=true: one failed rollout would stop both sides/],
  ["rllm.trainer.logger=[console,wandb]", /WANDB_API_KEY is not set\. Set it, or WANDB_MODE=offline/],
  ["rllm.trainer.logger=[console,mlflow]", /mlflow: there is no such logger/],
  ["rllm/backend=tinker", /tinker/],
  ["rllm/backend=verl", /model\.init\.layers: the verl backend has no such setting/],
  ["examples/arithmetic", /no such file \(examples\/arithmetic\)/],
  ["data.train_files=nowhere.parquet", /no such file \(nowhere\.parquet\)/],
  ["data.train_files=nowhere.jsonl", /no such file \(nowhere\.jsonl\)/],
  ["model.name=/nowhere", /model folder: it does not exist.*\/nowhere/],
  ["rllm.algorithm.adv_estimator=gpro", /it takes grpo, (?!.*, grpo,).*Did you mean grpo/],
  ["training.default_local_dir=package.json", /a file of that name is in the way.*package\.json/],
  ["rllm.rollout.train.stop=x", /stop/],
])("%s is refused", async (override, message) => {
  const { code, err } = await trainInto("refused", [override]);
  expect(err).toMatch(message);
  expect(code).not.toBe(0);
});
