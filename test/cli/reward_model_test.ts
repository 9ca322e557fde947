/** `grpu reward-model` as a person runs it: from pairs to a folder, and what it refuses. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { openModelFolder } from "../../src/engine/model/files/folder.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { idleSettings, linesOf, PAIRS, rowRuns } from "../fixtures/row_runs.ts";

const dir = temporaryFolder("reward_model");
const { rowsFile, start, trainAndContinue, expectRefused } = rowRuns("reward-model", dir);

test("a new model becomes a folder of transformers' sequence classification, and continues", {
  timeout: 180_000,
}, async () => {
  const rows = PAIRS.map((row, i) => ({ ...row, ...(i % 2 === 0 && { margin: 0.5 }) }));
  const { folder, err, lines } = await trainAndContinue("new", { rows, more: ["optim.lr=1e-2"] });
  expect(err).toMatch(/prefers {2}[\d.]+ -> [\d.]+ of held-out pairs as they are chosen/);
  expect(err).toMatch(/use {6}.*train run\.yaml reward_model\.enable=true reward_model\.model\.path=.*global_step_2/);
  expect(lines[1]).toHaveProperty("accuracy");
  const saved = join(folder, "global_step_3");
  const config = JSON.parse(readFileSync(join(saved, "config.json"), "utf8"));
  expect(config).toMatchObject({ architectures: ["LlamaForSequenceClassification"], id2label: { "0": "LABEL_0" } });
  const { tensors } = await openModelFolder(saved);
  expect(tensors.get("score.weight")!.shape).toEqual([1, 16]);
});

describe("what cannot be used is refused before anything is written", () => {
  test.each<[string, readonly unknown[], readonly string[], RegExp]>([
    [
      "a margin that is no number",
      [...PAIRS, { prompt: "1", chosen: "2", rejected: "3", margin: "much" }],
      [],
      /"margin" must be a number \("much"\).*bad\.jsonl:13/,
    ],
    [
      "an equal pair",
      [...PAIRS, { prompt: "1", chosen: "2", rejected: "2" }],
      [],
      /"chosen" and "rejected" are equal.*bad\.jsonl:13/,
    ],
    ["a setting of dpo", PAIRS, ["dpo.beta=1"], /Cannot set dpo\.beta: .*grpu config show --reward-model|Did you mean/],
    ["an adapter of a new model", PAIRS, ["model.lora_rank=4"], /Cannot train an adapter on a new model/],
    ["a coefficient below 0", PAIRS, ["reward_model.center_rewards_coefficient=-1"], /center_rewards_coefficient/],
  ])("%s", (_, rows, more, message) => expectRefused(rows, more, message));
});

test("every setting is read", () => {
  expect(idleSettings("reward-model")).toEqual([]);
});

describe("grpu train with a reward model", () => {
  const shape = "{layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}";
  let scores: string;
  beforeAll(async () => {
    scores = join(dir, "scores");
    const { code, err } = await start("scores", { rows: PAIRS, more: ["trainer.total_training_steps=1"] });
    expect(code, err).toBe(0);
  }, 120_000);

  /** A policy with the reward model's tokens; `more` wins. */
  function args(name: string, more: readonly string[]): string[] {
    const tasks = rowsFile("tasks.jsonl", [{ prompt: "1+1=" }, { prompt: "2+1=" }]);
    const policy = [`model.init=${shape}`, `model.init.tokenizer=${join(scores, "global_step_1")}`];
    const size = [
      "rllm.data.train_batch_size=2",
      "rllm.rollout.n=2",
      "rllm.trainer.total_batches=1",
      "rllm.trainer.logger=[jsonl]",
    ];
    const lengths = ["rllm.data.max_prompt_length=8", "rllm.data.max_response_length=4"];
    const run = [`data.train_files=${tasks}`, `training.default_local_dir=${join(dir, name)}`, "--device", "cpu"];
    const judge = ["reward_model.enable=true", `reward_model.model.path=${scores}`];
    return ["task.name=single_turn", ...policy, ...size, ...lengths, ...judge, ...run, ...more];
  }

  test("rewards each rollout with its score", { timeout: 120_000 }, async () => {
    const { code, err } = await grpu(["train", ...args("rl", [])]);
    expect(code, err).toBe(0);
    expect(err).toMatch(/rewards .*scores\/global_step_1/);
    const line = linesOf(join(dir, "rl")).find(({ phase }) => phase === "train")!;
    const [least, most] = ["reward/single_turn/min", "reward/single_turn/max"].map((name) => Number(line[name]));
    expect(most).toBeGreaterThan(least!);
    expect(Math.abs(most!)).toBeLessThan(10);
  });

  test("and a plan counts its weights", async () => {
    const { code, out, err } = await grpu(["plan", ...args("planned", []), "--memory", "1GiB", "--json"]);
    expect(code, err).toBe(0);
    const [load] = (JSON.parse(out) as { phases: { parts: Record<string, number> }[] }).phases;
    // The head is smaller than the policy's output matrix; the model is held once, without gradients.
    expect(load!.parts.reward_model_weights).toBeGreaterThan(4_000);
  });

  test.each<[string, readonly string[], RegExp]>([
    ["no folder", ["reward_model.model.path=null"], /none is named. Set reward_model\.model\.path/],
    [
      "a folder without use",
      ["reward_model.enable=false"],
      /reward_model\.enable=false\. Set reward_model\.enable=true/,
    ],
    [
      "a reward that counts instead",
      ["task.reward=exact_match"],
      /Cannot use task\.reward=exact_match with a reward model/,
    ],
    ["other tokens", ["model.init.tokenizer=byte"], /it has \d+ tokens, and the policy's model has \d+/],
    ["as many other tokens", ["model.init.tokenizer=char", "model.init.alphabet=0123456789-*"], /its token \d+ is "/],
    ["a folder that is missing", [`reward_model.model.path=${join(dir, "none")}`], /Cannot .*none/],
  ])("is refused with %s", async (_, more, message) => {
    const { code, err } = await grpu(["train", ...args("refused_rl", more)]);
    expect(code).not.toBe(0);
    expect(err).toMatch(message);
    expect(existsSync(join(dir, "refused_rl"))).toBe(false);
  });
});
