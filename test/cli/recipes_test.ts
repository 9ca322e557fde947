/** The recipe of each family fits the memory that it promises, and runs on a tiny random model of that family. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/engine/compute/cpu.ts";
import { parseModelConfig } from "../../src/engine/model/files/config_json.ts";
import { byteTokenizer, withChatTemplate } from "../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../src/engine/model/language_model.ts";
import { saveModelFolder } from "../../src/engine/model/save_model.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { publishedConfig } from "../fixtures/published.ts";

const dir = temporaryFolder("recipes");
const device = new CpuDevice();
afterAll(() => device.destroy());

const REWARD = "examples/gsm8k/reward.ts";
const ROWS = [
  { question: "Ann has 3 apples and buys 4. How many has she?", answer: "3 + 4 = 7\n#### 7" },
  { question: "A book costs 12. What do two cost?", answer: "#### 24" },
];
const data = join(dir, "rows.jsonl");
writeFileSync(data, ROWS.map((row) => `${JSON.stringify(row)}\n`).join(""));
const DATA = [`data.train_files=${data}`, `data.val_files=${data}`, "--import", REWARD];

const RECIPES = [
  { recipe: "gsm8k_qwen", shape: "Qwen2.5-0.5B", template: "chatml_tools" },
  { recipe: "gsm8k_smollm", shape: "SmolLM2-135M", template: "chatml" },
  { recipe: "gsm8k_llama", shape: "Llama-3.2-1B", template: "headers" },
] as const;

/** A model of the family with small matrices, random weights, one token per byte, and a template of the family's kind. */
async function tinyModel(shape: string, template: string): Promise<string> {
  const small = { hidden_size: 16, intermediate_size: 24, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8 };
  const ids = { vocab_size: 259, bos_token_id: 258, eos_token_id: 257, pad_token_id: 256 };
  const config = parseModelConfig({ ...publishedConfig(shape, 2), ...small, ...ids });
  const source = readFileSync(`test/fixtures/chat_templates/${template}.jinja`, "utf8");
  const tokenizer = withChatTemplate(byteTokenizer({ bos: true }), source);
  const folder = join(dir, shape);
  await saveModelFolder(folder, { model: LanguageModel.create(device, config, { seed: 1 }), tokenizer });
  return folder;
}

describe.each(RECIPES)("$recipe", ({ recipe, shape, template }) => {
  const run = `examples/${recipe}/run.yaml`;

  test("fits 8 GB, with half a GiB for the screen", async () => {
    const model = `model.name=test/fixtures/published/${shape}`;
    const { out, code, err } = await grpu(["plan", run, model, ...DATA, "--memory", "7.5GiB", "--json"]);
    expect(code, err).toBe(0);
    expect(JSON.parse(out)).toMatchObject({ fits: true });
  });

  test("runs two steps on a tiny model", async () => {
    const folder = join(dir, recipe);
    const { code, err } = await grpu([
      "train",
      run,
      `model.name=${await tinyModel(shape, template)}`,
      ...DATA,
      "rllm.data.train_batch_size=2",
      "rllm.rollout.n=2",
      "rllm.data.max_prompt_length=768",
      "rllm.data.max_response_length=4",
      "rllm.trainer.total_batches=2",
      "rllm.trainer.logger=[jsonl]",
      `training.default_local_dir=${folder}`,
      "--device",
      "cpu",
    ]);
    expect(code, err).toBe(0);
    const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
    const steps = lines.map((line) => JSON.parse(line)).filter(({ phase }) => phase === "train");
    expect(steps).toHaveLength(2);
    for (const step of steps) {
      expect(step["batch/termination_reason/error"]).toBe(0);
      expect(step["batch/is_formatted"]).toBe(0);
      expect(step["prompt_length/mean"]).toBeGreaterThan(100);
    }
  });
});

test("a template that fails ends the run before it samples, and names the file", async () => {
  const model = await tinyModel("Qwen2.5-0.5B", "chatml");
  const template = join(dir, "broken.jinja");
  writeFileSync(template, "{{ raise_exception('system messages are not supported') }}");
  const { code, err } = await grpu([
    "train",
    "examples/gsm8k_qwen/run.yaml",
    `model.name=${model}`,
    `model.chat_template=${template}`,
    ...DATA,
    "rllm.data.train_batch_size=2",
    `training.default_local_dir=${join(dir, "broken")}`,
    "--device",
    "cpu",
  ]);
  expect(code, err).toBe(4);
  expect(err).toMatch(/grpu: Cannot format the conversation .*system messages are not supported \(.*broken\.jinja/);
  expect(err).not.toMatch(/tries of rollouts failed/);
});

test("the reward gives 1 for the number, and 0.2 for the form of the answer", async () => {
  await import("../../examples/gsm8k/reward.ts");
  const { rewards } = await import("../../src/train/task/registered.ts");
  const judge = rewards.find("number_and_format");
  const task = { id: "a", instruction: "", metadata: { answer: "1,2 and 3\n#### 1,024" } };
  const rewardOf = async (response: string) => ((await judge(response, task, {})) as { reward: number }).reward;
  expect(await rewardOf("It is 1000 + 24.\n#### 1024")).toBeCloseTo(1.2);
  expect(await rewardOf("#### 1,024 \n")).toBeCloseTo(1.2);
  expect(await rewardOf("#### 7")).toBeCloseTo(0.2);
  expect(await rewardOf("1024")).toBe(0);
  expect(await rewardOf("#### 1024 apples")).toBe(0);
});
