/** Every family that loads, against transformers, on a GPU and from folders. On the references: families_cpu_test.ts. */
import { describe } from "vitest";
import { changed } from "../../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../../fixtures/devices.ts";
import { familyFolders, familyPasses } from "../../fixtures/family_checks.ts";

overDevices("families", (device) => {
  if (device.info.kind === "webgpu") familyPasses(device);
  familyFolders(device);
});

/** The kernels of GPUs, on whatever adapter there is. */
const tiled = gpuDevice && changed(gpuDevice, { info: { ...gpuDevice.info, family: "tiled" } });
describe.skipIf(!tiled)("families with the kernels of GPUs", () => {
  familyPasses(tiled!);
  familyFolders(tiled!);
});
