/**
 * WebGPU's types, taken from the program's own: `lib.dom` from TypeScript 6 on, or `@webgpu/types`. In a program with
 * neither they are `unknown`, so that our declarations still compile.
 */
type Global<Name extends string> = typeof globalThis extends Record<Name, { prototype: infer Type }> ? Type : unknown;

export type Gpu = Global<"GPU">;
export type GpuAdapter = Global<"GPUAdapter">;
export type GpuError = Global<"GPUError">;
export type GpuDevice = Global<"GPUDevice">;
export type GpuBuffer = Global<"GPUBuffer">;
export type GpuBindGroup = Global<"GPUBindGroup">;
export type GpuBindGroupLayout = Global<"GPUBindGroupLayout">;
export type GpuCommandEncoder = Global<"GPUCommandEncoder">;
export type GpuComputePipeline = Global<"GPUComputePipeline">;
export type GpuQuerySet = Global<"GPUQuerySet">;
