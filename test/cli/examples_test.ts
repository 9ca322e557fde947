/** The agents of examples/README.md train as they stand there; GSM8K's run reads its rows and its answers. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { SMALL_SETTINGS } from "../fixtures/small_run.ts";

const dir = temporaryFolder("examples");

let runs = 0;

async function train(args: readonly string[]) {
  const folder = join(dir, `${runs++}`);
  const { code, err } = await grpu(["train", ...args, `training.default_local_dir=${folder}`]);
  expect(code, err).toBe(0);
  const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
  const metrics = lines.map((line) => JSON.parse(line) as Record<string, number | string>);
  return { folder, metrics: metrics.filter(({ phase }) => phase === "train") };
}

const README = readFileSync("examples/README.md", "utf8");
const AGENTS = [...README.matchAll(/^```ts (\S+)\n([\s\S]*?)^```$/gm)].map(([, file, text]) => [file, text]);

/** A run of seconds on the reference device. */
const SMALL = [
  ...SMALL_SETTINGS,
  "warmup.steps=2",
  "rllm.trainer.total_batches=2",
  "rllm.trainer.val_before_train=false",
  "rllm.trainer.test_freq=0",
];

test("the README shows three agents", () => {
  expect(AGENTS.map(([file]) => file)).toEqual([
    "agent/function_agent.ts",
    "agent/openai_agent.ts",
    "agent/ai_sdk_agent.ts",
  ]);
});

test.each(AGENTS)("%s is the file, and trains", async (file, text) => {
  expect(readFileSync(`examples/${file}`, "utf8")).toBe(text);
  const { metrics } = await train(["examples/agent/run.yaml", "--import", `examples/${file}`, ...SMALL]);
  expect(metrics).toHaveLength(2);
  for (const line of metrics) {
    // Every rollout ended by itself, or with a reply that was cut: none by an error.
    expect(line["batch/termination_reason/error"]).toBe(0);
    expect(line["groups/num_trajs_after_filter"]).toBe(16);
    expect(line["reward/adder/mean"]).toBeGreaterThanOrEqual(0);
  }
});

test.skipIf(!hasShared || !gpuDevice)("GSM8K runs on a model folder, from files of the user's", async () => {
  const { folder, metrics } = await train([
    "examples/gsm8k/run.yaml",
    `model.name=${sharedPath("models/stories260k")}`,
    "model.chat_template=plain",
    `data.train_files=${sharedPath("data/gsm8k_train.jsonl")}`,
    `data.val_files=${sharedPath("data/gsm8k_test.jsonl")}`,
    "rllm.data.train_batch_size=4",
    "rllm.data.max_response_length=16",
    "rllm.rollout.n=4",
    "rllm.trainer.total_batches=1",
    "rllm.trainer.test_freq=0",
    "rllm.episode_logging.log_episodes=true",
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of the configuration's
    "rllm.episode_logging.episode_log_dir=${training.default_local_dir}",
    "--device",
    "webgpu",
  ]);
  expect(metrics).toHaveLength(1);
  expect(metrics[0]!["batch/termination_reason/error"]).toBe(0);
  expect(metrics[0]!["prompt_length/mean"]).toBeGreaterThan(50);
  const [step] = readdirSync(join(folder, "episodes"));
  const [file] = readdirSync(join(folder, "episodes", step!)).filter((name) => name.startsWith("episode_"));
  const episode = JSON.parse(readFileSync(join(folder, "episodes", step!, file!), "utf8"));
  const { chat_completions, model_response } = episode.trajectories[0].steps[0];
  expect(chat_completions).toEqual([
    { role: "system", content: expect.stringContaining("Think step by step") },
    { role: "user", content: episode.task.metadata.question },
    { role: "assistant", content: model_response },
  ]);
});
