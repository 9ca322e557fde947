/** The project's own mutation tool: which mistakes it makes, and in which lines. */
import { describe, expect, test } from "vitest";
import { parseDiff, partOfAbout } from "../../scripts/mutants/changed.ts";
import { requiredFor, sourcesIn, testsFor } from "../../scripts/mutants/folders.ts";
import { isChosen } from "../../scripts/mutants/sample.ts";
import { scoreOf } from "../../scripts/mutants/score.ts";
import { ownTests } from "../../scripts/mutants/shaders.ts";
import { nearness, worthOf } from "../../scripts/mutants/test_order.ts";
import { mutantsOf } from "../../scripts/mutants/wgsl.ts";

const changes = (line: string) => mutantsOf(`fn f() {\n  ${line}\n}\n`).map(({ to }) => to);

describe("mutants of WGSL", () => {
  test.each([
    ["let y = a + b;", ["let y = a - b;"]],
    ["y += 0.5 * x;", ["y -= 0.5 * x;", "y += 1.0 * x;", "y += 0.5 / x;"]],
    ["let y = max(a, 0.0);", ["let y = min(a, 0.0);", "let y = max(a, 1.0);"]],
    [
      "let y = select(0.0, f(a, b), keep);",
      ["let y = select(1.0, f(a, b), keep);", "let y = select(f(a, b), 0.0, keep);"],
    ],
    ["if (i >= n) { return; }", ["if (true) { return; }", "if (false) { return; }", "if (i > n) { return; }"]],
    ["let y = array<f32, 4>(); // a + b", []],
    ["for (var k = 0u; k < n; k += 1u) {", []],
    ["let y = -x;", []],
  ])("%s", (line, expected) => {
    expect(changes(line)).toEqual(expected);
  });

  test("sizes in the module's head stay", () => {
    expect(mutantsOf("const SIZE = 4u * 16u;\n@workgroup_size(8 * 8)\n")).toEqual([]);
  });

  test("a mutant carries its line and the whole module", () => {
    const [only] = mutantsOf("fn f() {\n\n  y = a * b;\n}\n");
    expect(only).toMatchObject({ line: 3, from: "y = a * b;", text: "fn f() {\n\n  y = a / b;\n}\n" });
  });
});

test.each([
  ["shaders/norm/rms_norm.wgsl", "engine/model/kernels", ["grids_test.ts", "norm_test.ts"], "attention_test.ts"],
  ["shaders/measure/copy.wgsl", "engine/compute", ["device_test.ts", "measure_test.ts"], "matmul_test.ts"],
  ["shaders/layer/parts/gelu.wgsl", "engine/model/kernels", ["elementwise_test.ts", "grids_test.ts"], "norm_test.ts"],
])("the tests of %s", (file, folder, names, other) => {
  const tests = ownTests(file);
  expect(tests).toEqual(expect.arrayContaining(names.map((name) => `test/${folder}/${name}`)));
  expect(tests).not.toContain(`test/${folder}/${other}`);
});

test("of a TypeScript file only the WGSL changes, outside of what it takes from TypeScript", () => {
  const hole = ["$", "{d + e}"].join("");
  const text = `const a = b + c;\nconst w = /* wgsl */ \`\nfn f() { x = y * z; ${hole} }\`;\nconst v = \`a - b\`;\n`;
  const found = mutantsOf(text, { isTypeScript: true });
  expect(found.map(({ line, to }) => [line, to])).toEqual([[3, `fn f() { x = y / z; ${hole} }\`;`]]);
  expect(found[0]!.text).toBe(text.replace("y * z", "y / z"));
  expect(ownTests("src/engine/algorithm/loss/losses/gspo.ts")).toContain("test/engine/algorithm/losses_test.ts");
});

test("kernels of algorithms are judged by all their tests but the browser's", () => {
  const tests = ownTests("shaders/loss/parts/kl.wgsl");
  expect(tests).toContain("test/engine/algorithm/loss_golden_test.ts");
  expect(tests).not.toContain("test/engine/algorithm/browser_test.ts");
});

test("changed lines are read from a diff, by folder", () => {
  const diff = [
    "+++ b/src/train/loop/update.ts",
    "@@ -1,2 +3,4 @@ export",
    "@@ -9 +12 @@",
    "@@ -20,3 +22,0 @@",
    "+++ b/src/cli.ts",
    "@@ -1 +1 @@",
    "+++ b/shaders/rope.wgsl",
    "@@ -0,0 +5,2 @@",
    "+++ /dev/null",
    "@@ -1 +1 @@",
  ].join("\n");
  expect(parseDiff(diff)).toEqual([
    { folder: "train/loop", lines: ["src/train/loop/update.ts:3-6", "src/train/loop/update.ts:12-12"] },
    { folder: "root", lines: ["src/cli.ts:1-1"] },
    { folder: "shaders", lines: ["shaders/rope.wgsl:5-6"] },
  ]);
});

describe("targets", () => {
  test.each([
    ["engine/model", ["test/engine/model/**/*_test.ts", "test/train/backend/golden_model_test.ts"], 90],
    [
      "engine/model/generate",
      ["test/engine/model/generate/**/*_test.ts", "test/train/backend/golden_model_test.ts"],
      90,
    ],
    ["train/log/page/curve.ts", ["test/train/log/**/*_test.ts"], 85],
    [
      "engine/model/files/tokenizer",
      ["test/engine/model/files/**/*_test.ts", "test/train/backend/golden_model_test.ts"],
      90,
    ],
    ["train/log/progress.ts", ["test/train/log/**/*_test.ts"], 85],
  ])("%s is judged by tests of the nearest folder", (target, tests, required) => {
    expect(testsFor(target)).toEqual(tests);
    expect(requiredFor(target)).toBe(required);
  });

  test("a file directly in src/ is judged by the test of its name", () => {
    expect(testsFor("root")).toEqual(["test/cli_test.ts"]);
    expect(requiredFor("root")).toBe(85);
    expect(testsFor("leaves/random.ts")).toEqual(["test/leaves/**/*_test.ts"]);
  });

  test("the sources of a folder, a file, the root; none where there is no such folder", () => {
    expect(sourcesIn("train/log/folder")).toContain("src/train/log/folder/lock.ts");
    expect(sourcesIn("train/log")).toContain("src/train/log/folder/lock.ts");
    expect(sourcesIn("train/log/progress.ts")).toEqual(["src/train/log/progress.ts"]);
    expect(sourcesIn("root")).toContain("src/mod.ts");
    expect(sourcesIn("root")?.every((file) => /^src\/[^/]+\.ts$/.test(file))).toBe(true);
    expect(sourcesIn("nothing")).toBeUndefined();
  });
});

describe("score", () => {
  const mutant = (status: string, change = {}) => {
    return { file: "src/a.ts", line: 1, mutator: "m", from: "a", to: "b", status, ...change };
  };

  test("what hangs or breaks is noticed; what nothing reaches is not", () => {
    const noticed = ["Killed", "Timeout", "RuntimeError"].map((status) => mutant(status));
    const missed = ["Survived", "NoCoverage"].map((status) => mutant(status));
    expect(scoreOf([...noticed, ...missed])).toMatchObject({ total: 5, noticed: 3, percent: 60, survivors: missed });
  });

  test("what was left out or does not compile does not count", () => {
    expect(scoreOf([mutant("Ignored"), mutant("CompileError")])).toMatchObject({ total: 0, noticed: 0, percent: 100 });
  });

  test("an equivalent mutant counts as noticed", () => {
    const listed = mutant("Survived", { file: "src/leaves/random.ts", from: "i  >\n 0", to: "i >= 0" });
    expect(scoreOf([listed])).toMatchObject({ total: 1, noticed: 1, equivalent: 1, survivors: [] });
  });
});

test.each([
  ["test/train/log/folder_lock_test.ts", "src/train/log/folder/lock.ts", 4],
  ["test/train/log/progress_test.ts", "src/train/log/folder/lock.ts", 2],
  ["test/train/loop/train_test.ts", "src/train/log/folder/lock.ts", 1],
])("%s is near %s: %i", (test, source, expected) => {
  expect(nearness(test, source)).toBe(expected);
});

test("of tests that are as near the quicker comes first, and a slow one comes after those that are less near", () => {
  const of = (name: string, seconds: number) =>
    worthOf(`test/train/backend/${name}_test.ts`, "src/train/backend/local/plan/plan.ts", seconds);
  expect(of("plan", 2)).toBeGreaterThan(of("plan", 3));
  expect(of("plan", 3)).toBeGreaterThan(of("local", 4));
  expect(of("plan", 40)).toBeLessThan(of("engine", 1));
});

test("a sample of changed lines is a part of them all", () => {
  const plans = [
    { folder: "train/loop", lines: ["src/train/loop/a.ts:3-6", "src/train/loop/b.ts:12-12"] },
    { folder: "data", lines: ["src/train/data/a.ts:1-15"] },
  ];
  expect(partOfAbout(20, plans)).toBe(1);
  expect(partOfAbout(5, plans)).toBe(0.25);
  expect(partOfAbout(5, [])).toBe(1);
});

test("a part of many names is about that part, and the same for one seed", () => {
  const names = Array.from({ length: 4_000 }, (_, i) => `name ${i}`);
  const chosen = (seed: number) => names.filter((name) => isChosen(name, { part: 0.1, seed }));
  expect(chosen(1).length).toBeGreaterThan(300);
  expect(chosen(1).length).toBeLessThan(500);
  expect(chosen(1)).toEqual(chosen(1));
  expect(chosen(1)).not.toEqual(chosen(2));
});
