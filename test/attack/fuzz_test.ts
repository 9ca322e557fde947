/** A short run of the fuzzer; `npm run fuzz` goes on for as long as it is let. */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const FUZZ = fileURLToPath(new URL("fuzz.ts", import.meta.url));

test("4,000 random requests and damaged files: no fault", () => {
  const args = ["--import", "tsx", FUZZ, "--cases", "4000", "--seed", "1", "--seconds", "240"];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8" });
  expect([status, stderr]).toEqual([0, ""]);
  expect(stdout).toContain(", 0 faults");
});
