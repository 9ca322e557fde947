/** `grpu dpo` as a person runs it: from files to a folder, and what it refuses. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { DPO_FIELDS } from "../../src/config/fields/dpo.ts";
import { runPathOf } from "../../src/config/fields/sft.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const dir = temporaryFolder("dpo");

const SMALL = [
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
  ...["data.train_batch_size=4", "data.max_length=32", "trainer.total_training_steps=2", "trainer.test_freq=1"],
  ...["--device", "cpu"],
];

const PAIRS = Array.from({ length: 12 }, (_, i) => ({ prompt: `${i}+1=`, chosen: `${i + 1}`, rejected: `${i + 2}` }));
const LABELS = PAIRS.map(({ prompt, chosen }, i) => ({ prompt, completion: chosen, label: i % 2 === 0 }));

function rowsFile(name: string, rows: readonly unknown[]): string {
  const file = join(dir, name);
  writeFileSync(file, rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
  return file;
}

function linesOf(folder: string) {
  const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
  return lines.map((line) => JSON.parse(line) as Record<string, number | string>);
}

test("trains on pairs, holds some out, and leaves a folder that samples and continues", {
  timeout: 180_000,
}, async () => {
  const folder = join(dir, "run");
  const rows = [`data.train_files=${rowsFile("pairs.jsonl", PAIRS)}`, "data.val_set_size=0.25"];
  const { code, err, out } = await grpu([
    "dpo",
    ...rows,
    `trainer.default_local_dir=${folder}`,
    "optim.lr=1e-2",
    ...SMALL,
    "--json",
  ]);
  expect(code, err).toBe(0);
  expect(err).toContain("9 training");
  expect(err).toMatch(/prefers {2}0\.000 -> [\d.]+ of held-out pairs as they are chosen/);
  const lines = linesOf(folder);
  expect(lines.map(({ phase, step }) => `${phase} ${step}`)).toEqual(["val 0", "train 1", "val 1", "train 2", "val 2"]);
  expect(lines[0]).toMatchObject({ "val/rewards/margins": 0 });
  expect(lines[0]!["val/loss"]).toBeCloseTo(Math.LN2, 12);
  expect(lines[1]).toHaveProperty("rewards/accuracies");
  expect(JSON.parse(out)).toMatchObject({ complete: true, step: 2, best: { metric: "val/loss" } });
  for (const name of ["report.html", "global_step_2/model.safetensors", "global_step_2/reference.safetensors"])
    expect(existsSync(join(folder, name)), name).toBe(true);

  const longer = ["dpo", join(folder, "config.yaml"), "trainer.total_training_steps=3", "--device", "cpu"];
  const more = await grpu(longer);
  expect(more.code, more.err).toBe(0);
  expect(more.err).toContain("Continuing from global_step_2");
  expect(linesOf(folder).slice(0, 5)).toEqual(lines);
});

test("kto trains on labelled rows", { timeout: 180_000 }, async () => {
  const folder = join(dir, "kto");
  const rows = [`data.train_files=${rowsFile("labels.jsonl", LABELS)}`, `trainer.default_local_dir=${folder}`];
  const { code, err } = await grpu(["dpo", ...rows, "dpo.loss_type=kto", "dpo.desirable_weight=1.5", ...SMALL]);
  expect(code, err).toBe(0);
  expect(linesOf(folder)[0]).toMatchObject({ phase: "train", kl: 0 });
  expect(existsSync(join(folder, "global_step_2/reference.safetensors"))).toBe(true);
});

describe("what cannot be used is refused before anything is written", () => {
  test.each<[string, readonly unknown[], readonly string[], RegExp]>([
    [
      "an equal pair",
      [...PAIRS, { prompt: "1", chosen: "2", rejected: "2" }],
      [],
      /"chosen" and "rejected" are equal.*bad\.jsonl:13/,
    ],
    [
      "an empty answer",
      [...PAIRS, { prompt: "1", chosen: "2", rejected: "" }],
      [],
      /"rejected" is empty.*bad\.jsonl:13/,
    ],
    ["a missing answer", [...PAIRS, { prompt: "1", chosen: "2" }], [], /no field "rejected".*bad\.jsonl:13/],
    [
      "a row that is too long",
      [...PAIRS, { prompt: "1", chosen: "1".repeat(40), rejected: "2" }],
      [],
      /it has 42 tokens, and a row may have 32.*bad\.jsonl:13/,
    ],
    ["answers that are too long", PAIRS, ["data.truncation=skip", "data.max_length=2"], /no training row is left/],
    [
      "a setting of another loss",
      PAIRS,
      ["dpo.simpo_gamma=1"],
      /Cannot set simpo_gamma of the preference loss sigmoid: it has beta, label_smoothing, rpo_alpha/,
    ],
    ["a beta of 0", PAIRS, ["dpo.beta=0"], /beta must be a number above 0 \(0\)/],
    ["an unknown loss", PAIRS, ["dpo.loss_type=dpo"], /dpo\.loss_type/],
    ["an unknown setting", PAIRS, ["foo.bar=1"], /Cannot set foo\.bar: .*List them with: grpu config show --dpo/],
    [
      "a backend",
      PAIRS,
      ["rllm/backend=tinker"],
      /Cannot choose rllm\/backend=tinker: grpu dpo trains on this machine/,
    ],
  ])("%s", async (_, rows, more, message) => {
    const folder = join(dir, "refused");
    const args = [`data.train_files=${rowsFile("bad.jsonl", rows)}`, `trainer.default_local_dir=${folder}`];
    const { code, err } = await grpu(["dpo", ...args, ...SMALL, ...more]);
    expect(code).not.toBe(0);
    expect(err).toMatch(message);
    expect(existsSync(folder)).toBe(false);
  });
});

test("every setting is read", () => {
  const names = ["run/sft_session.ts", "commands/row_run.ts", "commands/dpo_run.ts"];
  const sources = names.map((name) => readFileSync(`src/cli/${name}`, "utf8"));
  const idle = Object.keys(DPO_FIELDS).filter(
    // The loss's own settings are read as a whole.
    (path) =>
      !path.startsWith("dpo.") &&
      runPathOf(path, DPO_FIELDS) === undefined &&
      !sources.some((text) => text.includes(`"${path}"`)),
  );
  expect(idle).toEqual([]);
});
