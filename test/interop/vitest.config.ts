import { defineConfig } from "vitest/config";

/** Separate from the other tests, because these need Python and install the SDKs. */
export default defineConfig({
  test: {
    include: ["test/interop/*_test.ts"],
    globalSetup: ["test/interop/sdks.ts"],
    testTimeout: 600_000,
    hookTimeout: 900_000,
    maxWorkers: 1,
    // As for the other tests: servers of others are killed at moments that differ.
    retry: process.env.CI ? 1 : 0,
  },
});
