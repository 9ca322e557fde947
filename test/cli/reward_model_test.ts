/** `grpu reward-model` as a person runs it: from pairs to a folder, and what it refuses. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { REWARD_MODEL_FIELDS } from "../../src/config/fields/reward_model.ts";
import { runPathOf } from "../../src/config/fields/sft.ts";
import { openModelFolder } from "../../src/model/files/folder.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const dir = temporaryFolder("reward_model");

const SMALL = [
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
  ...["data.train_batch_size=4", "data.max_length=32", "trainer.total_training_steps=2", "trainer.test_freq=1"],
  ...["--device", "cpu"],
];

const PAIRS = Array.from({ length: 12 }, (_, i) => ({ prompt: `${i}+1=`, chosen: `${i + 1}`, rejected: `${i + 2}` }));

function rowsFile(name: string, rows: readonly unknown[]): string {
  const file = join(dir, name);
  writeFileSync(file, rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
  return file;
}

function linesOf(folder: string) {
  const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
  return lines.map((line) => JSON.parse(line) as Record<string, number | string>);
}

/** Trains for two steps, then continues to a third. Returns the folder. */
async function trainedTwice(name: string, more: readonly string[]): Promise<string> {
  const folder = join(dir, name);
  const pairs = PAIRS.map((row, i) => ({ ...row, ...(i % 2 === 0 && { margin: 0.5 }) }));
  const args = [`data.train_files=${rowsFile("pairs.jsonl", pairs)}`, "data.val_set_size=0.25", ...more];
  const place = `trainer.default_local_dir=${folder}`;
  const { code, err, out } = await grpu(["reward-model", ...args, place, "optim.lr=1e-2", ...SMALL, "--json"]);
  expect(code, err).toBe(0);
  expect(err).toContain("9 training");
  expect(err).toMatch(/prefers {2}[\d.]+ -> [\d.]+ of held-out pairs as they are chosen/);
  expect(err).toMatch(/model {4}.*global_step_2/);
  const lines = linesOf(folder);
  expect(lines.map(({ phase, step }) => `${phase} ${step}`)).toEqual(["val 0", "train 1", "val 1", "train 2", "val 2"]);
  expect(lines[1]).toHaveProperty("accuracy");
  expect(JSON.parse(out)).toMatchObject({ complete: true, step: 2, best: { metric: "val/loss" } });
  const longer = ["reward-model", join(folder, "config.yaml"), "trainer.total_training_steps=3", "--device", "cpu"];
  const again = await grpu(longer);
  expect(again.code, again.err).toBe(0);
  expect(again.err).toContain("Continuing from global_step_2");
  expect(linesOf(folder).slice(0, 5)).toEqual(lines);
  return folder;
}

test("a new model becomes a folder of transformers' sequence classification, and continues", {
  timeout: 180_000,
}, async () => {
  const folder = await trainedTwice("new", []);
  const saved = join(folder, "global_step_3");
  const config = JSON.parse(readFileSync(join(saved, "config.json"), "utf8"));
  expect(config).toMatchObject({ architectures: ["LlamaForSequenceClassification"], id2label: { "0": "LABEL_0" } });
  const { tensors } = await openModelFolder(saved);
  expect(tensors.get("score.weight")!.shape).toEqual([1, 16]);
  expect(existsSync(join(folder, "report.html"))).toBe(true);
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
  ])("%s", async (_, rows, more, message) => {
    const folder = join(dir, "refused");
    const args = [`data.train_files=${rowsFile("bad.jsonl", rows)}`, `trainer.default_local_dir=${folder}`];
    const { code, err } = await grpu(["reward-model", ...args, ...SMALL, ...more]);
    expect(code).not.toBe(0);
    expect(err).toMatch(message);
    expect(existsSync(folder)).toBe(false);
  });
});

test("every setting is read", () => {
  const names = ["run/sft_session.ts", "commands/row_run.ts", "commands/reward_model_run.ts"];
  const sources = names.map((name) => readFileSync(`src/cli/${name}`, "utf8"));
  const idle = Object.keys(REWARD_MODEL_FIELDS).filter(
    (path) => runPathOf(path, REWARD_MODEL_FIELDS) === undefined && !sources.some((text) => text.includes(`"${path}"`)),
  );
  expect(idle).toEqual([]);
});
