/** Both devices for a test file. Without an adapter the GPU's tests are skipped and said to be; REQUIRE_GPU=1 fails them. */
import { afterAll } from "vitest";
import type { Device } from "../../src/compute/device.ts";
import { openDevice } from "../../src/compute/open.ts";

const opened = await Promise.all(
  (["cpu", "webgpu"] as const).map(async (name) => {
    try {
      return await openDevice({ device: name });
    } catch (error) {
      if (process.env.REQUIRE_GPU === "1") throw error;
      console.warn(`tests on ${name} are skipped: ${(error as Error).message}`);
      return undefined;
    }
  }),
);

export const DEVICES: { name: string; device: Device }[] = opened
  .filter((device) => device !== undefined)
  .map((device) => ({ name: device.info.kind, device }));

afterAll(() => {
  for (const { device } of DEVICES) device.destroy();
});
