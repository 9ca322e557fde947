import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*_test.ts"],
    // They need Python: \`npm run test:interop\`.
    exclude: ["**/node_modules/**", "test/interop/**"],
    // A software GPU compiles wide attention kernels for up to a minute the first time, on a busy machine.
    testTimeout: 300_000,
    hookTimeout: 120_000,
    // A GPU device per file; two files at once fill two cores without starving the driver's threads.
    pool: "forks",
    maxWorkers: 2,
  },
});
