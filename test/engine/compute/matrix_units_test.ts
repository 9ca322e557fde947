/** Which adapters have the matrix units that products use. */
import { expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { chooseTiles } from "../../../src/engine/compute/matmul/tiles.ts";
import { openDevice } from "../../../src/engine/compute/open.ts";
import { requestDevice } from "../../../src/engine/compute/webgpu/connection.ts";
import { gpuInfo } from "../../../src/engine/compute/webgpu/info.ts";
import { matrixSupport, SUBGROUP_MATRIX } from "../../../src/engine/compute/webgpu/matrix_units.ts";
import type { GpuAdapter } from "../../../src/engine/compute/webgpu/types.ts";
import { ConfigError, UnsupportedError } from "../../../src/leaves/errors.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

const config = (componentType: string, resultComponentType: string, size: number) => ({
  ...{ componentType, resultComponentType, M: size, N: size, K: size },
});
const HALF = config("f16", "f16", 16);
const FITTING = config("f16", "f32", 16);
/** Those of Metal. */
const METAL = [config("f32", "f32", 8), config("f16", "f16", 8)];
const ALL = [SUBGROUP_MATRIX, "shader-f16", "subgroups"];

function adapter({
  features = ALL,
  lanes = [32, 32],
  configs = [HALF, FITTING] as unknown,
  bytes = 16_384,
}): GpuAdapter {
  return {
    info: {
      ...{ vendor: "nvidia", architecture: "hopper", device: "h200", description: "NVIDIA H200" },
      ...{ subgroupMinSize: lanes[0], subgroupMaxSize: lanes[1], subgroupMatrixConfigs: configs },
    },
    features: new Set(features),
    limits: { maxStorageBuffersPerShaderStage: 8, maxComputeWorkgroupStorageSize: bytes },
    requestDevice: async (wanted: unknown) => wanted,
  } as unknown as GpuAdapter;
}

test("an adapter with the features, 32 lanes and 16 x 16 x 16 in f16 with f32 sums lacks nothing", async () => {
  const has = adapter({});
  expect(matrixSupport(has)).toEqual({ inputs: "f16", missing: undefined });
  expect(gpuInfo(has).subgroupMatrix).toEqual({ isUsed: false, inputs: "f16", missing: undefined });
  const wanted = (subgroupMatrix: boolean) => requestDevice(has, { subgroupMatrix });
  expect(await wanted(true)).toMatchObject({ requiredFeatures: ["subgroups", "shader-f16", SUBGROUP_MATRIX] });
  // Experimental features are requested where they are used alone.
  expect(await wanted(false)).toMatchObject({ requiredFeatures: ["subgroups", "shader-f16"] });
});

test.each([
  [
    { features: ["shader-f16", "subgroups"] },
    /^no feature chromium-experimental-subgroup-matrix \(.*allow_unsafe_apis\)$/,
  ],
  [{ features: [SUBGROUP_MATRIX, "subgroups"] }, /^no feature shader-f16 \(.*vulkan_enable_f16_on_nvidia\)$/],
  [{ features: [] }, /^no feature chromium.*; no feature shader-f16 .*; no feature subgroups/],
  [{ lanes: [8, 8] }, /^subgroups of 8 lanes in place of 32$/],
  [{ lanes: [32, 64] }, /^subgroups of 32 to 64 lanes in place of 32$/],
  [{ configs: [] }, /^neither units of 16 x 16 x 16 in f16 with sums in f32 nor of 8 x 8 x 8 in f32 \(it has: none\)$/],
  [{ configs: null }, /\(it has: none\)$/],
  [{ configs: [config("f16", "f16", 8), HALF] }, /\(it has: 8 x 8 x 8 f16 to f16, 16 x 16 x 16 f16 to f16\)$/],
  [{ bytes: 16_380 }, /^16380 bytes of workgroup memory, and 16384 are needed$/],
  [{ configs: METAL }, /^16384 bytes of workgroup memory, and 24576 are needed$/],
  [{ configs: [HALF, { ...FITTING, M: 8 }, { ...FITTING, N: 8 }, { ...FITTING, K: 8 }] }, /^neither units of 16/],
])("what an adapter lacks: %o", (less, missing) => {
  const lacking = adapter(less);
  expect(gpuInfo(lacking).subgroupMatrix).toMatchObject({
    isUsed: false,
    missing: expect.stringMatching(missing),
  });
  expect(() => requestDevice(lacking, { subgroupMatrix: true })).toThrow(
    /^Cannot multiply by subgroup matrices on NVIDIA H200: .*\. Set device.toggles=\[allow_unsafe_apis,vulkan_enable_f16_on_nvidia\] where the GPU has them, or leave device.products at auto\.$/,
  );
  expect(() => requestDevice(lacking)).not.toThrow();
});

test("devices without them refuse the setting", async () => {
  await expect(openDevice({ device: "cpu", products: "subgroup_matrix" })).rejects.toThrow(ConfigError);
  await expect(chooseTiles(new CpuDevice(), "subgroup_matrix")).rejects.toThrow(/they are for GPUs/);
});

test.skipIf(gpuDevice?.info.subgroupMatrix?.missing === undefined)("so does an adapter without them", async () => {
  await expect(openDevice({ products: "subgroup_matrix" })).rejects.toThrow(UnsupportedError);
});
