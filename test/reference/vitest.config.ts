import { defineConfig } from "vitest/config";

/** Separate from the other tests, because these need PyTorch and take minutes: whole vocabularies on a software GPU. */
export default defineConfig({
  test: {
    include: ["test/reference/*_test.ts"],
    // Takes 4 GB and a minute.
    exclude: process.env.NIGHTLY === "1" ? [] : ["test/reference/grpo_step_test.ts"],
    testTimeout: 900_000,
    hookTimeout: 900_000,
    maxWorkers: 1,
    // One GPU device per file, and one model in memory at a time.
    fileParallelism: false,
  },
});
