import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";
import { SLOW_TESTS } from "./vitest.slow.ts";

const isSlow = process.env.SLOW === "1";

/** `grpu` and its doors as deno.json names them: a test that writes a program down runs it on the sources. */
const { imports } = JSON.parse(readFileSync(new URL("deno.json", import.meta.url), "utf8"));
const alias = Object.entries(imports as Record<string, string>)
  .filter(([name]) => /^grpu\b/.test(name))
  .map(([name, path]) => ({
    find: new RegExp(`^${name}$`),
    replacement: fileURLToPath(new URL(path, import.meta.url)),
  }));

export default defineConfig({
  resolve: { alias },
  test: {
    include: isSlow ? [...SLOW_TESTS] : ["test/**/*_test.ts"],
    // Interop needs Python: `npm run test:interop`.
    exclude: ["**/node_modules/**", "test/interop/**", ...(isSlow ? [] : SLOW_TESTS)],
    // A software GPU compiles wide attention kernels for up to a minute the first time, on a busy machine.
    testTimeout: 300_000,
    hookTimeout: 120_000,
    // A GPU device per file; two files at once fill two cores without starving the driver's threads.
    pool: "forks",
    maxWorkers: 2,
  },
});
