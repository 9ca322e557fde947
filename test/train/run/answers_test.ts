/** Rows without the answer that their reward needs end every command before it samples; verl's and TRL's rows have one. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import { openSession } from "../../../src/train/run/session.ts";
import { registerEvaluator, registerReward } from "../../../src/train/task/registered.ts";
import { captured, grpu } from "../../fixtures/cli.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const dir = temporaryFolder("answers");
const GOOD = join(dir, "good.jsonl");
const BAD = join(dir, "bad.jsonl");
const write = (file: string, rows: readonly object[]) =>
  writeFileSync(file, rows.map((row) => `${JSON.stringify({ prompt: "1+1=", ...row })}\n`).join(""));

beforeEach(() => {
  write(GOOD, [{ answer: "2" }, { reward_model: { style: "rule", ground_truth: "2" } }, { solution: "\\boxed{2}" }]);
  write(BAD, [{ answer: "2" }, { answer: null, data_source: "null" }]);
});

const files = (train: string, val: string) => [`data.train_files=${train}`, `data.val_files=${val}`];
const open = (settings: readonly string[], more: { imports?: string[] } = {}) =>
  openSession({ args: ["examples/arithmetic/run.yaml", ...settings], imports: [], ...more }, captured().io);
const MISSING =
  /Cannot use the row: its reward needs an answer, and there is none \(answer is null; it has prompt, answer, data_source\).*\(\S*bad\.jsonl:2\)/;

describe("a row without an answer ends", () => {
  const VERL = join(dir, "verl.yaml");
  writeFileSync(
    VERL,
    `defaults: [{rllm/backend: verl}, _self_]
task: {name: arithmetic}
model: {name: some/model}
training: {num_minibatches: 1}
actor_rollout_ref: {rollout: {name: vllm}, actor: {use_dynamic_bsz: true}}
trainer: {n_gpus_per_node: 1, save_freq: -1}
`,
  );
  test.each([
    ["training", ["train", "examples/arithmetic/run.yaml", ...files(BAD, GOOD)]],
    ["training, by its validation rows", ["train", "examples/arithmetic/run.yaml", ...files(GOOD, BAD)]],
    ["an evaluation", ["eval", "examples/arithmetic/run.yaml", "--no-cache", ...files(GOOD, BAD)]],
    ["the service of rewards", ["serve", "rewards", "examples/arithmetic/run.yaml", ...files(BAD, GOOD)]],
    ["the job of a cluster", ["train", VERL, "--dry-run", "--job-folder", join(dir, "job"), ...files(BAD, GOOD)]],
  ])("%s", async (_, args) => {
    const { code, err } = await grpu([...args, `training.default_local_dir=${dir}/run`], {
      env: { GRPU_TOKEN: "0123456789abcdef" },
    });
    expect(err).toMatch(MISSING);
    expect(code).toBe(4);
  });
});

test("an evaluation asks nothing of training rows", async () => {
  await expect(open([...files(BAD, GOOD), "rllm.trainer.val_only=true"])).resolves.toBeDefined();
});

test.each(["exact_match", "last_number", "gsm8k", "math"])("%s finds the answers of verl and TRL", async (reward) => {
  const { tasks, rollout } = await open([...files(GOOD, GOOD), `task.reward=${reward}`, "data.prompt_type=messages"]);
  const reply = reward === "exact_match" ? ["2", "2", "\\boxed{2}"] : ["2", "2", "2"];
  for (const [i, task] of tasks.train.entries()) {
    const chat = async () => ({ model_response: reply[i], response_ids: [1], finish_reason: "stop" });
    expect(await rollout(task, { chat } as never)).toMatchObject({ trajectories: [{ reward: 1 }] });
  }
});

test.each([
  ["gsm8k", "no number"],
  ["last_number", "no number"],
  ["math", "A proof without an end. ".repeat(20)],
])("%s refuses an answer that it cannot read", async (reward, answer) => {
  write(BAD, [{ answer }]);
  await expect(open([...files(BAD, GOOD), `task.reward=${reward}`])).rejects.toThrow(
    /its reward can read no answer in/,
  );
});

test("a game asks for the digit that is hidden", async () => {
  write(BAD, [{ answer: "10" }]);
  const game = (...more: string[]) => open([...files(BAD, BAD), "task.name=guess_digit", ...more]);
  await expect(game()).rejects.toThrow(/its reward can read no answer in "10"/);
  const workflow = ["rllm.workflow.use_workflow=true", "rllm.workflow.name=multi_turn_workflow"];
  await expect(game(...workflow)).rejects.toThrow(/its reward can read no answer in "10"/);
});

test.each([
  [["rllm.workflow.use_workflow=true", "rllm.workflow.name=single_turn_workflow"]],
  [["rllm.workflow.use_workflow=true", "rllm.workflow.name=solver_judge_workflow"]],
  [["task.reward=exact_match", "task.agent=http://127.0.0.1:1/"]],
  [["task.reward=exact_match", "task.judge_timeout=5"]],
  [["task.evaluator=answers_evaluator"]],
  [["data.answer_key=gold", "task.reward=answers_free"]],
])("%j needs answers", async (settings) => {
  registerReward("answers_free", () => 1);
  registerEvaluator(
    "answers_evaluator",
    Object.assign(() => 1, { needsAnswer: true }),
  );
  await expect(open([...files(BAD, GOOD), ...settings])).rejects.toThrow(/bad\.jsonl:\d/);
});

test.each([[["task.reward=answers_free"]], [["task.agent=http://127.0.0.1:1/"]], [["task.evaluator=answers_free"]]])(
  "%j needs none",
  async (settings) => {
    registerReward("answers_free", () => 1);
    registerEvaluator("answers_free", () => 1);
    await expect(open([...files(BAD, BAD), ...settings])).resolves.toBeDefined();
  },
);

test("data.answer_key leads to the answer", async () => {
  write(BAD, [{ answer: "3", choices: [{ gold: 2 }] }]);
  const { tasks } = await open([...files(BAD, BAD), "data.answer_key=choices.0.gold"]);
  expect(tasks.val[0]!.metadata.answer).toBe(2);
});
