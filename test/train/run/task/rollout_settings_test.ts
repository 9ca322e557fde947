/** Settings that choose the rollout and its judge, from a command line. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { grpu } from "../../../fixtures/cli.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";

const dir = temporaryFolder("rollouts");
beforeAll(() => {
  writeFileSync(join(dir, "mine.ts"), MODULE);
  writeFileSync(join(dir, "rows.jsonl"), '{"prompt":[{"role":"user","content":"1+1="}],"answer":"2"}\n');
});

const MODULE = `
import { registerAgent, registerEnvironment, registerEvaluator, registerReward, registerWorkflow } from "grpu";
registerReward("longer", (response, task, args) => Math.min(response.length / Number(args.unit), 1));
registerReward("parts", (response) => ({ reward: 1, components: { digits: response.length, plus: Number(response.includes("+")) } }));
registerEvaluator("told", (task, episode, args) => ({
  reward: Number(args.worth), signals: { turns: episode.trajectories[0].steps.length }, metrics: { judged: 1 },
}));
registerAgent("silent", async (task, policy, args) => {
  for (let i = 0; i < Number(args.calls); i++) await policy.chat([{ role: "user", content: task.instruction }]);
});
registerEnvironment({ name: "echo", describe: "two turns", alphabet: "0123456789+=",
  play: (task, args) => ({ reset: () => task.messages ?? task.instruction,
    step: (action) => ({ observation: String(args.observation), reward: Number(args.worth), done: false }) }) });
registerWorkflow({ name: "twice", describe: "", rollout: ({ reward, args }) => async (task, policy) => {
  const step = await policy.chat(task.messages ?? []);
  const judged = reward();
  return { trajectories: [{ name: String(args.role), steps: [step], reward: Number(await judged("1234", task)) }] };
} });
`;

const SMALL = [
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32, alphabet: '0123456789+='}",
  "model.chat_template=plain",
  "rllm.data.train_batch_size=1",
  "rllm.data.max_prompt_length=64",
  "rllm.data.max_response_length=3",
  "rllm.rollout.n=2",
  "rllm.trainer.total_batches=1",
  "rllm.trainer.val_before_train=false",
  "rllm.trainer.test_freq=0",
  "rllm.trainer.logger=[jsonl]",
  "training.resume_mode=disable",
];

let runs = 0;

async function train(...overrides: string[]) {
  const folder = join(dir, `${runs++}`);
  const args = [`data.train_files=${join(dir, "rows.jsonl")}`, ...SMALL, ...overrides];
  const ran = await grpu([
    "train",
    ...args,
    `training.default_local_dir=${folder}`,
    "--device",
    "cpu",
    "--import",
    join(dir, "mine.ts"),
  ]);
  const read = () => {
    const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
    return lines.map((line) => JSON.parse(line)).find(({ phase }) => phase === "train");
  };
  return { ...ran, folder, metrics: ran.code === 0 ? (read() as Record<string, number>) : {} };
}

test("an agent that returns nothing is judged by the evaluator, with task.args", async () => {
  const { code, err, metrics } = await train(
    "rllm.agent.name=silent",
    "rllm.agent.agent_args={calls: 2}",
    "task.evaluator=told",
    "task.args={worth: 0.25}",
  );
  expect(code, err).toBe(0);
  expect(metrics).toMatchObject({
    "reward/silent/mean": 0.25,
    "batch/judged": 1,
    "groups/num_trajs_after_filter": 2,
  });
});

test("task.args reach a reward", async () => {
  const { metrics } = await train("task.reward=longer", "task.args={unit: 1}");
  expect(metrics["reward/single_turn/max"]).toBeGreaterThan(0);
  expect(metrics["reward/single_turn/max"]).toBeLessThanOrEqual(1);
});

test("an evaluator beside a named reward adds to it", async () => {
  const both = ["task.reward=longer", "task.evaluator=told", "task.args={unit: 100, worth: 9}"];
  const { metrics } = await train(...both);
  expect(metrics["batch/judged"]).toBe(1);
  expect(metrics["reward/single_turn/max"]).toBeLessThan(1);
});

test("a model that was trained on messages is asked in messages", async () => {
  const rows = `data.val_files=${join(dir, "rows.jsonl")}`;
  const { folder, err } = await train("task.reward=longer", "task.args={unit: 1}", rows);
  expect(err).toMatch(/sample .* --chat --prompt "1\+1="/);
  const ask = async (...prompt: string[]) => {
    const model = ["--model", join(folder, "global_step_1"), "--device", "cpu"];
    const { out } = await grpu(["sample", ...model, "--seed", "3", "--max-tokens", "8", "--json", ...prompt]);
    return JSON.parse(out).tokens as number[];
  };
  const [chat, written, bare] = [
    await ask("--chat", "--prompt", "1+1="),
    await ask("--prompt", "1+1=<eos>"),
    await ask("--prompt", "1+1="),
  ];
  expect(chat).toEqual(written);
  expect(chat).not.toEqual(bare);
});

test("a game by name is played within max_steps, with its env_args; its reward is the sum of its steps", async () => {
  const game = ["rllm.env.name=echo", "rllm.env.env_args={observation: '+', worth: 1}", "rllm.agent.max_steps=3"];
  const { code, err, metrics } = await train(...game, "rllm.rollout.train.max_tokens=1");
  expect(code, err).toBe(0);
  // The one token of a reply is cut short in nearly every draw.
  const reasons = ["max_response_length_exceeded", "max_turns_exceeded"];
  const shares = reasons.map((reason) => metrics[`batch/termination_reason/${reason}`]);
  expect(shares[0]! + shares[1]!).toBe(1);
  expect(metrics["reward/echo/mean"]).toBe(metrics["batch/num_turns"]);
  // Each turn compared with the same turn of the others, by its discounted return.
  const perStep = ["enable=true", "mode=per_step"].map((each) => `rllm.stepwise_advantage.${each}`);
  const stepwise = await train(...game, ...perStep, "rllm.workflow.workflow_args.gamma=0.9");
  expect(stepwise.code, stepwise.err).toBe(0);
  expect(stepwise.metrics["advantage/echo/mean"]).toBeCloseTo(0, 6);
});

test("a workflow by name reads its own arguments", async () => {
  const { code, err, metrics } = await train(
    "rllm.workflow.use_workflow=true",
    "rllm.workflow.name=twice",
    "+rllm.workflow.workflow_args.role=poet",
    "task.reward=longer",
    "task.args={unit: 8}",
  );
  expect(code, err).toBe(0);
  expect(metrics["reward/poet/mean"]).toBe(0.5);
});

test.each([
  [["task.name=arithmetic", "task.args={a: 1}"], /argument a: the environment arithmetic does not read it/],
  [["task.reward=longer", "rllm.agent.name=nobody"], /the agent "nobody": nothing registers that name\. Known: silent/],
  [["task.evaluator=nobody"], /task\.evaluator.*nobody|nobody.*task\.evaluator/s],
  [["task.reward=longer", "rllm.disable_thinking=true"], /chat template has no enable_thinking/],
  [["task.reward=longer", "model.chat_template=null"], /no chat template\. .*model\.chat_template/],
  [["task.reward=longer", "rllm.workflow.workflow_args.env_cls=echo"], /no workflow is used/],
])("%j is refused", async (overrides, message) => {
  const { code, err } = await train(...overrides);
  expect(err).toMatch(message);
  expect(code).not.toBe(0);
});

const GDPO = ["task.reward=parts", "rllm.algorithm.adv_estimator=gdpo"];

test("gdpo trains on the components of a reward", async () => {
  const { code, err, metrics } = await train(...GDPO, "algorithm.gdpo_reward_keys=[digits,plus]");
  expect(code, err).toBe(0);
  expect(metrics).toMatchObject({ "gdpo/digits/mean": expect.any(Number), "gdpo/plus/std": expect.any(Number) });
});

test("a component that a reward lacks is an error that names both, and so are missing names", async () => {
  const lacking = await train(...GDPO, "algorithm.gdpo_reward_keys=[digits,form]");
  expect(lacking.err).toContain(
    'Cannot train on the reward parts: gdpo reads the component "form" of it (it has digits, plus)',
  );
  expect(lacking.code).not.toBe(0);
  const unnamed = await train(...GDPO);
  expect([unnamed.code, unnamed.err]).toEqual([
    3,
    expect.stringContaining("algorithm.gdpo_reward_keys names no rewards"),
  ]);
});
