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
    // These need Python: `npm run test:interop`, `npm run test:reference`.
    exclude: ["**/node_modules/**", "test/interop/**", "test/reference/**", ...(isSlow ? [] : SLOW_TESTS)],
    // A test takes seconds, and a busy machine makes it ten times that; whole training runs are among the slow ones.
    testTimeout: isSlow ? 300_000 : 60_000,
    hookTimeout: 120_000,
    // On machines that others share, a test's second try tells a defect from a delay; the reporter marks it (retry x1).
    retry: process.env.CI ? 1 : 0,
    // Of this process alone: what tests start (the command line, servers) does not count.
    coverage: { provider: "v8", include: ["src/**/*.ts"], reporter: ["text-summary"] },
    // A GPU device per file; two files at once fill two cores without starving the driver's threads.
    pool: "forks",
    maxWorkers: 2,
  },
});
