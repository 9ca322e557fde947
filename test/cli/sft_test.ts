/** `grpu sft` as a person runs it: from files to a folder, and what it refuses. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { setting } from "../../src/train/config/schema.ts";
import { readYaml } from "../../src/train/config/yaml/read.ts";
import { flatten } from "../../src/train/config/yaml/tree.ts";
import { packagedText } from "../../src/train/run/files.ts";
import { composeRows } from "../../src/train/run/sft_session.ts";
import { captured, grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { idleSettings, rowRuns, SMALL_ROW_RUN } from "../fixtures/row_runs.ts";

const dir = temporaryFolder("sft");

const { rowsFile, start, trainAndContinue, expectRefused } = rowRuns("sft", dir);

const ROWS = Array.from({ length: 12 }, (_, i) => ({ prompt: `${i}+1=`, response: String(i + 1) }));

test("trains, holds rows out, and leaves a folder that samples and continues", { timeout: 180_000 }, async () => {
  const { folder, err } = await trainAndContinue("run", { rows: ROWS });
  expect(err).toMatch(/loss {5}[\d.]+ -> [\d.]+ on held-out rows/);
  expect(err).toMatch(/sample {3}\S.* sample --model \S+global_step_2 --prompt "\.\.\."/);
  for (const name of ["best_checkpoint.json", "global_step_2/model.safetensors"])
    expect(existsSync(join(folder, name)), name).toBe(true);
  const config = flatten(readYaml(readFileSync(join(folder, "config.yaml"), "utf8"), "config.yaml").tree);
  expect(config.get("data.train_files")).toBe(join(dir, "run.jsonl"));
  expect(config.has("training.learning_rate")).toBe(false);
  const sampled = await grpu(["sample", "--model", folder, "--prompt", "1+1=", "--max-tokens", "2", "--device", "cpu"]);
  expect(sampled.code, sampled.err).toBe(0);
});

test("a new model's characters are those that the chat template writes; empty replies are counted", {
  timeout: 180_000,
}, async () => {
  const template = join(dir, "roles.jinja");
  writeFileSync(template, "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}");
  const user = { role: "user", content: "1" };
  const chats = ["2", "2", "2", ""].map((content) => ({ messages: [user, { role: "assistant", content }] }));
  const folder = join(dir, "roles");
  const more = [`model.chat_template=${template}`, "data.max_length=64"];
  // The template has no prompt of its own for the assistant, so that its turn begins at its role.
  const { code, err } = await start("roles", { rows: chats, more });
  expect(code, err).toBe(0);
  expect(err).toContain("warning: 1 training rows have an empty reply");
  expect(err).toMatch(/chat {5}\S.* chat --model \S+global_step_2\n/);
  const { vocab } = JSON.parse(readFileSync(join(folder, "global_step_2/tokenizer.json"), "utf8")).model;
  expect(Object.keys(vocab).slice(0, -2).sort().join("")).toBe(" 12:aeinrstu");
});

test("stops between rows while it encodes them", async () => {
  const rows = [
    `data.train_files=${rowsFile("stopped.jsonl", ROWS)}`,
    `trainer.default_local_dir=${join(dir, "stopped")}`,
  ];
  const { code, err } = await grpu(["sft", ...rows, ...SMALL_ROW_RUN], { signal: AbortSignal.abort() });
  expect(code).not.toBe(0);
  expect(err).not.toContain("training (");
  expect(existsSync(join(dir, "stopped"))).toBe(false);
});

describe("is refused", () => {
  const good = rowsFile("good.jsonl", ROWS);
  test.each<[name: string, rows: readonly unknown[], more: string[], message: RegExp]>([
    ["an empty file", [], [], /it has no rows.*\(.*bad\.jsonl\)/],
    ["a missing column", [...ROWS, { prompt: "1+1=" }], [], /no field "response".*\(.*bad\.jsonl:13\)/],
    ["mixed forms", [...ROWS, { text: "1" }], [], /rows of two forms.*\(.*bad\.jsonl:13\)/],
    [
      "a chat without the assistant",
      [{ messages: [{ role: "user", content: "1" }] }],
      ["model.chat_template=plain"],
      /the assistant writes nothing in it.*\(.*bad\.jsonl:1\)/,
    ],
    [
      "a row that is too long",
      [...ROWS, { prompt: "1", response: "1".repeat(40) }],
      [],
      /it has 42 tokens, and a row may have 32.*bad\.jsonl:13/,
    ],
    ["fewer rows than a batch", ROWS.slice(0, 3), [], /one needs 4 rows, and the training data has 3/],
    [
      "rows that are all too long",
      ROWS,
      ["data.truncation=skip", "data.max_length=2"],
      /no training row is left\. With data\.truncation=skip.*data\.max_length.*data\.val_set_size and data\.train_max_samples/,
    ],
    ["no row at all", ROWS, ["data.train_max_samples=0"], /data\.train_max_samples=0 leaves no row/],
    [
      "a held-out share of everything",
      ROWS.slice(0, 1),
      ["data.val_set_size=0.1"],
      /none is left to train on \(data\.val_set_size=0\.1 of 1\)/,
    ],
    ["betas that are none", ROWS, ["optim.betas=[1,2]"], /Cannot set optim\.betas: it takes two numbers.*\[1,2\]/],
    [
      "two kinds of held-out rows",
      ROWS,
      ["data.val_set_size=0.1", `data.val_files=${good}`],
      /there are data\.val_files too/,
    ],
    ["a setting of other runs", ROWS, ["rllm.rollout.n=4"], /Cannot set rllm\.rollout\.n: there is no such setting/],
    ["an unknown setting", ROWS, ["foo.bar=1"], /Cannot set foo\.bar: .*List them with: grpu config show --sft/],
    [
      "a preset",
      ROWS,
      ["preset=dapo"],
      /^grpu: Cannot choose preset=dapo: .*its settings have no groups\. Remove it\.\s*$/,
    ],
    ["a backend", ROWS, ["rllm/backend=tinker"], /Cannot choose rllm\/backend=tinker: grpu sft trains on this machine/],
  ])("%s", (_, rows, more, message) => expectRefused(rows, more, message));

  test("nothing to train on", async () => {
    const { err } = await grpu(["sft", ...SMALL_ROW_RUN]);
    expect(err).toMatch(/there are no rows\. Set data\.train_files.*\(data\.train_files\)/);
  });
});

describe("the settings", () => {
  const compose = (args: readonly string[]) => composeRows({ args, imports: [] }, { io: captured().io, base: "sft" });

  test("reach the training run that does the work, under their own names or that run's", async () => {
    const { config, sft, isGiven } = await compose([
      "optim.lr=0.5",
      "training.seed=7",
      "optim.betas=[0.1,0.2]",
      "data.max_length=99",
    ]);
    expect(setting(config, "training.learning_rate")).toBe(0.5);
    expect([setting(config, "training.seed"), setting(config, "rllm.data.seed")]).toEqual([7, 7]);
    expect([setting(config, "training.beta1"), setting(config, "training.beta2")]).toEqual([0.1, 0.2]);
    expect(setting(config, "training.max_length")).toBe(99);
    expect(setting(config, "rllm.trainer.total_batches")).toBe(-1);
    expect(flatten(sft).get("trainer.seed")).toBe(7);
    expect(["training.seed", "training.learning_rate", "training.eps"].map(isGiven)).toEqual([true, true, false]);
  });

  test("each acts: in the training run, or where the code of the command reads it", () => {
    expect(idleSettings("sft")).toEqual([]);
  });

  test("have the defaults of the packaged file", async () => {
    const { sft } = await compose([]);
    const packaged = flatten(readYaml(packagedText("sft.yaml")!, "sft.yaml").tree);
    const differing = [...packaged].filter(
      ([path, value]) => JSON.stringify(flatten(sft).get(path)) !== JSON.stringify(value),
    );
    expect(differing.map(([path]) => path)).toEqual(["trainer.default_local_dir"]);
  });
});
