/** `grpu dpo` as a person runs it: from files to a folder, and what it refuses. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { temporaryFolder } from "../fixtures/folder.ts";
import { idleSettings, linesOf, PAIRS, rowRuns } from "../fixtures/row_runs.ts";

const dir = temporaryFolder("dpo");
const { start, trainAndContinue, expectRefused } = rowRuns("dpo", dir);

const LABELS = PAIRS.map(({ prompt, chosen }, i) => ({ prompt, completion: chosen, label: i % 2 === 0 }));

test("trains on pairs, holds some out, and leaves a folder that continues", { timeout: 180_000 }, async () => {
  const { folder, err, lines } = await trainAndContinue("run", { rows: PAIRS, more: ["optim.lr=1e-2"] });
  expect(err).toMatch(/prefers {2}0\.000 -> [\d.]+ of held-out pairs as they are chosen/);
  expect(lines[0]).toMatchObject({ "val/rewards/margins": 0 });
  expect(lines[0]!["val/loss"]).toBeCloseTo(Math.LN2, 12);
  expect(lines[1]).toHaveProperty("rewards/accuracies");
  for (const name of ["model", "reference"])
    expect(existsSync(join(folder, `global_step_2/${name}.safetensors`)), name).toBe(true);
});

test("kto trains on labelled rows", { timeout: 180_000 }, async () => {
  const folder = join(dir, "kto");
  const { code, err } = await start("kto", { rows: LABELS, more: ["dpo.loss_type=kto", "dpo.desirable_weight=1.5"] });
  expect(code, err).toBe(0);
  expect(linesOf(folder)[0]).toMatchObject({ phase: "train", kl: 0 });
  expect(existsSync(join(folder, "global_step_2/reference.safetensors"))).toBe(true);
});

test("a loss of the user's own is chosen by its name", { timeout: 180_000 }, async () => {
  const file = join(dir, "squared.ts");
  const page = readFileSync(new URL("../../docs/preferences.md", import.meta.url), "utf8");
  writeFileSync(file, /```ts\n([\s\S]*?registerPreferenceLoss\(\{[\s\S]*?)```/.exec(page)![1]!);
  const more = ["--import", file, "dpo.loss_type=squared_margin", "dpo.beta=0.5"];
  const { code, err } = await start("own", { rows: PAIRS, more });
  expect(code, err).toBe(0);
  // Both rows have the reference's log-probs before the first step: (0.5 * 0 - 1)^2.
  expect(linesOf(join(dir, "own"))[0]).toMatchObject({ phase: "train", "train/loss": 1 });
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
  ])("%s", (_, rows, more, message) => expectRefused(rows, more, message));
});

test("every setting is read, the loss's own as a whole", () => {
  expect(idleSettings("dpo").filter((path) => !path.startsWith("dpo."))).toEqual([]);
});
