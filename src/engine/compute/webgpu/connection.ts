/** A GPU device with everything that is made from it, and lost with it. */
import { RemoteError, UnsupportedError } from "../../../leaves/errors.ts";
import type { DeviceRequirements } from "./adapter.ts";
import { Allocations } from "./allocations.ts";
import { Bindings } from "./bindings.ts";
import { GpuFailures } from "./failures.ts";
import { requireMatrices, SUBGROUP_MATRIX } from "./matrix_units.ts";
import { PipelineCache } from "./pipeline.ts";
import { StagingPool } from "./read_back.ts";
import type { GpuAdapter, GpuDevice } from "./types.ts";

/** Requested where the adapter has them; a kernel that needs one is chosen by the device's features. */
const OPTIONAL_FEATURES: readonly GPUFeatureName[] = ["subgroups", "shader-f16", "timestamp-query"];
/** Storage buffers that the largest kernels bind. */
const STORAGE_BUFFERS = 8;

export class Connection {
  readonly gpuDevice: GpuDevice;
  readonly allocations: Allocations;
  readonly bindings: Bindings;
  readonly pipelines: PipelineCache;
  readonly staging: StagingPool;
  readonly failures: GpuFailures;

  constructor(gpuDevice: GpuDevice) {
    this.gpuDevice = gpuDevice;
    this.allocations = new Allocations(gpuDevice);
    this.bindings = new Bindings(gpuDevice);
    this.pipelines = new PipelineCache(gpuDevice);
    this.staging = new StagingPool(gpuDevice);
    this.failures = new GpuFailures(gpuDevice);
  }

  /** @param reason what calls under way reject with, if the device was not lost before */
  destroy(reason: RemoteError): void {
    this.failures.end(reason);
    this.staging.destroy();
    this.bindings.destroy();
    this.gpuDevice.destroy();
  }
}

/** @throws UnsupportedError for an adapter that binds too few buffers, or lacks what is wanted */
export function requestDevice(
  adapter: GpuAdapter,
  { subgroupMatrix = false }: DeviceRequirements = {},
): Promise<GpuDevice> {
  const { limits } = adapter;
  if (subgroupMatrix) requireMatrices(adapter);
  if (limits.maxStorageBuffersPerShaderStage < STORAGE_BUFFERS)
    throw new UnsupportedError(
      `Cannot use the adapter ${adapter.info.description}: it binds ${limits.maxStorageBuffersPerShaderStage} storage buffers, ${STORAGE_BUFFERS} are needed. Use --device cpu.`,
      { part: "adapter", capability: "maxStorageBuffersPerShaderStage" },
    );
  return adapter.requestDevice({
    label: "grpu",
    requiredFeatures: [
      ...OPTIONAL_FEATURES.filter((name) => adapter.features.has(name)),
      ...(subgroupMatrix ? [SUBGROUP_MATRIX] : []),
    ],
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
      maxComputeWorkgroupSizeX: limits.maxComputeWorkgroupSizeX,
      maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
    },
  });
}

/** A driver that is being reset answers again after a second or two. */
const WAITS_MS = [0, 500, 1000, 2000, 4000];

/** After a loss. @throws RemoteError when no adapter answers */
export async function connectAgain(
  find: () => Promise<GpuAdapter | null>,
  wanted: DeviceRequirements = {},
): Promise<Connection> {
  let cause: unknown;
  for (const wait of WAITS_MS) {
    await new Promise((resume) => setTimeout(resume, wait));
    try {
      const adapter = await find();
      if (adapter) return new Connection(await requestDevice(adapter, wanted));
    } catch (error) {
      cause = error;
    }
  }
  throw new RemoteError(
    `Cannot reopen the GPU device: no adapter answers${cause ? ` (${(cause as Error).message})` : ""}. Check the driver, then resume from the last checkpoint.`,
    { retryable: false },
  );
}
