/** The tests that a mutant must fail: those of its folder that finish within seconds. `MUTANT_TESTS` lists their globs. */
import { defineConfig } from "vitest/config";
import { SLOW_TESTS } from "../../vitest.slow.ts";

export default defineConfig({
  test: {
    include: (process.env.MUTANT_TESTS ?? "test/**/*_test.ts").split(","),
    exclude: ["**/node_modules/**", "test/interop/**", ...SLOW_TESTS],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 1,
  },
});
