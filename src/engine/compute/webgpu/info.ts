/** An adapter as kernels need to know it. */
import type { DeviceInfo } from "../device.ts";
import { matrixSupport } from "./matrix_units.ts";
import type { GpuAdapter } from "./types.ts";

export function gpuInfo(adapter: GpuAdapter): DeviceInfo {
  const { info, limits } = adapter;
  const isFallback = (info as { isFallbackAdapter?: boolean }).isFallbackAdapter ?? false;
  return {
    kind: "webgpu",
    description: [info.description || info.device, info.description ? "" : info.vendor].filter(Boolean).join(" "),
    vendor: info.vendor,
    architecture: info.architecture || info.device,
    features: [...adapter.features].sort(),
    limits: {
      maxBindingBytes: limits.maxStorageBufferBindingSize,
      maxBufferBytes: limits.maxBufferSize,
      maxWorkgroupInvocations: limits.maxComputeInvocationsPerWorkgroup,
      maxWorkgroupStorageBytes: limits.maxComputeWorkgroupStorageSize,
    },
    family: isSoftware(info, isFallback) ? "scalar" : "tiled",
    subgroupMatrix: { isUsed: false, ...matrixSupport(adapter) },
    subgroupSize: adapter.features.has("subgroups") ? fixedSubgroupSize(info) : 0,
  };
}

/** True for a CPU driver: barriers, many workgroups and large unrolled shaders are slow there. */
function isSoftware(info: GPUAdapterInfo, isFallback: boolean): boolean {
  const text = `${info.vendor} ${info.architecture} ${info.device} ${info.description}`;
  return isFallback || /llvmpipe|lavapipe|swiftshader|software|basic render/i.test(text);
}

function fixedSubgroupSize({ subgroupMinSize, subgroupMaxSize }: GPUAdapterInfo): number {
  return subgroupMinSize === subgroupMaxSize ? (subgroupMinSize ?? 0) : 0;
}
