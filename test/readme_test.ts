/** The README's example is run as it stands. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test, vi } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));

test("the example of embedding prints advantages, a loss and a device", async () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const example = /```ts\n([\s\S]*?)```/.exec(readme)?.[1] ?? "";
  expect(example).toContain('from "grpu"');
  const dir = mkdtempSync(join(root, "test", "readme-"));
  const printed: unknown[] = [];
  const log = vi.spyOn(console, "log").mockImplementation((value) => printed.push(value));
  try {
    const file = join(dir, "example.ts");
    writeFileSync(file, example.replace('"grpu"', JSON.stringify(join(root, "src", "mod.ts"))));
    await import(file);
  } finally {
    log.mockRestore();
    rmSync(dir, { recursive: true });
  }
  const [result, description] = printed as [{ first: number[]; loss: number; dlogprobs: number[] }, string];
  // verl's GRPO divides by the sample deviation, 0.5 here.
  expect(result.first.map((a) => a.toFixed(3))).toEqual(["1.500", "-0.500", "-0.500", "-0.500"]);
  expect(Number.isFinite(result.loss)).toBe(true);
  expect(result.dlogprobs).toHaveLength(7);
  expect(description).toMatch(/\w/);
});
