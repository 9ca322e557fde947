import { defineConfig } from "vitest/config";

/** Separate from the other tests, because these need Python and install the SDKs. */
export default defineConfig({
  test: {
    include: ["test/interop/*_test.ts"],
    globalSetup: ["test/interop/sdks.ts"],
    testTimeout: 600_000,
    hookTimeout: 900_000,
    maxWorkers: 1,
  },
});
