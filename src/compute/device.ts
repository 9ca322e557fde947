/**
 * The interface both devices implement (`webgpu.ts`, `cpu.ts`). Work is recorded in order by synchronous calls and
 * happens at the next `submit` or `read`; what goes wrong rejects that call with a typed error.
 */
import type { BindingKinds, Constants, Kernel, ParamTypes, Values } from "./kernel.ts";

/** A range of device memory. Offsets and lengths in bytes. */
export interface Buffer {
  readonly label: string;
  readonly byteLength: number;
  /** Offset in the buffer that it is a slice of; 0 for a whole one. */
  readonly byteOffset: number;
  /** The buffer itself, or the whole one it is a slice of. */
  readonly whole: Buffer;
  /** A range of this one that shares its memory. `byteOffset` must be a multiple of {@link SLICE_ALIGNMENT_BYTES}. */
  slice(byteOffset: number, byteLength: number): Buffer;
}

/** WebGPU's `minStorageBufferOffsetAlignment` at its default: a slice may start at multiples of it. */
export const SLICE_ALIGNMENT_BYTES = 256;

export type Data = Float32Array | Uint32Array | Int32Array;

export interface DeviceLimits {
  /** Largest range one binding may cover: bigger arrays are worked through in windows. */
  readonly maxBindingBytes: number;
  readonly maxBufferBytes: number;
  readonly maxWorkgroupInvocations: number;
  readonly maxWorkgroupStorageBytes: number;
}

export interface DeviceInfo {
  readonly kind: "webgpu" | "cpu";
  /** One line for people: adapter and driver. */
  readonly description: string;
  readonly vendor: string;
  readonly architecture: string;
  readonly features: readonly string[];
  readonly limits: DeviceLimits;
  /**
   * Which family of kernels suits the adapter: `scalar` where barriers and many workgroups are slow (CPU
   * drivers such as lavapipe and SwiftShader), `tiled` where workgroup memory pays (GPUs).
   */
  readonly family: "scalar" | "tiled";
  /** Lanes of a subgroup where the adapter has subgroups of one fixed size; else 0. */
  readonly subgroupSize: number;
}

export interface DispatchOptions<B extends BindingKinds, P extends ParamTypes> {
  readonly buffers: { readonly [K in keyof B]: Buffer };
  readonly params: Values<P>;
  readonly constants?: Constants | undefined;
}

/** Bytes. */
export interface MemoryUse {
  readonly live: number;
  readonly pooled: number;
  /** The most that was live at once. */
  readonly peak: number;
  readonly budget: number;
}

export interface Device {
  readonly info: DeviceInfo;
  /** Bytes now held by live buffers, and by the pool's free ones. */
  readonly memory: MemoryUse;

  /**
   * A buffer with undefined contents, from the pool where one fits.
   * @throws ConfigError when the byte budget would be exceeded; names the label and the largest holders.
   */
  alloc(byteLength: number, label: string): Buffer;
  /** `alloc` filled with `data`. */
  upload(data: Data, label: string): Buffer;
  /** Returns a whole buffer to the pool. Work already recorded still sees it. */
  release(...buffers: readonly Buffer[]): void;
  /** Copies `data` in, in order with the recorded work. `data` may be reused at once. */
  write(buffer: Buffer, data: Data, byteOffset?: number): void;
  /** Copies bytes between buffers (multiples of 4). */
  copy(from: Buffer, to: Buffer, byteLength?: number): void;
  /** Sets every byte to 0. */
  clear(buffer: Buffer): void;
  /** Records one run of a kernel. A grid with a zero side is skipped. */
  dispatch<B extends BindingKinds, P extends ParamTypes>(
    kernel: Kernel<B, P>,
    options: DispatchOptions<B, P>,
  ): void;
  /**
   * Hands the recorded work over, in one submit, and waits for it.
   * @throws ShaderError for a module or dispatch that WebGPU refuses, RemoteError when the device is lost.
   */
  submit(): Promise<void>;
  /** Submits and copies results out, all in one read-back, in the order asked for. */
  read(requests: readonly ReadRequest[]): Promise<Data[]>;
  /** Compiles pipelines ahead of their first dispatch (a first run would wait for them). */
  prepare(kernels: readonly { kernel: Kernel; constants?: Constants }[]): Promise<void>;
  /** Frees everything. Calls in flight reject. */
  destroy(): void;
}

export interface ReadRequest {
  readonly buffer: Buffer;
  readonly type: "f32" | "u32" | "i32";
  /** Elements to read; the whole range if absent. */
  readonly length?: number | undefined;
}

/** Reads one f32 range. */
export async function readFloats(device: Device, buffer: Buffer, length?: number): Promise<Float32Array> {
  const [data] = await device.read([{ buffer, type: "f32", length }]);
  return data as Float32Array;
}
