// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** Random trees and random damage: seeded, so that a failure repeats. */
import { spawnSync } from "node:child_process";
import { describe, expect, test } from "vitest";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { validateFile } from "../../../src/cluster/convert/inspect/validate.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { ROWS } from "../../../src/cluster/convert/trinity/rows.ts";
import { overrideText, writeArgs } from "../../../src/cluster/convert/write.ts";
import { BACKENDS } from "../../../src/train/config/fields/backend_fields.ts";
import type { Field } from "../../../src/train/config/fields/field.ts";
import { inline } from "../../../src/train/config/fields/render.ts";
import { statusOf } from "../../../src/train/config/fields/support.ts";
import { parseOverride, parseValue } from "../../../src/train/config/hydra/override.ts";
import { schemaOf } from "../../../src/train/config/schema.ts";
import { isSecret } from "../../../src/train/config/secret.ts";
import { showConfig, toYaml } from "../../../src/train/config/show.ts";
import { readYaml } from "../../../src/train/config/yaml/read.ts";
import { equalValues, getAt, type Tree, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { attempt, readConfig } from "./disk.ts";
import { type Random, randomOf } from "./random.ts";

/** PyYAML is an independent reader of YAML 1.1, the dialect that rLLM, verl and Trinity-RFT load. */
function hasPyYaml(): boolean {
  return spawnSync("python3", ["-c", "import yaml"]).status === 0;
}

const TEXTS = [
  "",
  " ",
  "a",
  "true",
  "null",
  "1e-6",
  "1",
  "-",
  "~",
  "yes",
  "a: b",
  "#x",
  "a #b",
  "'",
  '"',
  "\\",
  "[",
  "{",
  "é",
  "日本",
  "a\nb",
  "\t",
  "0x1",
  "1_0",
  "2024-01-01",
  "@",
  "`",
  "%",
  "!t",
  "&a",
  "*a",
  "|",
  ">",
  "a,b",
  "=",
  "<<",
  "on",
  ".5",
  "-.inf",
  "12:30:45",
  "\u0085",
  "\u2028",
  "a\\",
  "$x",
  "x'y\"z",
];
const NUMBERS = [0, -0, 1, -1, 0.1, 1e-6, 1e-300, 1e21, 5e-324, 123456789, 2 ** 53 - 1, -2.5, Infinity, -Infinity];

function randomValue(random: Random, depth: number): YamlValue {
  const kind = random.below(depth > 2 ? 4 : 6);
  if (kind === 0) return random.pick(NUMBERS);
  if (kind === 1) return random.next() < 0.5;
  if (kind === 2) return null;
  if (kind === 3) return random.pick(TEXTS);
  if (kind === 4) return Array.from({ length: random.below(4) }, () => randomValue(random, depth + 1));
  return randomTree(random, depth + 1);
}

function randomTree(random: Random, depth = 0): Tree {
  const entries = Array.from({ length: 1 + random.below(5) }, () => [
    random.pick(["a", "b", "c d", "e.f", "n", "1", "yes", "ü", "k-1"]),
    randomValue(random, depth),
  ]);
  return Object.fromEntries(entries);
}

describe("random trees", () => {
  test("survive being written and read: YAML, one-line YAML, override values", () => {
    for (let seed = 0; seed < 700; seed++) {
      const random = randomOf(seed);
      const tree = randomTree(random);
      const text = toYaml(tree);
      const read = readYaml(text, "x");
      expect(read.problems, text).toEqual([]);
      // Keys with a dot are escaped in paths only: the tree itself is the same.
      expect(equalValues(read.tree, tree), `${seed}\n${text}`).toBe(true);
      const line = inline(tree);
      expect(equalValues(readYaml(`x: ${line}`, "x").tree.x, tree), `${seed} ${line}`).toBe(true);
    }
  });

  test.skipIf(!hasPyYaml())("PyYAML reads the same: what we write is safe for Python's readers", () => {
    const trees = Array.from({ length: 400 }, (_, seed) => randomTree(randomOf(seed + 10_000)));
    const finite = trees.filter((tree) => !/\.inf/.test(toYaml(tree)));
    const script = "import json, sys, yaml; print(json.dumps([yaml.safe_load(text) for text in json.load(sys.stdin)]))";
    const input = JSON.stringify(finite.map((tree) => toYaml(tree)));
    const { stdout, stderr } = spawnSync("python3", ["-c", script], {
      input,
      encoding: "utf8",
      maxBuffer: 1e9,
    });
    expect(stderr).toBe("");
    const read = JSON.parse(stdout) as Tree[];
    expect(read.length).toBeGreaterThan(200);
    read.forEach((tree, i) => {
      expect(equalValues(tree, finite[i]) || toYaml(finite[i]!)).toBe(true);
    });
  });

  test("values survive the override grammar", () => {
    for (let seed = 0; seed < 700; seed++) {
      const random = randomOf(seed);
      const value = randomValue(random, 1);
      // A name that Hydra's grammar cannot write.
      if (/"ü":/.test(JSON.stringify(value))) {
        expect(() => overrideText(value)).toThrow("Hydra's grammar cannot");
        continue;
      }
      const text = overrideText(value);
      expect(equalValues(parseValue(text), value), `${seed} ${text}`).toBe(true);
    }
  });
});

function fitting(random: Random, field: Field): YamlValue | undefined {
  const [low, high] = [field.min ?? 0, field.max ?? (field.min ?? 0) + 50];
  if (field.choices && field.type === "str") return random.pick(field.choices);
  if (field.type === "bool") return random.next() < 0.5;
  if (field.type === "int") return low + random.below(high - low + 1);
  if (field.type === "float") return low + Math.round(random.next() * (high - low) * 1e4) / 1e4;
  if (field.type === "str") return random.pick(["x", "true", "7", "a b", "é"]);
  return undefined;
}

describe("random valid settings", () => {
  for (const backend of BACKENDS) {
    test(`${backend}: compose, show and compose again to the same`, () => {
      const fields = [...schemaOf(backend).fields].filter(
        ([path]) =>
          statusOf(path, backend) !== "refused" &&
          // What is shown of a secret is its mask.
          !isSecret(path) &&
          !/backend|rejection_sample|async_training|resume|\.mode$/.test(path),
      );
      for (let seed = 0; seed < 8; seed++) {
        const random = randomOf(seed);
        const set = Array.from({ length: 12 }, () => random.pick(fields)).flatMap(([path, field]) => {
          const value = fitting(random, field);
          return value === undefined ? [] : [`${path}=${overrideText(value)}`];
        });
        const first = attempt([`rllm/backend=${backend}`, "rllm.rollout.n=5", "rllm.rollout.n_val=2", ...set]);
        // Rules between settings may refuse a random set: that is told, never thrown.
        if (first.problems.length > 0) continue;
        const shown = showConfig(first.config).replace(/^ +admin_token: .*\n/m, "");
        const second = attempt([], { texts: { "x.yaml": shown } });
        expect(second.problems, set.join(" ")).toEqual([]);
        expect(equalValues(second.config, first.config) || set.join(" ")).toBe(true);
      }
    });
  }

  test("verl to Trinity and back is lossless", () => {
    // Arguments of losses and estimators are completed or left out by function: convert_test.ts has them in a table.
    const byFunction = /policy_loss|advantage_fn_args/;
    const reversible = ROWS.filter(
      ({ isCadence, verl, trinity }) =>
        !isCadence &&
        !byFunction.test(trinity) &&
        !/kl_ctrl|lora_|kl_loss_coef|repeat_times|resume/.test(verl + trinity),
    );
    for (let seed = 0; seed < 80; seed++) {
      const random = randomOf(seed);
      const lines = new Map<string, YamlValue>([["algorithm.adv_estimator", "grpo"]]);
      for (let i = 0; i < 8; i++) {
        const row = random.pick(reversible);
        const value = row.values
          ? random.pick(row.values)[0]
          : random.pick<YamlValue>([1, 2.5, 1e-6, "x y", true, "${oc.env:HOME}/m"]);
        if (!/nnodes|n_gpus|length|token_len|parallel|tensor|model_len|n$/.test(row.verl)) lines.set(row.verl, value);
      }
      const mini = 2 ** random.below(6);
      lines.set("actor_rollout_ref.actor.ppo_mini_batch_size", mini);
      lines.set("data.train_batch_size", mini * (1 + random.below(5)));
      lines.set("actor_rollout_ref.rollout.n", 2 + random.below(6));
      lines.set("actor_rollout_ref.actor.use_kl_loss", random.next() < 0.5);
      lines.set(
        "data.train_files",
        random.pick<YamlValue>(["/a/train.parquet", ["/a/train.parquet", "/b/test.parquet"]]),
      );
      const text = writeArgs(new Map([...lines].map(([path, value]) => [path, { value, from: [] }])));
      const source = readSource([{ name: "x.args", text }], "verl");
      const profile = new Map<string, YamlValue>([["explorer.rollout_model.engine_num", 1]]);
      const there = convert(source, { to: "trinity", readConfig, profile });
      expect(there.problems, text).toEqual([]);
      const values = new Map([...there.values].map(([path, { value }]) => [path, { value, file: "x" }]));
      const back = convert({ system: "trinity", values, problems: [] }, { to: "verl", readConfig });
      expect(back.problems, text).toEqual([]);
      const got = Object.fromEntries([...back.values].map(([path, { value }]) => [path, value]));
      if (lines.get("actor_rollout_ref.actor.use_kl_loss") === true) {
        expect(got["actor_rollout_ref.actor.kl_loss_type"]).toBe("low_var_kl");
        delete got["actor_rollout_ref.actor.kl_loss_type"];
      }
      expect(got, text).toEqual(Object.fromEntries(lines));
    }
  });
});

describe("random damage", () => {
  test("a broken YAML never throws and always names a line", () => {
    const good = readConfig("rllm/backend/tinker.yaml") ?? "";
    let broken = 0;
    for (let seed = 0; seed < 200; seed++) {
      const random = randomOf(seed);
      let text = good;
      for (let cuts = 1 + random.below(4); cuts > 0; cuts--) {
        const at = random.below(text.length);
        const junk = random.pick([...TEXTS, "\n", "\n  ", ": ", "- ", "\t", "}", "???", "${", "&x *x", "<<: *x"]);
        text = text.slice(0, at) + junk + text.slice(at + random.below(6));
      }
      const { problems } = readYaml(text, "x.yaml");
      for (const problem of problems) expect(problem.line ?? 0, text).toBeGreaterThan(0);
      if (problems.length > 0) broken++;
    }
    expect(broken).toBeGreaterThan(50);
  });

  test("a file of random damage is validated without throwing", () => {
    const good =
      "rllm:\n  backend: tinker\n  rollout:\n    n: 4\n    train: {top_k: 5}\ntraining:\n  group_size: 4\nmodel: {name: x}\n";
    for (let seed = 0; seed < 60; seed++) {
      const random = randomOf(seed);
      const at = random.below(good.length);
      const text = good.slice(0, at) + random.pick(TEXTS) + good.slice(at + random.below(4));
      const { problems } = validateFile({ name: "x.yaml", text }, { readConfig });
      for (const { message } of problems) expect(message.length, text).toBeGreaterThan(5);
    }
  });

  test("random override text is read or refused with our own error", () => {
    const pieces = [
      "rllm.rollout.n",
      "=",
      "+",
      "~",
      "[",
      "]",
      "{",
      "}",
      "'",
      '"',
      ",",
      ":",
      "${",
      "a",
      "1",
      "/",
      "\\",
      " ",
      ".",
      "__proto__",
    ];
    for (let seed = 0; seed < 2000; seed++) {
      const random = randomOf(seed);
      const text = Array.from({ length: 1 + random.below(9) }, () => random.pick(pieces)).join("");
      try {
        parseOverride(text);
      } catch (error) {
        expect((error as Error).name, text).toBe("ConfigError");
      }
    }
    expect(getAt({}, "constructor.name")).toBeUndefined();
  });
});
