/**
 * The packaged YAML and the tables hold each other: a file is exactly what its table renders.
 * After a change to a table: npx vitest run test/train/config/yaml_test.ts -u
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import type { Field } from "../../../src/train/config/fields/field.ts";
import { packagedFiles } from "../../../src/train/config/fields/packaged.ts";
import { renderFields } from "../../../src/train/config/fields/render.ts";
import type { RowCommand } from "../../../src/train/config/fields/reward_model.ts";
import { RLLM_FIELDS } from "../../../src/train/config/fields/rllm.ts";
import { VERL_NOTES } from "../../../src/train/config/fields/verl.ts";
import {
  allVerlLeaves,
  VERL_ENGINES,
  VERL_SECTIONS,
  VERL_VERSIONS,
  verlFields,
  verlFiles,
  verlHead,
} from "../../../src/train/config/fields/verl_tree.ts";
import { rowSchema, schemaOf } from "../../../src/train/config/schema.ts";
import { readYaml } from "../../../src/train/config/yaml/read.ts";
import { readPlain } from "../../../src/train/config/yaml/read_plain.ts";
import { flatten, leaves } from "../../../src/train/config/yaml/tree.ts";
import { attempt, readConfig } from "./disk.ts";

const VERL_FILES = VERL_VERSIONS.flatMap((version) =>
  [undefined, ...VERL_ENGINES[version]!].map((engine) => ({
    version,
    engine,
    name: verlFiles(version, engine)[engine === undefined ? 0 : 1],
  })),
);

describe("the quick reader", () => {
  const names = [
    "rllm/base.yaml",
    "rllm/backend/local.yaml",
    "rllm/backend/tinker.yaml",
    "sft.yaml",
    "dpo.yaml",
    "reward-model.yaml",
    ...VERL_FILES.map(({ name }) => name),
  ];
  for (const name of names) {
    test(`${name} reads as the full reader reads it`, () => {
      const text = readConfig(name!) ?? "";
      const [quick, full] = [readPlain(text), readYaml(text, name!)];
      expect(quick).toBeDefined();
      expect(quick).toEqual(full);
    });
  }

  test("anything else needs the full reader", () => {
    for (const text of [
      "- 1\n",
      "a:\n   b: 1\n",
      "a: &x 1\n",
      "a: 1 # c\n",
      "a: |\n  x\n",
      "a: 1\na: 2\n",
      "a: yes: 1\n",
      "a.b: 1\n",
      "a: ~\n",
      "  a: 1\n",
      "a: [1\n",
    ]) {
      expect([text, readPlain(text)]).toEqual([text, undefined]);
    }
    expect(readPlain("a:\nb: 1\n")?.tree).toEqual({ a: null, b: 1 });
    expect(readPlain('"a b":\n  "c": 1\n')?.tree).toEqual({ "a b": { c: 1 } });
    expect(readPlain('"a.b": 1\n')).toBeUndefined();
  });
});

describe("names of the engine", () => {
  test("every built-in estimator and loss is an allowed value", async () => {
    await import("../../../src/engine/algorithm/mod.ts");
    const { estimatorNames } = await import("../../../src/engine/algorithm/advantage/estimators.ts");
    const { lossNames } = await import("../../../src/engine/algorithm/loss/losses.ts");
    const allowed = (path: keyof typeof RLLM_FIELDS) => (RLLM_FIELDS[path] as Field).choices ?? [];
    expect([...estimatorNames()].filter((name) => !allowed("rllm.algorithm.adv_estimator").includes(name))).toEqual([]);
    expect([...lossNames()].filter((name) => !allowed("rllm.algorithm.loss_fn").includes(name))).toEqual([]);
    expect([...estimatorNames()].length).toBeGreaterThan(5);
  });
});

/** Examples of commands that train on rows. */
const ROW_EXAMPLES: Readonly<Record<string, { readonly base: RowCommand }>> = {
  "sft/run.yaml": { base: "sft" },
  "dpo/run.yaml": { base: "dpo" },
  "reward_model/run.yaml": { base: "reward-model" },
};

describe("ready-made runs", () => {
  const folder = new URL("../../../examples/", import.meta.url);
  const files = existsSync(folder)
    ? (readdirSync(folder, { recursive: true }) as string[]).filter(
        (name) => name.endsWith(".yaml") && !name.endsWith("compose.yaml"),
      )
    : [];

  test("there are some", () => expect(files.length).toBeGreaterThan(0));

  for (const name of files) {
    test(`${name} composes without a problem`, () => {
      const place = (path: string) => new URL(path, folder);
      const { problems } = attempt([], {
        ...ROW_EXAMPLES[name],
        files: [name],
        readFile: (path) => (existsSync(place(path)) ? readFileSync(place(path), "utf8") : undefined),
        allowMissing: false,
        env: { HOME: "/home/me" },
      });
      expect(problems).toEqual([]);
    });
  }
});

describe("packaged YAML", () => {
  for (const [name, text] of Object.entries(packagedFiles())) {
    test(`${name} is what its table renders`, async () => {
      await expect(text).toMatchFileSnapshot(`../../../config/${name}`);
    });

    test(`${name} reads back with every default of its table`, () => {
      const { tree, problems } = readYaml(text, name);
      expect(problems).toEqual([]);
      const mount = name === "rllm/base.yaml" ? "rllm." : "";
      const backend = /backend\/(\w+)/.exec(name)?.[1] as "local" | undefined;
      const { defaults: _, ...rest } = tree;
      const read = flatten(rest);
      const command = /^(sft|dpo|reward-model)\.yaml$/.exec(name)?.[1] as RowCommand | undefined;
      const { fields } = command ? rowSchema(command) : schemaOf(backend ?? "local");
      expect(read.size).toBeGreaterThan(10);
      for (const [path, value] of read) expect([path, fields.get(mount + path)?.default]).toEqual([path, value]);
    });
  }

  for (const { version, engine, name } of VERL_FILES) {
    test(`${name}: values stand in the file, comments come from the notes`, async () => {
      const { tree, problems } = readYaml(readConfig(name!) ?? "", name!);
      expect(problems).toEqual([]);
      const options = { head: verlHead(version, engine), sections: VERL_SECTIONS };
      const text = renderFields(verlFields(leaves(tree)), options);
      await expect(text).toMatchFileSnapshot(`../../../config/${name}`);
    });
  }

  test("every note of a verl setting is about one that some tree has", () => {
    const known = allVerlLeaves(readConfig);
    expect(Object.keys(VERL_NOTES).filter((path) => !known.has(path))).toEqual([]);
  });
});
