/** A checkpoint opens as the policy that it is, in every command, or not at all. */
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { grpu } from "../../../fixtures/cli.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { writeForeignAdapter } from "../../../fixtures/foreign_adapter.ts";
import { rewardModule, SMALL_RUN, smallRun, treeOf } from "../../../fixtures/small_run.ts";

const dir = temporaryFolder("shape");
/** A whole model, and one of the same shape with other weights. */
let model: string;
let other: string;
/** A run of an adapter on `model`. */
let run: string;
let reward: string[];
const LORA = ["model.lora_rank=4", "model.lora_alpha=64", "model.train_mlp=false", "model.train_unembed=true"];
const VALIDATED = ["rllm.trainer.test_freq=1", "training.learning_rate=0.05", "rllm.algorithm.lr_schedule=constant"];

beforeAll(async () => {
  await smallRun(join(dir, "base"));
  await smallRun(join(dir, "other"), ["training.seed=3"]);
  model = join(dir, "base", "global_step_2");
  other = join(dir, "other", "global_step_2");
  run = join(dir, "run");
  // Every character counts, so that any other policy scores otherwise.
  const body = "return [...response].reduce((sum, c, i) => sum + c.charCodeAt(0) / 7 ** i, 0);";
  reward = rewardModule(dir, { name: "letters", body });
  const { code } = await smallRun(run, [`model.name=${model}`, ...LORA, ...VALIDATED, ...reward]);
  expect(code).toBe(0);
});

const step = (number: number) => join(run, `global_step_${number}`);
const adapterOf = (folder: string) => JSON.parse(readFileSync(join(folder, "adapter_config.json"), "utf8"));
const score = "val/reward/arithmetic/mean";

async function evaluate(checkpoint: string, args: readonly string[] = []) {
  const { out, err, code } = await grpu([
    "eval",
    ...SMALL_RUN,
    ...reward,
    "--no-cache",
    "--checkpoint",
    checkpoint,
    "--json",
    ...args,
  ]);
  return { code, err, score: out === "" ? undefined : JSON.parse(out)[score] };
}

function lastScore(): number {
  const lines = readFileSync(join(run, "metrics.jsonl"), "utf8").trim().split("\n");
  return lines.map((line) => JSON.parse(line)).findLast(({ phase }) => phase === "val")[score];
}

describe("an adapter's checkpoint", () => {
  test("holds its shape as PEFT does", () => {
    expect(adapterOf(step(2))).toMatchObject({ r: 4, lora_alpha: 64, base_model_name_or_path: model });
    expect(new Set(adapterOf(step(2)).target_modules)).toEqual(
      new Set(["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"]),
    );
  });

  test.each<[string, () => string[]]>([
    ["says nothing of it", () => []],
    ["names the same", () => LORA],
    ["names the model", () => [`model.name=${model}`]],
    ["names a copy of the model", () => [`model.name=${copyOf(model)}`]],
  ])("is evaluated as the policy that the run validated, where the configuration %s", async (_, args) => {
    expect(await evaluate(step(2), args())).toMatchObject({ code: 0, score: lastScore() });
  });

  test.each<[string, () => string[], RegExp]>([
    [
      "alpha",
      () => ["model.lora_alpha=16"],
      /model\.lora_alpha is 64, and the configuration says 16\. Remove model\.lora_alpha from the configuration, or add model\.lora_alpha=64 \(model\.lora_alpha\)\./,
    ],
    ["rank", () => ["model.lora_rank=8"], /model\.lora_rank is 4, and the configuration says 8/],
    ["whole model", () => ["model.lora_rank=0"], /model\.lora_rank is 4, and the configuration says 0/],
    ["targets", () => ["model.train_mlp=true"], /model\.train_mlp is false, and the configuration says true/],
    [
      "base",
      () => [`model.name=${other}`],
      /trained on .*base\/global_step_2, whose weights have the fingerprint \w{12}; those of .*other\/global_step_2 have \w{12}/,
    ],
  ])(
    "is not trained on where the configuration names another %s; eval takes its shape, but no other base",
    async (what, args, message) => {
      const before = treeOf(run);
      const evaluated = await evaluate(step(2), args());
      expect(evaluated).toMatchObject(
        what === "base" ? { err: expect.stringMatching(message), score: undefined } : { code: 0, score: lastScore() },
      );
      const resumed = await smallRun(run, [
        "training.resume_mode=auto",
        "rllm.trainer.total_batches=4",
        ...reward,
        ...args(),
      ]);
      expect(resumed.err).toMatch(message);
      expect(resumed.code).not.toBe(0);
      expect(treeOf(run)).toEqual(before);
    },
  );

  test("is compared with its base by the configuration that trained it, and every model is looked at before the first attempt", async () => {
    const train = [`model.name=${model}`, ...LORA];
    const args = ["eval", ...SMALL_RUN, ...reward, ...VALIDATED, ...train, "--no-cache"];
    const compared = await grpu([...args, "--model", model, "--model", step(2), "--json"]);
    expect(compared.code, compared.err).toBe(0);
    expect(compared.err).toContain(`${model}: `);
    expect(compared.err).toContain(`${step(2)}: `);
    const missing = join(dir, "no-config");
    mkdirSync(missing);
    const refused = await grpu([...args, "--model", model, "--model", missing]);
    expect(refused.err).toContain(missing);
    expect(refused.err).not.toMatch(/tasks on/);
    expect(refused.code).not.toBe(0);
  });

  test("is continued in its shape, bit for bit, by a configuration that says nothing of it", async () => {
    const whole = join(dir, "whole");
    await smallRun(whole, [`model.name=${model}`, ...LORA, ...VALIDATED, ...reward, "rllm.trainer.total_batches=3"]);
    const parts = join(dir, "parts");
    cpSync(run, parts, { recursive: true });
    const auto = ["training.resume_mode=auto", "rllm.trainer.total_batches=3"];
    const { err, code } = await smallRun(parts, [...VALIDATED, ...reward, ...auto]);
    expect(code, err).toBe(0);
    expect(adapterOf(join(parts, "global_step_3"))).toEqual(adapterOf(join(whole, "global_step_3")));
    for (const name of ["adapter_model.safetensors", "optimizer.safetensors"])
      expect(readFileSync(join(parts, "global_step_3", name))).toEqual(
        readFileSync(join(whole, "global_step_3", name)),
      );
    expect(readFileSync(join(parts, "config.yaml"), "utf8")).toMatch(/lora_rank: 4\n/);
  });

  test("without an optimiser's files is sampled, scored and evaluated, and not continued", async () => {
    const weights = join(dir, "weights");
    cpSync(step(2), weights, { recursive: true });
    rmSync(join(weights, "optimizer.safetensors"));
    expect(await evaluate(weights)).toMatchObject({ code: 0, score: lastScore() });
    const sampled = await grpu(["sample", "--model", weights, "--prompt", "1+2=", "--device", "cpu"]);
    expect(sampled.code).toBe(0);
    const from = ["training.resume_mode=resume_path", `training.resume_from_path=${weights}`];
    rmSync(join(weights, "files.json"));
    const { err, code } = await smallRun(join(dir, "more"), [...from, ...reward]);
    expect(err).toMatch(/no optimizer\.safetensors/);
    expect(code).not.toBe(0);
  });
});

function copyOf(folder: string): string {
  cpSync(folder, join(dir, "copy"), { recursive: true });
  return join(dir, "copy");
}

test.each<[string, () => string[], RegExp]>([
  [
    "an adapter",
    () => ["model.lora_rank=4", `model.name=${model}`],
    /model\.lora_rank is 0, and the configuration says 4/,
  ],
  ["another order of tokens", () => ["model.init.alphabet='=+9876543210'"], /its tokens are not those/],
  [
    "bytes for tokens",
    () => ["model.init.tokenizer=byte"],
    /its tokens are not those of the configuration \(14 tokens, and 258\)/,
  ],
])("a whole model's checkpoint is refused to a configuration that names %s", async (_, args, message) => {
  const { err, code } = await smallRun(join(dir, "base"), [
    "training.resume_mode=auto",
    "rllm.trainer.total_batches=3",
    ...args(),
  ]);
  expect(err).toMatch(message);
  expect(code).not.toBe(0);
});

test("a run's folder stands for its latest step, and which one is said", async () => {
  const sampled = await grpu(["sample", "--model", run, "--prompt", "1+2=", "--device", "cpu", "--json"]);
  expect(sampled.err).toContain(`${step(2)}: the latest step of the run\n`);
  const exact = await grpu(["sample", "--model", step(2), "--prompt", "1+2=", "--device", "cpu", "--json"]);
  expect(sampled.out).toBe(exact.out);
  expect(await evaluate(run)).toMatchObject({
    score: lastScore(),
    err: expect.stringContaining("the latest step"),
  });
});

test("weights that are not those that were written are refused, by sample and eval", async () => {
  const place = join(dir, "damaged");
  cpSync(run, place, { recursive: true });
  const file = join(place, "global_step_2", "adapter_model.safetensors");
  const bytes = readFileSync(file);
  bytes[bytes.length - 2]! ^= 4;
  writeFileSync(file, bytes);
  const sampled = await grpu(["sample", "--model", place, "--prompt", "1+2=", "--device", "cpu"]);
  for (const { err, code } of [sampled, await evaluate(join(place, "global_step_2"))]) {
    expect(err).toMatch(/damaged: adapter_model\.safetensors is not what was written/);
    expect(code).toBe(4);
  }
});

test("val_only with a resumed run validates its weights, says so, and changes nothing but the logs", async () => {
  const place = join(dir, "validated");
  cpSync(run, place, { recursive: true });
  const before = treeOf(place);
  const { err, code } = await smallRun(place, ["training.resume_mode=auto", "rllm.trainer.val_only=true", ...reward]);
  expect(code, err).toBe(0);
  expect(err).toMatch(/Continuing from global_step_2\n[\s\S]*validation only[\s\S]*validation at step 2/);
  const lines = readFileSync(join(place, "metrics.jsonl"), "utf8").trim().split("\n");
  expect(JSON.parse(lines.at(-1)!)).toMatchObject({ phase: "val", step: 2, [score]: lastScore() });
  const logs = /metrics\.jsonl|samples\.jsonl|groups\.jsonl|report\.html/;
  const rest = (tree = {}) => Object.entries(tree).filter(([name]) => !logs.test(name));
  expect(rest(treeOf(place))).toEqual(rest(before));
});

describe("an adapter that PEFT made", () => {
  const shape = { rank: 3, alpha: 5, targets: ["q_proj", "v_proj", "down_proj"] };
  const lines = ["1+2=3", "40+5=45"].map((text) => text.length);
  const input = lines
    .map((length) => JSON.stringify({ tokens: Array.from({ length }, (_, i) => (i * 5) % 12) }))
    .join("\n");
  const scored = async (args: readonly string[]) => {
    const ran = await grpu(["model", "score", "--input", "-", "--device", "cpu", ...args], { input });
    return {
      ...ran,
      logprobs: ran.out
        .split("\n")
        .filter(Boolean)
        .flatMap((line) => JSON.parse(line).logprobs as number[]),
    };
  };

  test.each([
    ["names its base", () => model, () => []],
    ["names a model of the Hub, and the folder is given", () => "org/model", () => ["--base", model]],
    ["names nothing, and the folder is given", () => null, () => ["--base", model]],
  ])("and that %s scores as the merged model", async (what, named, args) => {
    const folders = await writeForeignAdapter(join(dir, what), { ...shape, base: model, named: named() });
    const merged = await scored(["--model", folders.merged]);
    const adapted = await scored(["--model", folders.adapter, ...args()]);
    expect(adapted.err).toBe("");
    expect(adapted.logprobs).toHaveLength(merged.logprobs.length);
    for (const [i, value] of adapted.logprobs.entries()) expect(value).toBeCloseTo(merged.logprobs[i]!, 4);
    const plain = await scored(["--model", model]);
    expect(Math.abs(plain.logprobs[2]! - merged.logprobs[2]!)).toBeGreaterThan(0.01);
    const sampled = await grpu([
      "sample",
      "--model",
      folders.adapter,
      ...args(),
      "--prompt",
      "1+2=",
      "--device",
      "cpu",
    ]);
    expect(sampled.code).toBe(0);
    const [a, b] = [await evaluate(folders.adapter, [`model.name=${model}`]), await evaluate(folders.merged)];
    expect(a.err).toContain("tasks on cpu");
    expect([a.code, b.code]).toEqual([0, 0]);
    expect(a.score).toBeCloseTo(b.score, 1);
  });

  test.each([
    [null, /does not name its base model.*--base DIR/],
    ["org/model", /base model of the adapter .*org\/model.*--base DIR/],
  ])("and that names the base %j says what to give", async (named, message) => {
    const folders = await writeForeignAdapter(join(dir, "lost"), { ...shape, base: model, named });
    expect(await scored(["--model", folders.adapter])).toMatchObject({
      err: expect.stringMatching(message),
      out: "",
    });
  });
});

describe("what sample and model.name say to", () => {
  const sample = (args: readonly string[]) => grpu(["sample", "--prompt", "1+2=", "--device", "cpu", ...args]);
  const download =
    /it does not exist\. A model is a folder on this machine\. .*hf download Qwen\/Qwen3-0\.6B --local-dir Qwen3-0\.6B/;

  test("a name on the Hub: how to get its folder", async () => {
    expect((await sample(["--model", "Qwen/Qwen3-0.6B"])).err).toMatch(download);
    expect((await smallRun(join(dir, "hub"), ["model.name=Qwen/Qwen3-0.6B"])).err).toMatch(download);
    expect((await evaluate(model, ["model.name=Qwen/Qwen3-0.6B"])).code).toBe(0);
    expect((await sample(["--model", "/no/where"])).err).not.toContain("hf download");
  });

  test("--chat without a template: to leave it out, or to give one", async () => {
    const { err, code } = await sample(["--model", model, "--chat"]);
    expect(err).toMatch(
      /Cannot use --chat: the model in .* has no chat template\. Leave --chat out.*--chat-template FILE/,
    );
    expect(code).toBe(2);
    const own = join(dir, "template.jinja");
    writeFileSync(own, "{% for message in messages %}{{ message.content }}{% endfor %}");
    const given = await sample(["--model", model, "--chat", "--chat-template", own, "--json"]);
    expect(given.out).toBe((await sample(["--model", model, "--json"])).out);
  });

  test("a run without a checkpoint: that it has none", async () => {
    const place = join(dir, "empty");
    await smallRun(place, ["rllm.trainer.val_only=true"]);
    const { err, code } = await sample(["--model", place]);
    expect(err).toMatch(/the run has no checkpoint yet/);
    expect(code).not.toBe(0);
  });
});
