/** The tests that a mutant must fail: those of its folder but for whole runs. `MUTANT_TESTS` lists their globs. */
import { defineConfig } from "vitest/config";
import { isolated as suite } from "../../vitest.config.ts";
import { LONG_TESTS } from "../../vitest.slow.ts";
import { CollectionErrors } from "./collection_errors.ts";
import { NearestFirst } from "./test_order.ts";

export default defineConfig({
  ...suite,
  test: {
    include: (process.env.MUTANT_TESTS ?? "test/**/*_test.ts").split(","),
    exclude: (suite.test?.exclude ?? []).filter((path) => !LONG_TESTS.includes(path)),
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 1,
    reporters: ["default", new CollectionErrors()],
    sequence: { sequencer: NearestFirst },
  },
});
