import { defineConfig } from "vitest/config";

/** Apart from the other tests: they need Python, and the SDKs from its registry. */
export default defineConfig({
  test: {
    include: ["test/interop/*_test.ts"],
    globalSetup: ["test/interop/sdks.ts"],
    testTimeout: 600_000,
    hookTimeout: 900_000,
    maxWorkers: 1,
  },
});
