/** What kernels are told of an adapter. */
import { expect, test } from "vitest";
import { requestDevice } from "../../../src/engine/compute/webgpu/connection.ts";
import { gpuInfo } from "../../../src/engine/compute/webgpu/info.ts";
import type { GpuAdapter } from "../../../src/engine/compute/webgpu/types.ts";

const LIMITS = {
  maxStorageBufferBindingSize: 128 * 2 ** 20,
  maxBufferSize: 256 * 2 ** 20,
  maxComputeInvocationsPerWorkgroup: 256,
  maxComputeWorkgroupStorageSize: 16_384,
  maxComputeWorkgroupSizeX: 512,
  maxStorageBuffersPerShaderStage: 8,
};

function adapter(info: Record<string, unknown> = {}, more: { features?: string[]; limits?: object } = {}): GpuAdapter {
  const words = { vendor: "", architecture: "", device: "", description: "", ...info };
  const { features = [], limits = {} } = more;
  return {
    info: words,
    features: new Set(features),
    limits: { ...LIMITS, ...limits },
    requestDevice: async (wanted: unknown) => wanted,
  } as unknown as GpuAdapter;
}

test("limits and features, in order", () => {
  expect(gpuInfo(adapter({}, { features: ["subgroups", "shader-f16"] }))).toMatchObject({
    kind: "webgpu",
    features: ["shader-f16", "subgroups"],
    limits: {
      maxBindingBytes: 128 * 2 ** 20,
      maxBufferBytes: 256 * 2 ** 20,
      maxWorkgroupInvocations: 256,
      maxWorkgroupStorageBytes: 16_384,
    },
  });
});

test.each([
  [{ vendor: "nvidia", architecture: "hopper", device: "h200", description: "NVIDIA H200" }, "NVIDIA H200", "hopper"],
  [{ vendor: "apple", architecture: "", device: "m1" }, "m1 apple", "m1"],
  [{ vendor: "amd" }, "amd", ""],
])("%o is described as %s, of the architecture %s", (info, description, architecture) => {
  expect(gpuInfo(adapter(info))).toMatchObject({ description, architecture, vendor: info.vendor });
});

test.each([
  [{ description: "llvmpipe (LLVM 15)" }, "scalar"],
  [{ device: "SwiftShader Device" }, "scalar"],
  [{ vendor: "mesa", architecture: "lavapipe" }, "scalar"],
  [{ vendor: "microsoft", description: "Microsoft Basic Render Driver" }, "scalar"],
  [{ vendor: "nvidia", isFallbackAdapter: true }, "scalar"],
  [{ vendor: "nvidia", isFallbackAdapter: false }, "tiled"],
  [{ vendor: "nvidia", description: "NVIDIA H200" }, "tiled"],
])("%o takes the kernels of the family %s", (info, family) => {
  expect(gpuInfo(adapter(info)).family).toBe(family);
});

test.each([
  [["subgroups"], { subgroupMinSize: 8, subgroupMaxSize: 8 }, 8],
  [["subgroups"], { subgroupMinSize: 8, subgroupMaxSize: 32 }, 0],
  [["subgroups"], {}, 0],
  [[], { subgroupMinSize: 8, subgroupMaxSize: 8 }, 0],
])("with features %j and %o, subgroups have %i lanes", (features, info, lanes) => {
  expect(gpuInfo(adapter(info, { features })).subgroupSize).toBe(lanes);
});

test("a device is requested with the adapter's limits, and with the features that it has of those that help", async () => {
  const has = adapter({}, { features: ["subgroups", "depth-clip-control", "timestamp-query"] });
  const { maxStorageBuffersPerShaderStage: _, ...requiredLimits } = LIMITS;
  expect(await requestDevice(has)).toEqual({
    label: "grpu",
    requiredFeatures: ["subgroups", "timestamp-query"],
    requiredLimits,
  });
});

test("an adapter that binds fewer than 8 storage buffers is refused", () => {
  const few = adapter({ description: "Old GPU" }, { limits: { maxStorageBuffersPerShaderStage: 7 } });
  expect(() => requestDevice(few)).toThrow("Cannot use the adapter Old GPU: it binds 7 storage buffers, 8 are needed.");
});
