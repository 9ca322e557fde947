/** How a configuration and a table of settings are written: YAML, JSON, origins, comments. */
import { describe, expect, test } from "vitest";
import {
  any,
  describeType,
  dict,
  each,
  float,
  int,
  list,
  oneOf,
  open,
  str,
} from "../../../src/train/config/fields/field.ts";
import { renderFields } from "../../../src/train/config/fields/render.ts";
import { showConfig, toDocument, toYaml } from "../../../src/train/config/show.ts";
import { readUserLayers } from "../../../src/train/config/user_input.ts";
import type { Origins } from "../../../src/train/config/yaml/layer.ts";
import type { Tree } from "../../../src/train/config/yaml/tree.ts";

const TREE: Tree = {
  model: { name: "a b", api_key: "hunter2", "x.y": { deep: [1, { k: "v" }] } },
  rate: 1e-6,
  top: Number.POSITIVE_INFINITY,
  none: Number.NaN,
  empty: {},
  list: [],
};
const ORIGINS: Origins = new Map([
  ["model.name", { level: 3, text: "run.yaml:2" }],
  ["model.x\\.y", { level: 4, text: "override model.x\\.y.deep=[1]" }],
  ["rate", { level: 1, text: "config/rllm/base.yaml:7" }],
]);

describe("a configuration", () => {
  test("as YAML has sections by indent, and values on one line; secrets are masked", () => {
    expect(showConfig(TREE)).toBe(
      [
        "model:",
        "  name: a b",
        '  api_key: "********"',
        "  x.y:",
        "    deep: [1, {k: v}]",
        "rate: 1.0e-06",
        "top: .inf",
        "none: .nan",
        "empty: {}",
        "list: []",
        "",
      ].join("\n"),
    );
    expect(toYaml({})).toBe("{}\n");
  });

  test("says where each value came from, in one column", () => {
    expect(showConfig(TREE, { origins: ORIGINS }).split("\n").slice(0, 7)).toEqual([
      "model:",
      "  name: a b            # run.yaml:2",
      '  api_key: "********"  # default',
      "  x.y:",
      "    deep: [1, {k: v}]  # override model.x\\.y.deep=[1]",
      "rate: 1.0e-06          # config/rllm/base.yaml:7",
      "top: .inf              # default",
    ]);
    const wide = showConfig({ a: "x".repeat(70), b: 1 }, { origins: new Map() }).split("\n");
    expect(wide).toEqual([`a: ${"x".repeat(70)}  # default`, `${"b: 1".padEnd(60)}  # default`, ""]);
  });

  test("as JSON has no number that JSON lacks, and origins by path", () => {
    const text = showConfig(TREE, { format: "json" });
    expect(JSON.parse(text)).toMatchObject({ rate: 1e-6, top: ".inf", none: ".nan", model: { api_key: "********" } });
    expect(text.split("\n")[1]).toBe('  "model": {');
    expect(text.endsWith("}\n")).toBe(true);
    const shown = JSON.parse(showConfig(TREE, { format: "json", origins: ORIGINS }));
    expect(shown["model.name"]).toEqual({ value: "a b", origin: "run.yaml:2" });
    expect(shown["model.x\\.y.deep"]).toEqual({ value: [1, { k: "v" }], origin: "override model.x\\.y.deep=[1]" });
    expect(shown.list).toEqual({ value: [], origin: "default" });
  });

  test("as a document has portable numbers, and sections of lists on lines of their own", () => {
    expect(toDocument({ rate: 1e-6, list: [{ a: 1, b: [2] }], text: "x", none: null }).toString()).toBe(
      "rate: 1.0e-06\nlist:\n  - a: 1\n    b:\n      - 2\ntext: x\nnone: null\n",
    );
  });
});

test.each([
  [int(1, "", { min: 1 }), "int >= 1"],
  [int(1, "", { max: 9 }), "int <= 9"],
  [float(1, "", { min: 0, max: 1 }), "float in [0, 1]"],
  [int(null, "", { min: 0 }), "int >= 0, or null"],
  [str(null, ""), "str, or null"],
  [oneOf(["a", "b"], "a", ""), "one of a, b"],
  [oneOf(["a"], null, "", { open: true }), "one of a, or a registered name, or null"],
  [list([], "", { choices: ["x", "y"] }), "list of x, y"],
  [list(null, ""), "list, or null"],
  [any(1, ""), "any value"],
  [dict(""), "dict"],
])("(%#) the type of a setting reads %s", (field, text) => {
  expect(describeType(field)).toBe(text);
});

test("columns that rows have alike are given once, and a row's own wins", () => {
  const rows = each({ why: "all", on: "acts" }, { a: int(1, ""), b: int(2, "", { why: "own" }) });
  expect([rows.a.why, rows.b.why, rows.b.on]).toEqual(["all", "own", "acts"]);
});

describe("a table of settings", () => {
  const FIELDS = {
    "rllm.top": int(1, "the top"),
    "rllm.a.b.c": float(2, "a number", { min: 0, note: "And a note." }),
    "rllm.a.b.d": float(1e6, ""),
    "rllm.a.left": int(3, "left out", { optional: true }),
    "rllm.a.any.*": open("further keys pass"),
    "rllm.z": str(`word ${"long ".repeat(30).trim()}`, "w".repeat(60) + " ".concat("v".repeat(47))),
  };

  test("is written with its head, sections, comments and types", () => {
    const text = renderFields(FIELDS, {
      head: "Two\n\nlines",
      preamble: "defaults: [x]",
      sections: { "rllm.a": "the section a" },
    });
    expect(text.split("\n").slice(0, 16)).toEqual([
      "# Two",
      "#",
      "# lines",
      "defaults: [x]",
      "",
      "rllm:",
      "  # The top (int).",
      "  top: 1",
      "  # the section a",
      "  a:",
      "    b:",
      "      # A number (float >= 0). And a note.",
      "      c: 2.0",
      "      d: 1000000",
      "    any:",
      "      # Further keys pass.",
    ]);
    expect(text).not.toContain("left");
  });

  test("mounted at a section leaves that out, and parts its sections by empty lines", () => {
    const lines = renderFields(FIELDS, { head: "H", mount: "rllm" }).split("\n");
    expect(lines.slice(0, 9)).toEqual([
      "# H",
      "",
      "# The top (int).",
      "top: 1",
      "",
      "a:",
      "  b:",
      "    # A number (float >= 0). And a note.",
      "    c: 2.0",
    ]);
    const z = lines.findIndex((line) => line.startsWith("z:"));
    // 110 columns, and no more.
    expect(lines.slice(z - 3, z)).toEqual(["", `# W${"w".repeat(59)} ${"v".repeat(47)}`, "# (str)."]);
  });
});

describe("a user's files", () => {
  const layersOf = (texts: Record<string, string>, files: string[]) => {
    const problems: { message: string }[] = [];
    const options = { files, readFile: (path: string) => texts[path], readConfig: () => "" };
    const layers = readUserLayers(options, [], problems as never);
    return { layers: layers.map(({ file }) => file), problems: problems.map(({ message }) => message) };
  };

  test.each<[string, string[]]>([
    ["defaults: [a, _self_, b]\n", ["d/a.yaml", "d/run.yaml", "d/b.yaml"]],
    ["defaults: [a]\n", ["d/a.yaml", "d/run.yaml"]],
    ["defaults: [_self_, _self_, a]\n", ["d/run.yaml", "d/a.yaml"]],
    ["defaults: [c.yml, /d/a]\n", ["d/c.yml", "/d/a.yaml", "d/run.yaml"]],
    ["defaults: [unified, /ppo_trainer, ppo_megatron_trainer, base, a]\n", ["d/a.yaml", "d/run.yaml"]],
    ["defaults: [rllm/backend: verl, a]\n", ["d/a.yaml", "d/run.yaml"]],
    ["x: 1\n", ["d/run.yaml"]],
    ["defaults: [c.yml.old]\n", ["d/c.yml.old.yaml", "d/run.yaml"]],
  ])("are laid in the order of %j", (text, order) => {
    const texts = {
      "d/run.yaml": text,
      "d/a.yaml": "a: 1\n",
      "/d/a.yaml": "a: 2\n",
      "d/b.yaml": "b: 1\n",
      "d/c.yml": "",
      "d/c.yml.old.yaml": "",
    };
    expect(layersOf(texts, ["d/run.yaml"])).toEqual({ layers: order, problems: [] });
  });

  test("without a folder lie beside each other; two may name a third", () => {
    const texts = { "a.yaml": "defaults: [c]\n", "b.yaml": "defaults: [c]\n", "c.yaml": "x: 1\n" };
    expect(layersOf(texts, ["a.yaml", "b.yaml"])).toEqual({
      layers: ["c.yaml", "a.yaml", "c.yaml", "b.yaml"],
      problems: [],
    });
  });

  test("that are missing or broken are reported and left out", () => {
    expect(layersOf({}, ["a.yaml"])).toEqual({
      layers: [],
      problems: ["Cannot read the configuration a.yaml: there is no such file."],
    });
    const { layers, problems } = layersOf({ "a.yaml": "a: [1\n", "b.yaml": "b: 1\n" }, ["a.yaml", "b.yaml"]);
    expect(layers).toEqual(["b.yaml"]);
    expect(problems[0]).toMatch(/^Cannot read the YAML: /);
  });
});
