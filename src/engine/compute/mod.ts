/**
 * The compute engine: a device, buffers on it, and kernels as values with a reference in TypeScript. `openDevice` takes
 * WebGPU where an adapter answers (Node, Deno, a page), else the CPU.
 *
 * Stable in 0.x: `openDevice`, `Device`, `readFloats`. A minor version may change the rest.
 * @module
 */
export { CpuDevice } from "./cpu.ts";
export {
  type Buffer,
  type Data,
  type Device,
  type DeviceInfo,
  type DeviceLimits,
  type DispatchOptions,
  type KeptWork,
  type ReadRequest,
  type Recorded,
  readFloats,
} from "./device.ts";
export { defineKernel, folded, type Grid, type Kernel } from "./kernel.ts";
export { matmul, matmulFamily } from "./matmul/matmul.ts";
export type { MatmulOptions, Matrix } from "./matmul/product.ts";
export type { DeviceObserver, HostEvent, KernelRuns, Observation } from "./observer.ts";
export { type DeviceName, type OpenDeviceOptions, openDevice } from "./open.ts";
export type { MatrixFormat } from "./packed.ts";
export { type LeftOut, Profile, type ProfileLimits, type Span } from "./profile/profile.ts";
export { type KernelTime, kernelTable, timeByKernel } from "./profile/table.ts";
export { type TraceEvent, traceEvents, traceText } from "./profile/trace.ts";
export { WebGpuDevice, type WebGpuDeviceOptions } from "./webgpu/device.ts";
