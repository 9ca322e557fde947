// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** Overrides in Hydra's grammar, and interpolations in OmegaConf's. */
import { describe, expect, test } from "vitest";
import { interpolator } from "../../../src/train/config/hydra/interpolate.ts";
import { parseOverride, parseValue } from "../../../src/train/config/hydra/override.ts";
import { readYaml } from "../../../src/train/config/yaml/read.ts";
import { getAt, type Tree } from "../../../src/train/config/yaml/tree.ts";
import { attempt, complaints, compose } from "./disk.ts";

describe("values", () => {
  // What is read how is hydra_grammar_test.ts's; this is what a refusal says.
  const broken: [text: string, says: string][] = [
    ["a,b", "it is a sweep over several values (a,b). Write [a,b] for a list, or quote it: key='...'."],
    ["choice(a,b)", "it is a sweep"],
    ["shuffle([1,2])", "it shuffles, which gives another run each time"],
    ["f(3)", "it calls f(), which Hydra does not have"],
    ["int(x)", "it has a value that is no int (int(x)). Write a value that int() can take."],
    ["[1,2", "it has no closing ]"],
    [`${"[".repeat(3000)}1${"]".repeat(3000)}`, "it is nested deeper than 64 levels"],
    [`${"{a:".repeat(3000)}1${"}".repeat(3000)}`, "it is nested deeper than 64 levels"],
    [`${"int(".repeat(3000)}1${")".repeat(3000)}`, "it is nested deeper than 64 levels"],
    ["{a:1", "it has no closing }"],
    ["'abc", "it has no closing '"],
    ["~/x", "it has ~ outside quotes (~/x). Quote the value: key='...'."],
    ["b=c", "it has = outside quotes"],
    ["x #1", "it has # outside quotes"],
    ["naïve", "it has ï outside quotes"],
    ["${a", "it has an interpolation without its }"],
    ["${a:${b}}", "it has } outside quotes"],
    ["a]", "it has ] outside quotes"],
    ['{"k k":1}', "it has a name in quotes inside {...}"],
    ["{__proto__: 1}", "it has a name that is not possible"],
    ["99999999999999999", "it is a whole number beyond 2^53, which is not exact"],
  ];
  for (const [text, says] of broken)
    test(`${text} is refused`, () => expect(() => parseValue(text)).toThrow(`Cannot read the override: ${says}`));
});

describe("keys", () => {
  test("signs, groups and deletions", () => {
    expect(parseOverride("a.b=1")).toMatchObject({ kind: "set", key: "a.b", value: 1 });
    expect(parseOverride("+a=1").kind).toBe("add");
    expect(parseOverride("++a=1").kind).toBe("force");
    expect(parseOverride("~a")).toMatchObject({ kind: "delete", key: "a" });
    expect(parseOverride("rllm/backend=verl")).toMatchObject({
      kind: "group",
      key: "rllm/backend",
      value: "verl",
    });
  });

  test("an invalid override is refused with the reason", () => {
    expect(() => parseOverride("a.b")).toThrow("it has no value (a.b). Write a.b=value");
    expect(() => parseOverride("=1")).toThrow("no setting's name");
    expect(() => parseOverride("~rllm/backend")).toThrow("groups can only be chosen");
  });

  test("set, add, force and delete", () => {
    const { config } = compose([
      "rllm.rollout.n=4",
      "+rllm.algorithm.traj_group_adv_estimator_map.level=2",
      "++rllm.algorithm.traj_group_adv_estimator_map.level=3",
      "rllm.algorithm.traj_group_adv_estimator_map.x={a: 1}",
      "rllm.algorithm.traj_group_adv_estimator_map.x={b: 2}",
    ]);
    expect(getAt(config, "rllm.rollout.n")).toBe(4);
    expect(getAt(config, "rllm.algorithm.traj_group_adv_estimator_map")).toEqual({
      level: 3,
      x: { a: 1, b: 2 },
    });
    expect(
      getAt(
        compose(["+rllm.algorithm.traj_group_adv_estimator_map.x=1", "~rllm.algorithm.traj_group_adv_estimator_map.x"])
          .config,
        "rllm.algorithm.traj_group_adv_estimator_map",
      ),
    ).toEqual({});
    expect(complaints(["~rllm.algorithm.traj_group_adv_estimator_map.x"])).toEqual([
      "Cannot delete rllm.algorithm.traj_group_adv_estimator_map.x: it is not set.",
    ]);
    expect(
      complaints([
        "+rllm.algorithm.traj_group_adv_estimator_map.x=1",
        "~rllm.algorithm.traj_group_adv_estimator_map.x=2",
      ])[0],
    ).toContain("its value is not 2 (1)");
    expect(complaints(["+rllm.rollout.n=4"])).toEqual([
      "Cannot add rllm.rollout.n: it exists (+rllm.rollout.n=4). Leave out the +.",
    ]);
  });

  test("what the code reads by name is not deleted; verl's own settings and added keys are", () => {
    const deleted = (...set: string[]) => complaints(set)[0];
    for (const [set, path] of [
      [["~rllm.rollout.n"], "rllm.rollout.n"],
      [["~rllm.rollout"], "rllm.rollout"],
      [["~training.seed"], "training.seed"],
      [["rllm/backend=verl", "~rllm.rollout.n"], "rllm.rollout.n"],
    ] as const)
      expect(deleted(...set)).toBe(`Cannot delete ${path}: the code reads it by name. Set it to another value.`);
    expect(deleted("rllm.trainer.logger=[console,file]", "~rllm.trainer.logger.0")).toBe(
      "Cannot delete rllm.trainer.logger.0: it is an item of a list. Set the whole list.",
    );
    const map = "rllm.algorithm.traj_group_adv_estimator_map";
    expect(getAt(compose([`+${map}.x=1`, `~${map}.x=1`]).config, map)).toEqual({});
    const own = "trainer.balance_batch";
    const verl = compose(["rllm/backend=verl", `~${own}`]);
    expect([getAt(verl.config, own), verl.origins.has(own)]).toEqual([undefined, false]);
  });

  test("a section takes a dict, key by key", () => {
    const { config } = compose(["rllm.rollout={n: 4, train: {temperature: 0.5}}"]);
    expect(getAt(config, "rllm.rollout")).toMatchObject({
      n: 4,
      n_val: 1,
      train: { temperature: 0.5, top_p: 1 },
    });
  });

  test("text settings keep the typed text, or the result of a cast", () => {
    const name = (typed: string) =>
      getAt(compose([`rllm.trainer.experiment_name=${typed}`]).config, "rllm.trainer.experiment_name");
    const cases = { "007": "007", "1_000": "1_000", true: "true", "str(5)": "5", "int(3.7)": "3" };
    expect(Object.keys(cases).map(name)).toEqual(Object.values(cases));
  });

  describe.each(["local", "tinker", "verl"])("a key that the %s backend does not know", (backend) => {
    const on = (...set: string[]) => attempt([`rllm/backend=${backend}`, ...set]);
    const told = (...set: string[]) => on(...set).problems.map(({ message }) => message);

    test("is refused, and added with + or ++", () => {
      expect(told("own.key=1").join()).toContain("Cannot set own.key: there is no such setting. ");
      for (const sign of ["+", "++"]) {
        const { config, problems, warnings } = on(`${sign}own.key=1`);
        expect(problems).toEqual([]);
        expect(getAt(config, "own.key")).toBe(1);
        expect(warnings.map(({ message }) => message)).toContain(
          backend === "verl"
            ? "own.key is not in verl's tree. It is passed on unchecked."
            : "own.key is not a known setting. Nothing here reads it.",
        );
      }
    });

    test("is a key like any other once it is added", () => {
      expect(getAt(on("+own.key=1", "own.key=2").config, "own.key")).toBe(2);
      expect(getAt(on("+own.key=1", "~own.key").config, "own")).toEqual({});
      expect(told("own.key=2", "+own.key=1")[0]).toContain("Cannot set own.key");
      expect(told("+own.key=1", "+own.key=1")[0]).toContain("Cannot add own.key: it exists");
      expect(getAt(on("+own={a: 1}", "+own={b: 2}").config, "own")).toEqual({ a: 1, b: 2 });
    });

    test("cannot stand below a value", () => {
      expect(told("+rllm.rollout.n.x=1")).toEqual([
        "Cannot set rllm.rollout.n.x: rllm.rollout.n is a value, not a section.",
      ]);
    });
  });

  test("lists: one text is a list of one, and an item is set by its place", () => {
    const logger = (...set: string[]) => getAt(compose(set).config, "rllm.trainer.logger");
    expect(logger("rllm.trainer.logger=jsonl")).toEqual(["jsonl"]);
    expect(logger("rllm.trainer.logger.0=jsonl")).toEqual(["jsonl"]);
    expect(logger("rllm.trainer.logger=[console,jsonl]", "rllm.trainer.logger[1]=report")).toEqual([
      "console",
      "report",
    ]);
    expect(complaints(["rllm.trainer.logger.0=nope"])[0]).toContain("Cannot set rllm.trainer.logger: it takes");
    expect(complaints(["rllm.trainer.logger.1=jsonl"])).toEqual([
      "Cannot set rllm.trainer.logger.1: the list has 1 item. Write rllm.trainer.logger=[...].",
    ]);
    expect(complaints(["rllm.trainer.logger=7"])[0]).toContain("it takes a list");
    expect(complaints(["~rllm.trainer.logger.0"])).toEqual([
      "Cannot delete rllm.trainer.logger.0: it is an item of a list. Set the whole list.",
    ]);
    const verl = compose(["rllm/backend=verl", "trainer.logger=wandb"]).config;
    expect([getAt(verl, "trainer.logger"), getAt(verl, "rllm.trainer.logger")]).toEqual([["wandb"], ["wandb"]]);
  });
});

describe("interpolations", () => {
  const tree: Tree = {
    a: { b: 2, c: "${.b}", up: "${..top}", list: ["${a.b}", "x${a.b}"] },
    top: "t",
    env: "${oc.env:HOME}",
    envOr: "${oc.env:NOPE,1e-3}",
    select: "${oc.select:no.such,7}",
    selectNull: "${oc.select:no.such}",
    nested: "${oc.select:no.such,${oc.select:a.b,0}}",
    mul: "${mul:${a.b},3}",
    section: "${a}",
    through: "${section.b}",
    text: "${a.b}-${top}",
    escaped: "\\${not}",
    must: "???",
    needs: "${must}",
    selectMust: "${oc.select:must,5}",
    decode: "${oc.decode:'12'}",
    name: "b",
    indirect: "${a.${name}}",
  };
  const { at } = interpolator(tree, { HOME: "/home/me" });
  const cases: [path: string, value: unknown][] = [
    ["a.c", 2],
    ["a.up", "t"],
    ["a.list", [2, "x2"]],
    ["env", "/home/me"],
    ["envOr", 1e-3],
    ["select", 7],
    ["selectNull", null],
    ["nested", 2],
    ["mul", 6],
    ["section.c", 2],
    ["through", 2],
    ["text", "2-t"],
    ["escaped", "${not}"],
    ["selectMust", 5],
    ["decode", 12],
    ["indirect", 2],
  ];
  for (const [path, value] of cases) test(`${path} is ${JSON.stringify(value)}`, () => expect(at(path)).toEqual(value));

  test("an unresolvable interpolation is refused with the reason", () => {
    expect(() => at("needs")).toThrow("must is mandatory and not set");
    const bad = (text: string) => () => interpolator({ x: text }, {}).at("x");
    expect(bad("${y}")).toThrow("there is no setting y");
    expect(bad("${oc.env:NOPE}")).toThrow("the environment has no NOPE");
    expect(bad("${nope:1}")).toThrow("there is no resolver nope; known: oc.env");
    expect(bad("${mul:a,2}")).toThrow("mul takes two numbers");
    expect(bad("${x}")).toThrow("refers to itself: x -> x");
    expect(bad("${x")).toThrow("no closing }");
  });
});

describe("YAML", () => {
  test("aliases take time in proportion to their number, and mean the last anchor before them", () => {
    const many = readYaml(`a: &a 1\nb: [${"*a, ".repeat(20_000)}*a]\n`, "x.yaml");
    expect([many.problems, (many.tree.b as unknown[]).length]).toEqual([[], 20_001]);
    const again = readYaml("a: &x 1\nb: *x\nc: &x {d: &y 2}\ne: [*x, *y]\nf: &y 3\ng: [*x, *y]\n", "x.yaml");
    expect([again.problems, again.tree]).toEqual([
      [],
      { a: 1, b: 1, c: { d: 2 }, e: [{ d: 2 }, 2], f: 3, g: [{ d: 2 }, 3] },
    ]);
    expect(readYaml("a: *x\nb: &x 1\n", "x.yaml").problems).not.toEqual([]);
  });

  test.each(["[", "{a: ", "- ", "? ", "- - ["])("%s 20,000 times is a problem, and no end of the process", (mark) => {
    const [problem] = readYaml(
      `${mark === "- " || mark === "? " ? "" : "a: "}${mark.repeat(20_000)}`,
      "x.yaml",
    ).problems;
    expect(problem?.message).toMatch(/nests deeper than 64 levels/);
  });

  test("numbers and booleans are YAML 1.2's", () => {
    const { tree } = readYaml("a: 1e-6\nb: yes\nc: 1_0\nd: 0o17\ne: .5\nf: ~\ng: on\n", "x");
    expect(tree).toEqual({ a: 1e-6, b: "yes", c: "1_0", d: 15, e: 0.5, f: null, g: "on" });
  });

  test("anchors, merge keys and the package line", () => {
    const { tree, package: mount } = readYaml("# @package _global_\nx: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n", "x");
    expect(tree).toEqual({ x: { a: 1, b: 2 }, y: { a: 1, b: 3 } });
    expect(mount).toBe("_global_");
  });

  test.each([
    ["d: {<<: [{x: 1}, {x: 2, y: 3}]}\n", { d: { x: 1, y: 3 } }, undefined],
    ["d: {<<: text}\n", { d: {} }, /Cannot merge with <</],
    ["a: &t\n  b: 1\n  c: {<<: *t}\n", { a: { b: 1, c: {} } }, /a\.c\.<<: it lies inside its own anchor t/],
    ["f: &l [1, *l]\n", { f: [1, null] }, /f\.1: it lies inside its own anchor l/],
  ])("%j is %j", (text, tree, problem) => {
    const read = readYaml(text, "x");
    expect(read.tree).toEqual(tree);
    expect(read.problems.map(({ message }) => message)).toEqual(problem ? [expect.stringMatching(problem)] : []);
  });

  test("every problem has its line", () => {
    const broken = [
      "a: 1\na: 2\n",
      "a: [1\nb: 2\n",
      "a:\n\t- 1\n",
      "- 1\n",
      "x: 1\n? [a]\n: 2\n",
      "a: 99999999999999999999\n",
      "a: *nope\n",
    ];
    for (const text of broken) {
      const { problems } = readYaml(text, "f.yaml");
      expect(problems.length, text).toBeGreaterThan(0);
      for (const problem of problems) expect(problem.line, text).toBeGreaterThan(0);
    }
  });
});
