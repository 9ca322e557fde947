import { defineConfig } from "vitest/config";
import { SLOW_TESTS } from "./vitest.slow.ts";

const isSlow = process.env.SLOW === "1";

export default defineConfig({
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
