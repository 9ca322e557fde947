/** The runs of runs_test.ts on the GPU, and those that take seconds. */
import { describe, test } from "vitest";
import { gpuDevice } from "../fixtures/devices.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { startServer } from "../interop/server.ts";
import { checkMetrics, checkRun, metricsOfRun } from "./check.ts";
import { LONG_RUNS, RUNS, tinkerRun } from "./runs.ts";

test.each([...LONG_RUNS])("%s gives the stored metrics on cpu", (name) => checkRun(name, "cpu"));

describe.skipIf(!gpuDevice)("on webgpu", () => {
  // The long runs warm up so much that weights differ between devices in the fourth digit, and so does a sampled token.
  test.each(Object.keys(RUNS).filter((name) => !LONG_RUNS.has(name)))("%s gives the stored metrics", (name) =>
    checkRun(name, "webgpu"),
  );
});

describe.skipIf(!hasShared)("over Tinker's protocol", () => {
  const MODEL = sharedPath("models/stories260k");
  test.each(gpuDevice ? ["cpu", "webgpu"] : ["cpu"])("gives the stored metrics on %s", async (device) => {
    const server = await startServer(["--model", MODEL, "--device", device]);
    try {
      const env = { TINKER_BASE_URL: server.url, TINKER_API_KEY: "tml-local" };
      const found = await metricsOfRun(`tinker-${device}`, { args: tinkerRun(MODEL), env });
      checkMetrics("tinker", found, device);
    } finally {
      await server.stop();
    }
  });
});
