/**
 * The interface of both devices (`webgpu/device.ts`, `cpu.ts`). Synchronous calls record work in order; the next
 * `submit` or `read` runs it and rejects with a typed error if anything in it failed.
 */
import type { BindingKinds, Constants, Kernel, ParamTypes, Values } from "./kernel.ts";
import type { DeviceObserver, Observation } from "./observer.ts";

/** A range of device memory. Offsets and lengths in bytes. */
export interface Buffer {
  readonly label: string;
  readonly byteLength: number;
  /** Offset in the whole buffer. */
  readonly byteOffset: number;
  /** The buffer that this is a slice of, or itself. */
  readonly whole: Buffer;
  /** A range of this buffer that shares its memory. `byteOffset` must be a multiple of {@link SLICE_ALIGNMENT_BYTES}. */
  slice(byteOffset: number, byteLength: number): Buffer;
}

/** Slices start at multiples of this: WebGPU's default `minStorageBufferOffsetAlignment`. */
export const SLICE_ALIGNMENT_BYTES = 256;

/** Array types of a buffer's elements. */
export type Data = Float32Array | Uint32Array | Int32Array;

/** Sizes that kernels must respect on a device. */
export interface DeviceLimits {
  /** Largest range of one binding; larger arrays are processed in windows. */
  readonly maxBindingBytes: number;
  readonly maxBufferBytes: number;
  readonly maxWorkgroupInvocations: number;
  readonly maxWorkgroupStorageBytes: number;
}

/**
 * Kernels of matrix products on GPUs: 64 x 64 tiles with 4 x 4 sums a thread, or 128 x 64 with 8 x 8 and smaller ones where these
 * would be few. Their bits are the same.
 */
export type TileFamily = "tiled" | "tiled_large";

/** Types that matrix units multiply; their sums are f32. */
export type MatrixInputs = "f16" | "f32";

/** Whether products of many rows use the matrix units of a GPU's subgroups. */
export interface SubgroupMatrix {
  /** True with `device.products=subgroup_matrix`. */
  readonly isUsed: boolean;
  /** Absent where the adapter has no units that fit. */
  readonly inputs?: MatrixInputs | undefined;
  /** Features that the adapter lacks for it, for people; absent where it lacks nothing. */
  readonly missing?: string | undefined;
}

/** A device's kind, limits and features. */
export interface DeviceInfo {
  readonly kind: "webgpu" | "cpu";
  /** One line for people: adapter and driver. */
  readonly description: string;
  readonly vendor: string;
  readonly architecture: string;
  readonly features: readonly string[];
  readonly limits: DeviceLimits;
  /**
   * Family of kernels that suits the adapter: `scalar` where barriers and many workgroups are slow (CPU drivers such as
   * lavapipe and SwiftShader), `tiled` where workgroup memory pays (GPUs).
   */
  readonly family: "scalar" | "tiled";
  /** Kernels in the family `tiled`: those of large matrix products, as measured or set. Default `tiled_large`. */
  readonly tile?: TileFamily | undefined;
  /** Source of `tile`, for people: the setting, or the rates that were measured. */
  readonly tileSource?: string | undefined;
  /** The matrix units of a GPU; absent on `cpu`. */
  readonly subgroupMatrix?: SubgroupMatrix | undefined;
  /** Lanes of a subgroup if the adapter has subgroups of one fixed size; else 0. */
  readonly subgroupSize: number;
}

/** Buffers and parameters of one dispatch of a kernel. */
export interface DispatchOptions<B extends BindingKinds, P extends ParamTypes> {
  readonly buffers: { readonly [K in keyof B]: Buffer };
  readonly params: Values<P>;
  readonly constants?: Constants | undefined;
}

/** Bytes. */
export interface MemoryUse {
  readonly live: number;
  readonly pooled: number;
  /** The largest value of `live` so far. */
  readonly peak: number;
  readonly budget: number;
  /** Source of the budget: the setting, or whose words about the memory. */
  readonly budgetSource: string;
}

/** A place where kernels run: buffers, dispatches and read-backs. `webgpu` and `cpu` have the same results up to rounding. */
export interface Device {
  readonly info: DeviceInfo;
  /** Bytes of live buffers and of the pool's free ones. */
  readonly memory: MemoryUse;

  /**
   * Returns a buffer with undefined contents, from the pool if one fits.
   * @throws OutOfMemoryError when the byte budget would be exceeded; names the label and the largest holders.
   */
  alloc(byteLength: number, label: string): Buffer;
  /** `alloc` filled with `data`. */
  upload(data: Data, label: string): Buffer;
  /** Returns whole buffers to the pool. Work already recorded still uses their contents. */
  release(...buffers: readonly Buffer[]): void;
  /** Copies `data` into a buffer, in order with the recorded work. The caller may reuse `data` at once. */
  write(buffer: Buffer, data: Data, byteOffset?: number): void;
  /** Copies bytes between buffers (multiples of 4). */
  copy(from: Buffer, to: Buffer, byteLength?: number): void;
  /** Sets every byte to 0. */
  clear(buffer: Buffer): void;
  /** Records one run of a kernel. A grid with a zero side is skipped. */
  dispatch<B extends BindingKinds, P extends ParamTypes>(kernel: Kernel<B, P>, options: DispatchOptions<B, P>): void;
  /**
   * Runs the recorded work and waits for it. On a GPU it is submitted in pieces of about 200 ms.
   * @throws ShaderError for a module or dispatch that WebGPU rejects, DeviceLostError when the device is lost,
   * OutOfMemoryError when the driver refused a buffer allocated before this call; the recorded work is then forgotten,
   * and none of it has run.
   */
  submit(): Promise<void>;
  /** Submits the recorded work and returns the contents of buffers, in one read-back and in the order of the requests. */
  read(requests: readonly ReadRequest[]): Promise<Data[]>;
  /** A place in the recorded work, for {@link Device.rollback}. */
  mark(): number;
  /**
   * Forgets what was recorded since `mark` and not yet submitted. Buffers stay as they are: the caller releases its
   * own. Their contents are undefined, because a `write` with no work before it may have happened already.
   */
  rollback(mark: number): void;
  /**
   * Keeps the dispatches, clears and copies since `mark`, to record them again in a fraction of the time that {@link Device.dispatch}
   * takes. Absent: record them.
   * @returns nothing where something else was recorded since, or where others have memory by now that these use
   */
  keep?(mark: number): KeptWork | undefined;
  /** Compiles pipelines before their first dispatch, which would otherwise wait for them. */
  prepare(kernels: readonly { kernel: Kernel; constants?: Constants }[]): Promise<void>;
  /** Reports the work from now on to `observer`; one at a time. It changes no result. Absent where nothing can be reported. */
  observe?(observer: DeviceObserver): Observation;
  /**
   * Whether the driver has granted every buffer, so that it cannot refuse what is recorded now for its memory. Absent: not known
   * before the work is done.
   */
  readonly isSettled?: boolean;
  /** Whether the device is lost: only {@link Device.reopen} helps. */
  readonly isLost?: boolean;
  /**
   * Opens the device again after a DeviceLostError, on the same adapter. All buffers are lost, so that models are made
   * again; releasing a lost buffer has no effect. Absent where nothing gets lost.
   * @throws RemoteError when no adapter answers within a few seconds
   */
  reopen?(): Promise<void>;
  /** Frees everything. Pending calls reject. */
  destroy(): void;
}

/** Recorded work that can be recorded again. Buffers that it names and that were released already stay its own. */
export interface KeptWork {
  /**
   * Records it `times` times. The u32 `param` of dispatches that have it is `from`, then one more each time.
   * @returns false, and nothing is recorded, where a buffer that it names was released since, or memory was short: then it is of no use any more
   */
  record(repetition: { readonly times: number; readonly param: string; readonly from: number }): boolean;
  /** Gives the memory of released buffers back. */
  release(): void;
}

/** One range of a buffer to read back. */
export interface ReadRequest {
  readonly buffer: Buffer;
  readonly type: "f32" | "u32" | "i32";
  /** Elements to read; the whole range by default. */
  readonly length?: number | undefined;
}

/** Recorded work whose results are read back, together with whatever else the caller reads at the end of its step. */
export interface Recorded<R> {
  readonly reads: readonly ReadRequest[];
  /** @param data what `reads` returned */
  decode(data: readonly Data[]): R;
  /** Releases the recording's buffers. */
  release(): void;
}

/** Allocates all buffers or none: where one does not fit, those before it are released. */
export function allocTogether(
  device: Device,
  wanted: readonly { readonly byteLength: number; readonly label: string }[],
): Buffer[] {
  const buffers: Buffer[] = [];
  try {
    for (const { byteLength, label } of wanted) buffers.push(device.alloc(byteLength, label));
    return buffers;
  } catch (error) {
    device.release(...buffers);
    throw error;
  }
}

/** Reads one f32 range. */
export async function readFloats(device: Device, buffer: Buffer, length?: number): Promise<Float32Array> {
  const [data] = await device.read([{ buffer, type: "f32", length }]);
  return data as Float32Array;
}
