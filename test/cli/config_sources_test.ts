/** What the commands of `grpu config` read: files of the person and of the package, `--env`, `--arg`, standard input. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import type { Io } from "../../src/cli/command.ts";
import {
  configFiles,
  optionList,
  printProblems,
  readInput,
  shellOptions,
  toSource,
} from "../../src/cli/commands/config_sources.ts";

const folder = mkdtempSync(join(tmpdir(), "grpu-sources-"));
afterAll(() => rmSync(folder, { recursive: true }));

function io(stdin = ""): { io: Io; err: () => string } {
  let err = "";
  const value: Io = {
    out: () => {},
    err: (text) => {
      err += text;
    },
    isTerminal: false,
    color: false,
    columns: 100,
    env: {},
    signal: new AbortController().signal,
    stdin: async () => stdin,
  };
  return { io: value, err: () => err };
}

describe("files", () => {
  test("the person's, the package's where there is none, and nothing for a folder or no file", () => {
    const path = join(folder, "run.yaml");
    writeFileSync(path, "device: cpu\n");
    const { readFile, readConfig } = configFiles();
    expect(readFile(path)).toBe("device: cpu\n");
    const here = process.cwd();
    process.chdir(folder);
    expect(readFile("examples/arithmetic/run.yaml")).toMatch(/^#/);
    process.chdir(here);
    expect(readFile(folder)).toBeUndefined();
    expect(readFile(join(folder, "none.yaml"))).toBeUndefined();
    expect(readConfig("rllm/base.yaml")).toContain("rollout:");
    expect(readConfig("rllm/none.yaml")).toBeUndefined();
  });

  test.runIf(process.platform === "linux")("a file that cannot be read counts as none", async () => {
    expect(configFiles().readFile("/proc/self/mem")).toBeUndefined();
    await expect(readInput("/proc/self/mem", io().io)).rejects.toThrow(/EIO/);
  });

  test("- is standard input; a folder or a missing file is refused", async () => {
    expect(await readInput("-", io("a=1").io)).toEqual({ name: "standard input", text: "a=1" });
    const path = join(folder, "some.yaml");
    writeFileSync(path, "a: 1\n");
    expect(await readInput(path, io().io)).toEqual({ name: path, text: "a: 1\n" });
    const empty = join(folder, "empty.yaml");
    writeFileSync(empty, "");
    expect(await readInput(empty, io().io)).toEqual({ name: empty, text: "" });
    const inner = join(folder, "inner");
    mkdirSync(inner);
    await expect(readInput(inner, io().io)).rejects.toThrow(/^Cannot read the configuration: .*folder/);
    await expect(readInput(join(folder, "x.yaml"), io().io)).rejects.toThrow(
      /^Cannot read the configuration: there is no such file/,
    );
  });
});

test.each([
  [undefined, []],
  [true, []],
  [false, []],
  ["a", ["a"]],
  ["", [""]],
  [
    ["a", "b"],
    ["a", "b"],
  ],
])("asList(%j)", (value, list) => {
  expect(optionList(value)).toEqual(list);
});

test.each<[pair: string, name: string, value: string]>([
  ["A=1", "A", "1"],
  ["_a9=x y", "_a9", "x y"],
  ["A=", "A", ""],
  ["A=b=c", "A", "b=c"],
  ["A=line\nline", "A", "line\nline"],
])("--env %j sets %s", (pair, name, value) => {
  expect(shellOptions({ env: pair }).env).toEqual(new Map([[name, value]]));
});

test.each(["A", "=1", "9A=1", "A B=1", "A-B=1", " A=1"])("--env %j is refused", (pair) => {
  expect(() => shellOptions({ env: [pair] })).toThrow(
    expect.objectContaining({
      name: "ConfigError",
      message: `Cannot read --env: it has no NAME= (${pair}). Write NAME=VALUE.`,
    }),
  );
});

test("shellOptions() keeps arguments in order, and takes none where none are given", () => {
  expect(shellOptions({ env: ["A=1", "B=2"], arg: ["x", "y"] })).toEqual({
    env: new Map([
      ["A", "1"],
      ["B", "2"],
    ]),
    args: ["x", "y"],
  });
  expect(shellOptions({})).toEqual({ env: new Map(), args: [] });
});

test.each<[name: string, text: string, system: "verl" | "rllm" | "trinity"]>([
  ["run.args", "actor_rollout_ref.rollout.n=4\n", "verl"],
  ["run.yaml", "rllm: {rollout: {n: 4}}\n", "rllm"],
  ["run.yaml", "explorer: {rollout_model: {engine_num: 4}}\n", "trinity"],
])("toSource() recognises the system of %s with %j as %s, unless it is named", async (name, text, system) => {
  expect((await toSource([{ name, text }])).system).toBe(system);
  for (const named of ["verl", "rllm", "trinity"] as const)
    expect((await toSource([{ name, text }], named)).system).toBe(named);
});

test("toSource() reads a file by the rules of the system that is named", async () => {
  const file = { name: "run.yaml", text: "defaults: [own]\n" };
  const reported = async (system: "verl" | "trinity") => {
    const { notes, problems } = await toSource([file], system);
    return problems.length + (notes?.length ?? 0);
  };
  expect(await reported("verl")).toBeGreaterThan(0);
  expect(await reported("trinity")).toBe(0);
});

test("toSource() reads scripts with the environment and arguments given", async () => {
  const text = "python3 -m verl.trainer.main_ppo data.seed=$SEED trainer.experiment_name=$1\n";
  const shell = shellOptions({ env: "SEED=7", arg: "x" });
  const { values } = await toSource([{ name: "run.sh", text }], "verl", shell);
  expect([...values].map(([path, { value }]) => [path, value])).toEqual([
    ["data.seed", 7],
    ["trainer.experiment_name", "x"],
  ]);
});

test("printProblems() prints problems, then warnings, and counts the problems from two on", async () => {
  const problem = (path: string) => ({ severity: "error", path, message: `Cannot set ${path}.` }) as const;
  const warning = { severity: "warning", path: "w", message: "w is old." } as const;
  const cases = [
    { problems: [], warnings: [], isError: false, says: "" },
    { problems: [], warnings: [warning, warning], isError: false, says: "warning: w is old.\n".repeat(2) },
    {
      problems: [problem("a")],
      warnings: [warning],
      isError: true,
      says: "error: Cannot set a.\nwarning: w is old.\n",
    },
    {
      problems: [problem("a"), problem("b")],
      warnings: [],
      isError: true,
      says: "error: Cannot set a.\nerror: Cannot set b.\n2 problems\n",
    },
  ];
  for (const { problems, warnings, isError, says } of cases) {
    const console = io();
    expect(await printProblems(problems, warnings, console.io)).toBe(isError);
    expect(console.err()).toBe(says);
  }
});
