// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** The parts of a configuration by figures: rules, types, paths, layers, masks, and how values are written. */
import { describe, expect, test } from "vitest";
import type { Field } from "../../../src/train/config/fields/field.ts";
import { fitValue } from "../../../src/train/config/fields/fit.ts";
import { inline, inlineNumber, inlineText } from "../../../src/train/config/fields/render.ts";
import { checkChoice } from "../../../src/train/config/hydra/groups.ts";
import { interpolator } from "../../../src/train/config/hydra/interpolate.ts";
import { pythonFloat, readFloat } from "../../../src/train/config/hydra/parsed_value.ts";
import { nearestPath } from "../../../src/train/config/problem.ts";
import { checkRules } from "../../../src/train/config/rules/rules.ts";
import { maskOverride, maskTree, maskValue, showSetting } from "../../../src/train/config/secret.ts";
import {
  LEVEL,
  levelAt,
  lineOf,
  mergeTree,
  type Origins,
  originOf,
  readLayer,
} from "../../../src/train/config/yaml/layer.ts";
import {
  deleteAt,
  equalValues,
  flatten,
  getAt,
  hasInterpolation,
  joinPath,
  leaves,
  setAt,
  splitPath,
  type Tree,
  unflatten,
  type YamlValue,
} from "../../../src/train/config/yaml/tree.ts";

describe("a rule between settings", () => {
  const FINE: Readonly<Record<string, YamlValue>> = {
    "rllm.rejection_sample.multiplier": 1,
    "rllm.rejection_sample.enable": false,
    "rllm.rejection_sample.min_trajs_per_group": 2,
    "rllm.rollout.n": 8,
    "rllm.rollout.train.temperature": 1,
    "rllm.trainer.val_only": false,
    "rllm.async_training.enable": false,
    "rllm.workflow.raise_on_error": false,
    "rllm.algorithm.rollout_correction.bypass_mode": false,
    "rllm.algorithm.rollout_correction.tis_mode": null,
    "rllm.algorithm.router_replay": "disabled",
    "rllm.data.max_prompt_length": 10,
    "rllm.data.max_response_length": 20,
    "training.max_length": 30,
    "training.max_off_policy_threshold": null,
    "training.max_off_policy_strategy": "drop",
    "training.resume_mode": "auto",
    "training.resume_from_path": null,
    "model.name": null,
    "model.init.hidden_size": 16,
    "model.init.heads": 4,
    "model.init.kv_heads": 2,
  };
  const found = (changes: Record<string, YamlValue>, backend: "local" | "tinker" | "verl" = "local") =>
    checkRules(unflatten(Object.entries({ ...FINE, ...changes })), { backend, isReady: true });

  test("is kept by usual settings, on every backend", () => {
    for (const backend of ["local", "tinker", "verl"] as const) expect(found({}, backend)).toEqual([]);
  });

  const multiplier = "rllm.rejection_sample.multiplier";
  const correction = "rllm.algorithm.rollout_correction";
  const strategy = "training.max_off_policy_strategy";
  test.each<[string, Record<string, YamlValue>, string | undefined]>([
    ["oversampling needs rejection", { [multiplier]: 2 }, multiplier],
    ["oversampling with rejection", { [multiplier]: 2, "rllm.rejection_sample.enable": true }, undefined],
    ["groups that are all dropped", { "rllm.rollout.n": 1 }, "rllm.rollout.n"],
    ["groups as large as the least", { "rllm.rollout.n": 2 }, undefined],
    ["a group size that is not set", { "rllm.rollout.n": "???" }, undefined],
    ["no least group", { "rllm.rollout.n": 1, "rllm.rejection_sample.min_trajs_per_group": null }, undefined],
    ["a group size in validation alone", { "rllm.rollout.n": 1, "rllm.trainer.val_only": true }, undefined],
    [
      "asynchronous training that raises",
      { "rllm.async_training.enable": true, "rllm.workflow.raise_on_error": true },
      "rllm.workflow.raise_on_error",
    ],
    ["synchronous training that raises", { "rllm.workflow.raise_on_error": true }, undefined],
    ["asynchronous training that goes on", { "rllm.async_training.enable": true }, undefined],
    [
      "correction in bypass mode",
      { [`${correction}.bypass_mode`]: true, [`${correction}.tis_mode`]: "token" },
      `${correction}.tis_mode`,
    ],
    ["bypass mode alone", { [`${correction}.bypass_mode`]: true }, undefined],
    ["correction alone", { [`${correction}.tis_mode`]: "token" }, undefined],
    ["heads that kv_heads does not divide", { "model.init.kv_heads": 3 }, "model.init.kv_heads"],
    ["the same of a model that is given", { "model.init.kv_heads": 3, "model.name": "x" }, undefined],
    ["kv_heads of 0, which its type refuses", { "model.init.kv_heads": 0 }, undefined],
    ["a path to resume from, unnamed", { "training.resume_mode": "resume_path" }, "training.resume_from_path"],
    ["a path to resume from", { "training.resume_mode": "resume_path", "training.resume_from_path": "x" }, undefined],
    ["a path that is not resumed from", { "training.resume_from_path": "x" }, "training.resume_from_path"],
    ["masks of old replies without an age", { [strategy]: "mask" }, strategy],
    ["masks of old replies", { [strategy]: "mask", "training.max_off_policy_threshold": 0 }, undefined],
    ["sequences longer than a row may be", { "training.max_length": 29 }, "training.max_length"],
  ])("%s", (_, changes, path) => {
    expect(found(changes).map((finding) => finding.path)).toEqual(path === undefined ? [] : [path]);
  });

  test.each<[Record<string, YamlValue>, string]>([
    [{ [multiplier]: 2 }, `Cannot set ${multiplier}=2: rejection sampling is off.`],
    [
      { "rllm.rollout.n": 1 },
      "rllm.rollout.n=1 trains nothing: rllm.rejection_sample.min_trajs_per_group=2 drops every group.",
    ],
    [{ "model.init.kv_heads": 3 }, "Cannot build the model: kv_heads does not divide heads (3, 4)."],
    [{ "training.max_length": 29 }, "training.max_length=29 is less than prompt and response together (30)."],
  ])("%o names the values", (changes, message) => {
    expect(found(changes)[0]!.message).toContain(message);
  });

  test("of one backend does not hold for others", () => {
    for (const path of ["rllm.rollout.train.temperature", "rllm.algorithm.router_replay"]) {
      const changes = { [path]: path.endsWith("temperature") ? 0.7 : "R2", "rllm.algorithm.kl_beta": 0.1 };
      expect([found(changes, "tinker"), found(changes, "local")].map((all) => all.map((it) => it.path))).toEqual([
        [path],
        [],
      ]);
    }
    expect(found({ "model.init.kv_heads": 3 }, "tinker")).toEqual([]);
    expect(found({ "training.max_length": 29 }, "verl")).toEqual([]);
  });
});

describe("a value and the type of its setting", () => {
  const INT: Field = { type: "int", default: 1, min: 1, max: 9, describe: "", nullable: false };
  const CHOICE: Field = { type: "str", default: "a", choices: ["alpha", "beta"], describe: "", nullable: false };
  const LIST: Field = { type: "list", default: ["x"], describe: "", nullable: false };
  test.each<[Field, YamlValue, YamlValue]>([
    [INT, 1, 1],
    [INT, 9, 9],
    [INT, "${a.b}", "${a.b}"],
    [INT, "???", "???"],
    [{ ...INT, nullable: true }, null, null],
    [{ ...INT, type: "float" }, 1.5, 1.5],
    [{ ...INT, type: "any" }, "what", "what"],
    [{ ...INT, type: "bool" }, false, false],
    [{ ...INT, type: "dict" }, { a: 1 }, { a: 1 }],
    [{ type: "str", default: "", describe: "", nullable: false }, 7, "7"],
    [{ type: "str", default: "", describe: "", nullable: false }, true, "true"],
    [CHOICE, "beta", "beta"],
    [LIST, "y", ["y"]],
    [LIST, ["y", "z"], ["y", "z"]],
    [{ ...LIST, choices: ["x", "y"] }, "y", ["y"]],
  ])("(%#) fit", (field, value, fitted) => {
    expect(fitValue("a.b", field, value)).toEqual({ value: fitted });
  });

  test.each<[Field, YamlValue, RegExp]>([
    [INT, 0, /^Cannot set a\.b: it takes int.*\(0\)\.$/],
    [INT, 10, /\(10\)\.$/],
    [INT, 1.5, /\(1\.5\)\.$/],
    [INT, Number.NaN, /\(NaN\)\.$/],
    [INT, null, /^Cannot set a\.b: it takes int.*, not null\.$/],
    [INT, "3", /\("3"\)\. Remove the quotes: this is text\.$/],
    [INT, "", /\(""\)\.$/],
    [INT, "x", /\("x"\)\.$/],
    [{ ...INT, type: "float" }, Number.NaN, /\(NaN\)\.$/],
    [{ ...INT, type: "bool" }, "yes", /YAML 1\.2 reads only true and false\.$/],
    [{ ...INT, type: "bool" }, "maybe", /\("maybe"\)\.$/],
    [{ ...INT, type: "bool" }, "yes please", /\("yes please"\)\.$/],
    [{ ...INT, type: "bool" }, "oh no", /\("oh no"\)\.$/],
    [{ ...INT, type: "bool" }, "OFF", /\("OFF"\)\. YAML 1\.2 reads only true and false\.$/],
    [{ ...INT, type: "dict" }, [1], /it takes a mapping \(\[1\]\)\.$/],
    [{ type: "str", default: "", describe: "", nullable: false }, [1], /\(\[1\]\)\.$/],
    [{ ...LIST, default: [] }, "y", /it takes a .*, in brackets \("y"\)\.$/],
    [LIST, 7, /in brackets \(7\)\.$/],
    [CHOICE, "bet", /^Cannot set a\.b: it takes alpha, beta \("bet"\)\. Did you mean beta\?$/],
    [{ ...CHOICE, nullable: true }, "zzz", /it takes alpha, beta, or null \("zzz"\)\.$/],
    [{ ...LIST, choices: ["x", "y"] }, ["x", "q"], /it takes x, y \("q"\)\./],
    [{ ...INT, type: "dict" }, "x".repeat(90), /\("x{76}\.\.\.\)\.$/],
  ])("(%#) do not fit, and the value is shown", (field, value, message) => {
    expect(fitValue("a.b", field, value).problem).toMatch(message);
  });

  test("of a name that a module may register", () => {
    const field: Field = { ...CHOICE, open: true };
    expect(fitValue("a.b", field, "bet").warning).toBe(
      "a.b=bet is not built in (nearest built in: beta): it must be registered by a module given with --import.",
    );
    expect(fitValue("a.b", field, "own", { "a.b": ["own"] })).toEqual({ value: "own" });
    expect(fitValue("a.b", field, "other", { "a.b": ["own"] }).problem).toContain("it takes alpha, beta, own");
    expect(fitValue("a.b", { ...LIST, choices: ["x"] }, ["own"], { "a.b": ["own"] })).toEqual({ value: ["own"] });
  });
});

describe("a tree and its paths", () => {
  test.each<[string, string[]]>([
    ["a", ["a"]],
    ["a.b.c", ["a", "b", "c"]],
    ["a[0].b[12]", ["a", "0", "b", "12"]],
    ["a\\.b.c", ["a.b", "c"]],
    ["a[1].b\\.c", ["a", "1", "b.c"]],
  ])("%s splits into its keys", (path, keys) => {
    expect(splitPath(path)).toEqual(keys);
    expect(splitPath(joinPath(...keys))).toEqual(keys);
  });

  test("is read by paths, without what objects inherit", () => {
    const tree: Tree = { a: { b: [1, { c: 2 }], "d.e": 3 } };
    expect(["a.b[1].c", "a.b.0", "a.d\\.e", ""].map((path) => getAt(tree, path))).toEqual([2, 1, 3, tree]);
    expect(["a.x", "a.b.0.c", "toString", "a.b.length"].map((path) => getAt(tree, path))).toEqual([
      undefined,
      undefined,
      undefined,
      2,
    ]);
  });

  test("is written by paths: missing sections are made, leaves in the way are replaced, items are set in place", () => {
    const tree: Tree = { a: 1, list: [1, { b: 2 }] };
    setAt(tree, "a.b.c", 5);
    setAt(tree, "list.1.b", 7);
    setAt(tree, "toString.x", 1);
    expect(tree).toEqual({ a: { b: { c: 5 } }, list: [1, { b: 7 }], toString: { x: 1 } });
    for (const path of ["__proto__.x", "a.__proto__"])
      expect(() => setAt(tree, path, 1)).toThrow("Cannot use __proto__ as a setting. Rename the key");
  });

  test("loses a path, and says whether it was there", () => {
    const tree: Tree = { a: { b: 1 }, c: 2 };
    expect(["a.b", "a.b", "x.y", "c", "a.toString"].map((path) => deleteAt(tree, path))).toEqual([
      true,
      false,
      false,
      true,
      false,
    ]);
    expect(tree).toEqual({ a: {} });
  });

  test("has leaves in order: empty sections and lists are leaves", () => {
    const tree: Tree = { a: { b: 1, c: {} }, d: [], "e.f": { g: null } };
    expect([...leaves(tree)]).toEqual([
      ["a.b", 1],
      ["a.c", {}],
      ["d", []],
      ["e\\.f.g", null],
    ]);
    expect(unflatten(flatten(tree))).toEqual(tree);
  });

  test.each<[YamlValue | undefined, YamlValue | undefined, boolean]>([
    [1, 1, true],
    [Number.NaN, Number.NaN, true],
    [0, -0, true],
    [1, "1", false],
    [null, undefined, false],
    [[1, [2]], [1, [2]], true],
    [[1], [1, 2], false],
    [[1, 2], [1], false],
    [[1], [2], false],
    [{ a: 1, b: [2] }, { b: [2], a: 1 }, true],
    [{ a: 1 }, { a: 1, b: 2 }, false],
    [{ a: 1, b: 2 }, { a: 1 }, false],
    [{ a: 1 }, { b: 1 }, false],
    [{ 0: 1 }, [1], false],
  ])("equality of %j and %j is %j", (a, b, isEqual) => {
    expect(equalValues(a, b)).toBe(isEqual);
  });

  test.each<[YamlValue | undefined, boolean]>([
    ["${a}", true],
    ["$a", false],
    [["x", ["y${z}"]], true],
    [{ a: { b: "${c}" } }, true],
    [{ "${a}": 1 }, false],
    [3, false],
    [undefined, false],
  ])("%j refers to others: %j", (value, refers) => {
    expect(hasInterpolation(value)).toBe(refers);
  });
});

describe("layers", () => {
  const LINES = new Map([
    ["a", 1],
    ["a.b.c", 3],
    ["ab", 9],
  ]);

  test.each([
    ["a.b.c", 3],
    ["a.b.c.d", 3],
    ["a.b", 1],
    ["a.x.y", 1],
    ["b", undefined],
    ["abc", undefined],
  ])("the line of %s is %s", (path, line) => {
    expect(lineOf(LINES, path)).toBe(line);
  });

  test("a later one replaces sections by values and the reverse, and their origins with them", () => {
    const [tree, origins]: [Tree, Origins] = [{}, new Map()];
    const lay = (from: Tree, text: string, level: 0 | 3) => mergeTree(tree, from, origins, () => ({ level, text }));
    lay({ a: { b: 1, c: { d: 2 } }, e: {}, f: 3 }, "base", LEVEL.native);
    lay({ a: { c: 7 }, e: { g: 1 }, f: { h: {} }, i: {} }, "file", LEVEL.file);
    lay({ a: {}, i: { j: 1 } }, "empty", LEVEL.file);
    expect(tree).toEqual({ a: { b: 1, c: 7 }, e: { g: 1 }, f: { h: {} }, i: { j: 1 } });
    expect(Object.fromEntries([...origins].map(([path, { text }]) => [path, text]))).toEqual({
      "a.b": "base",
      "a.c": "file",
      "e.g": "file",
      "f.h": "file",
      "i.j": "empty",
    });
    expect(originOf(origins, "a.c.x")?.text).toBe("file");
    expect(originOf(origins, "z")).toBeUndefined();
    expect(["a", "a.b", "e", "z", "f.h"].map((path) => levelAt(tree, origins, path))).toEqual([3, 0, 3, -1, 3]);
  });

  test("a defaults list names files, groups and itself", () => {
    const text =
      "defaults:\n  - _self_\n  - other\n  - override /rllm/backend@_global_: verl\n  - optional verl: 0.8.0\n  - 7\nx: 1\n";
    const { defaults, problems, tree } = readLayer(text, { file: "run.yaml", level: LEVEL.file });
    expect(defaults).toEqual([
      { kind: "self" },
      { kind: "file", name: "other" },
      { kind: "group", group: "rllm/backend", choice: "verl" },
      { kind: "group", group: "verl", choice: "0.8.0" },
    ]);
    expect(problems.map(({ message, line }) => [message, line])).toEqual([
      ["Cannot read an entry of defaults: it is neither a file nor a group (7).", 1],
    ]);
    expect(tree).toEqual({ x: 1 });
    const wrong = readLayer("defaults: 3\n", { file: "run.yaml", level: LEVEL.file });
    expect(wrong.problems.map(({ message }) => message)).toEqual(["Cannot read defaults: it is not a list."]);
  });

  test("a file is mounted at its package, else where it is asked for", () => {
    const read = (text: string, mount?: string) => {
      const { tree, lines } = readLayer(text, { file: "f", level: LEVEL.file, mount });
      return [tree, [...lines]];
    };
    expect(read("x: 1\n")).toEqual([{ x: 1 }, [["x", 1]]]);
    expect(read("x: 1\n", "a.b")).toEqual([{ a: { b: { x: 1 } } }, [["a.b.x", 1]]]);
    expect(read("# @package _global_\nx: 1\n", "a.b")).toEqual([{ x: 1 }, [["x", 2]]]);
    expect(read("# @package c\nx: 1\n", "a.b")).toEqual([{ c: { x: 1 } }, [["c.x", 2]]]);
  });
});

test.each<[string, Record<string, string> | undefined, string | undefined]>([
  ["rllm/backend=local", undefined, undefined],
  [
    "rllm/backend=lokal",
    undefined,
    "Cannot choose rllm/backend=lokal: the choices are local, tinker, verl, trinity, or one that a module given with --import registers. Did you mean rllm/backend=local?",
  ],
  ["rllm/backend=trinity", undefined, undefined],
  ["rllm=other", undefined, "Cannot choose rllm=other: the choices are base."],
  ["hydra/launcher=x", undefined, "Cannot choose hydra/launcher=x: Hydra is not used here. Remove it."],
  [
    "rllm/backent=local",
    undefined,
    "Cannot choose rllm/backent=local: there is no such group. Did you mean rllm/backend?",
  ],
  [
    "zzzzzzzz=x",
    undefined,
    "Cannot choose zzzzzzzz=x: there is no such group. Groups: rllm, rllm/backend, verl, model_engine, preset.",
  ],
])("the choice %s", (text, _, message) => {
  const [group, choice] = text.split("=");
  const problem = checkChoice(group!, { choice: choice!, by: text, file: "run.yaml", line: 3 });
  expect(problem?.message).toBe(message);
  if (problem) expect(problem).toMatchObject({ severity: "error", path: group, file: "run.yaml", line: 3 });
});

describe("a secret", () => {
  test("is masked wherever it lies; what is empty or unset is shown", () => {
    expect(maskTree({ a: { api_key: "k", list: [{ x: 1 }] }, password: null, token: "", secret: "???" })).toEqual({
      a: { api_key: "********", list: [{ x: 1 }] },
      password: null,
      token: "",
      secret: "???",
    });
    expect(maskValue("x.api_key", ["a", "b"])).toBe("********");
    expect(maskValue("x.urls", ["http://u:pw@h"])).toEqual(["http://u:********@h"]);
    expect(maskValue("x.n", 7)).toBe(7);
  });

  test("is masked in an override, after its first equals sign", () => {
    expect(maskOverride("a.api_key=x=y", "a.api_key")).toBe("a.api_key=********");
    expect(maskOverride("a.n=3", "a.n")).toBe("a.n=3");
    expect(maskOverride("~a.api_key", "a.api_key")).toBe("~a.api_key");
    expect([showSetting("a.n", undefined), showSetting("a.n", "x"), showSetting("a.n", [1, "x"])]).toEqual([
      "null",
      "x",
      '[1,"x"]',
    ]);
    expect(showSetting("a.api_key", "x")).toBe("********");
  });
});

describe("values as text", () => {
  test.each<[number, string, string]>([
    [1, "1", "1.0"],
    [0, "0", "0.0"],
    [-0, "-0.0", "-0.0"],
    [0.5, "0.5", "0.5"],
    [0.001, "0.001", "0.001"],
    [0.0009, "9.0e-04", "0.0009"],
    [1e-4, "1.0e-04", "0.0001"],
    [1.5e-5, "1.5e-05", "1.5e-05"],
    [-1e-6, "-1.0e-06", "-1e-06"],
    [1e15, "1000000000000000", "1000000000000000.0"],
    [1e16, "10000000000000000", "1e+16"],
    [1e21, "1.0e+21", "1e+21"],
    [2.5e-110, "2.5e-110", "2.5e-110"],
    [Number.NaN, ".nan", "nan"],
    [Number.POSITIVE_INFINITY, ".inf", "inf"],
    [Number.NEGATIVE_INFINITY, "-.inf", "-inf"],
  ])("%f in YAML and in Python", (value, yaml, python) => {
    expect([inlineNumber(value), pythonFloat(value)]).toEqual([yaml, python]);
  });

  test.each([
    ["1_0.5", 10.5],
    ["inf", Number.POSITIVE_INFINITY],
    ["+Infinity", Number.POSITIVE_INFINITY],
    ["-inf", Number.NEGATIVE_INFINITY],
    ["-nan", Number.NaN],
    ["1e-3", 0.001],
  ])("%s is read as Python reads it", (text, value) => {
    expect(readFloat(text)).toBe(value);
  });

  test.each([
    ["plain", "plain"],
    ["a b", "a b"],
    ["", '""'],
    ["a ", '"a "'],
    ["true", '"true"'],
    ["No", '"No"'],
    ["~", '"~"'],
    ["1", '"1"'],
    ["a: b", '"a: b"'],
    ["a#b", '"a#b"'],
    [".5", '".5"'],
    ["${a.b}/x", "${a.b}/x"],
    ["x\u2028y", '"x\\u2028y"'],
  ])("the text %j is written %s", (text, written) => {
    expect(inlineText(text)).toBe(written);
  });

  test("a list and a section are written on one line", () => {
    expect(inline([1, "a", [true, null], { "b c": "${x}" }])).toBe('[1, a, [true, null], {b c: "${x}"}]');
    expect(inline({})).toBe("{}");
  });
});

describe("an interpolation", () => {
  const TREE: Tree = {
    a: { b: 2, c: "${.b}", d: "${..e}", list: [1, "${a.b}"], whole: "${a.part}", part: { x: 5 } },
    e: "top",
    must: "???",
    text: "n=${a.b}, ${e}, \\${kept}",
    none: "v=${nothing}",
    nothing: null,
    env: "${oc.env:HOME_OF,'de fault'}",
    select: "${oc.select:no.where,7}",
    selectMust: "${oc.select:must,8}",
    selectNone: "${oc.select:no.where}",
    decoded: "${oc.decode:${oc.env:NUM}}",
    product: "${mul:${a.b},3}",
    unset: "${mul:${nothing},3}",
    flag: "is ${yes}",
    yes: true,
    small: "at ${tiny}",
    tiny: 1e-7,
  };
  const { at } = interpolator(TREE, { NUM: "12" });

  test.each<[string, YamlValue | undefined]>([
    ["a.c", 2],
    ["a.d", "top"],
    ["a.list", [1, 2]],
    ["a.whole.x", 5],
    ["text", "n=2, top, ${kept}"],
    ["none", "v=None"],
    ["env", "de fault"],
    ["select", 7],
    ["selectMust", 8],
    ["selectNone", null],
    ["decoded", 12],
    ["product", 6],
    ["unset", null],
    ["flag", "is True"],
    ["small", "at 1e-07"],
    ["no.where", undefined],
    ["e.below", undefined],
  ])("%s", (path, value) => {
    expect(at(path)).toEqual(value);
  });

  test.each<[YamlValue, string]>([
    ["${no.where}", "Cannot resolve ${no.where}: there is no setting no.where"],
    ["${must}", "Cannot resolve ${must}: must is mandatory and not set"],
    ["${oc.env:AWAY}", "Cannot resolve ${oc.env:AWAY}: the environment has no AWAY"],
    ["${mul:1,2,3}", "Cannot resolve ${mul:1,2,3}: mul takes two numbers"],
    ["${mul:1,x}", "Cannot resolve ${mul:1,x}: mul takes two numbers"],
    ["${own:1}", "Cannot resolve ${own:1}: there is no resolver own; known: oc.env, oc.select, oc.decode, mul"],
    ["${open", "Cannot resolve the interpolation: it has no closing }: ${open"],
  ])("%s is refused", (value, message) => {
    const { at } = interpolator({ ...TREE, x: value }, {});
    expect(() => at("x")).toThrow(`${message} (x)`);
  });

  test("that refers to itself is told by its circle, from its first name", () => {
    const { at } = interpolator({ b: "${c}", c: "${a}", a: "${b}", d: "${b}" }, {});
    expect(() => at("d")).toThrow("Cannot resolve the interpolation: it refers to itself: a -> b -> c -> a (b)");
  });
});

test.each([
  ["rllm.rolout.n", ["rllm.rollout.n", "rllm.data.n_x"], "rllm.rollout.n"],
  ["model.rank", ["other.place.rank", "zzz"], "other.place.rank"],
  ["model.rank", ["a.b.c.rank", "d.e.f.rank", "g.h.i.rank"], undefined],
  ["model.rank", ["rank", "a.b.c.rank"], "rank"],
  ["zzzzzzzzz", ["a.b"], undefined],
])("the path nearest to %s among %j is %s", (path, candidates, nearest) => {
  expect(nearestPath(path, candidates)).toBe(nearest);
});
