/** Mutation testing notices a mistake that keeps a test file from being collected. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";

const folder = mkdtempSync(join(tmpdir(), "grpu-collection-"));
afterAll(() => rmSync(folder, { recursive: true }));

const FILES = {
  passes: "test('t', () => {});",
  fails: "test('t', () => { throw new Error('in a test'); });",
  throws: "describe('d', () => { test('t', () => {}); throw new Error('in a describe body'); });",
};

/** Runs the test files one after the other, the way that Stryker does, and counts the errors outside of tests. */
const PROGRAM = `
import { createVitest } from "vitest/node";
import { CollectionErrors } from "./scripts/mutants/collection_errors.ts";
const [root, ...files] = process.argv.slice(1);
const options = { config: false, root, watch: false, maxWorkers: 1, reporters: [new CollectionErrors()] };
const vitest = await createVitest("test", { ...options, include: files });
const counts = [];
for (const file of files) {
  await vitest.start([file]);
  counts.push(vitest.state.errorsSet.size);
}
console.log(JSON.stringify(counts));
process.exit(0);
`;

test("an error in a describe body is an error of the run, a failed test is not", () => {
  const files = Object.entries(FILES).map(([name, code]) => {
    const file = `${name}_test.js`;
    writeFileSync(join(folder, file), `import { describe, test } from "vitest";\n${code}\n`);
    return file;
  });
  const options = ["--import", "tsx", "--input-type=module", "-e", PROGRAM, "--", folder, ...files];
  const output = execFileSync(process.execPath, options, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  expect(JSON.parse(output.trim().split("\n").at(-1)!)).toEqual([0, 0, 1]);
});
