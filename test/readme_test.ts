/** The README's example is run as it stands. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test, vi } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));

test("the example of embedding prints advantages, a loss and a device", async () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const example = /## Embed the engine[\s\S]*?```ts\n([\s\S]*?)```/.exec(readme)?.[1] ?? "";
  expect(example).toContain('from "grpu/algorithm"');
  const dir = mkdtempSync(join(root, "test", "readme-"));
  const printed: unknown[] = [];
  const log = vi.spyOn(console, "log").mockImplementation((value) => printed.push(value));
  try {
    const file = join(dir, "example.ts");
    writeFileSync(file, example);
    await import(file);
  } finally {
    log.mockRestore();
    rmSync(dir, { recursive: true });
  }
  const [result] = printed as [{ on: string; advantages: number[]; loss: number; dlogprobs: number[] }];
  // verl's GRPO divides by the sample deviation, 0.5 here.
  expect(result.advantages.map((a) => a.toFixed(3))).toEqual(["1.500", "-0.500", "-0.500", "-0.500"]);
  // max(-1.5 r, -1.5 min(r, 1.28)) over the two tokens of the first row, 0.5 r of the second's one; a third each.
  const expected = (-1.5 * 1.28 - 1.5 * Math.exp(-0.1) + 0.5 * Math.exp(-0.1)) / 3;
  expect(result.loss).toBeCloseTo(expected, 5);
  expect(result.dlogprobs).toHaveLength(3);
  expect(result.on).toMatch(/\w/);
});

test("the library's run is that of docs/library.md, which a test runs", () => {
  const run = /## Use it as a library[\s\S]*?(```ts\n[\s\S]*?```)/;
  const [, block] = run.exec(readFileSync(join(root, "README.md"), "utf8")) ?? [];
  expect(block).toContain("await train(");
  expect(readFileSync(join(root, "docs/library.md"), "utf8")).toContain(block);
});

test("the files that AGENTS.md names exist", () => {
  const page = readFileSync(join(root, "AGENTS.md"), "utf8");
  const paths = [...page.matchAll(/`((?:src|shaders|test|scripts)\/[\w./-]+)`/g)].map(([, path]) => path!);
  const isName = (path: string) => !/[A-Z]{2}/.test(path);
  expect(paths.length).toBeGreaterThan(8);
  expect(paths.filter((path) => isName(path) && !existsSync(join(root, path)))).toEqual([]);
});
