/** The project's own mutation tool: which mistakes it makes, and in which lines. */
import { describe, expect, test } from "vitest";
import { parseDiff, partOfAbout } from "../../scripts/mutants/changed.ts";
import { isChosen } from "../../scripts/mutants/sample.ts";
import { ownTests } from "../../scripts/mutants/shaders.ts";
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
  ["shaders/matmul/any.wgsl", ["test/compute/*_test.ts"]],
  ["shaders/layer/rope.wgsl", ["test/model/kernels/*_test.ts"]],
  ["shaders/matmul/parts/product.wgsl", ["test/compute/*_test.ts"]],
])("the tests of %s", (file, tests) => {
  expect(ownTests(file)).toEqual(tests);
});

test("changed lines are read from a diff, by folder", () => {
  const diff = [
    "+++ b/src/loop/update.ts",
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
    { folder: "loop", lines: ["src/loop/update.ts:3-6", "src/loop/update.ts:12-12"] },
    { folder: "shaders", lines: ["shaders/rope.wgsl:5-6"] },
  ]);
});

test("a sample of changed lines is a part of them all", () => {
  const plans = [
    { folder: "loop", lines: ["src/loop/a.ts:3-6", "src/loop/b.ts:12-12"] },
    { folder: "data", lines: ["src/data/a.ts:1-15"] },
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
