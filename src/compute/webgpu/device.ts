/** The WebGPU device. Records work, then encodes it into one submit; pipelines, bind groups and buffers are kept. */
import { RemoteError, UnsupportedError } from "../../errors.ts";
import type { Buffer, Data, Device, DeviceInfo, DispatchOptions, MemoryUse, ReadRequest } from "../device.ts";
import type { BindingKinds, Kernel, ParamTypes } from "../kernel.ts";
import { BufferPool, DEFAULT_BUDGET_BYTES } from "../memory.ts";
import { findGpu, isSoftware } from "./adapter.ts";
import {
  type DispatchOp,
  Encoding,
  type Op,
  PARAMS_STRIDE_BYTES,
  packParams,
  type Range,
} from "./encoding.ts";
import { Napper } from "./nap.ts";
import { PipelineCache, validationError } from "./pipeline.ts";
import { RecentCache } from "./recent_cache.ts";

/** Dawn keeps the staging memory of queue writes until a submit, so uploads are flushed at this many bytes. */
const UPLOAD_FLUSH_BYTES = 64 * 2 ** 20;
/** Taken where the adapter has them; a kernel that needs one is chosen by the device's features. */
const OPTIONAL_FEATURES: readonly GPUFeatureName[] = ["subgroups", "shader-f16", "timestamp-query"];
/** Of each generation. A step binds about twenty a layer; each takes about 2 KiB of the driver. */
const BIND_GROUPS = 4096;
const { STORAGE, COPY_SRC, COPY_DST, UNIFORM, MAP_READ } = {
  MAP_READ: 0x1,
  COPY_SRC: 0x4,
  COPY_DST: 0x8,
  UNIFORM: 0x40,
  STORAGE: 0x80,
};

/** In an object, so that awaiting the submit does not await the scopes as well. */
interface ErrorScopes {
  readonly results: readonly Promise<GPUError | null>[];
}

export interface WebGpuDeviceOptions {
  /** A GPU of the host's; else `navigator.gpu`, else the `webgpu` package. */
  readonly gpu?: GPU;
  /** Bytes that live buffers may hold together. Default 8 GiB. */
  readonly memoryBudgetBytes?: number | undefined;
}

export class WebGpuDevice implements Device {
  readonly info: DeviceInfo;
  /** The WebGPU device, for hosts that share it. */
  readonly gpuDevice: GPUDevice;
  private readonly pool: BufferPool<GPUBuffer>;
  private readonly pipelines: PipelineCache;
  private readonly bindGroups = new RecentCache<GPUBindGroup>(BIND_GROUPS);
  private readonly freeStaging = new Map<number, GPUBuffer[]>();
  private recorded: Op[] = [];
  /** Buffers that the pool gave up while recorded work named them; destroyed after the next submit. */
  private dropped: GPUBuffer[] = [];
  private inFlight = 0;
  private running: Promise<unknown> = Promise.resolve();
  private unflushedBytes = 0;
  private arena: GPUBuffer | undefined;
  private lost: RemoteError | undefined;
  private readonly napper: Napper;
  private readonly lostSignal: Promise<unknown>;
  private uncaptured: Error | undefined;

  private constructor(gpuDevice: GPUDevice, info: DeviceInfo, options: WebGpuDeviceOptions) {
    this.gpuDevice = gpuDevice;
    this.info = info;
    this.pipelines = new PipelineCache(gpuDevice);
    this.napper = new Napper(info.family === "scalar");
    this.pool = new BufferPool<GPUBuffer>(
      {
        create: (size, label) =>
          gpuDevice.createBuffer({ size, label, usage: STORAGE | COPY_SRC | COPY_DST }),
        destroy: (buffers) => {
          if (this.recorded.length === 0 && this.inFlight === 0) this.drop(buffers);
          else this.dropped.push(...buffers);
        },
      },
      {
        budget: options.memoryBudgetBytes ?? DEFAULT_BUDGET_BYTES,
        maxBufferBytes: info.limits.maxBufferBytes,
      },
    );
    this.lostSignal = gpuDevice.lost.then(({ reason, message }) => {
      this.lost ??= new RemoteError(
        reason === "destroyed"
          ? "Cannot use the GPU device: it was destroyed."
          : `Cannot go on: the GPU device was lost (${message || reason || "no reason given"}). Resume from the last checkpoint.`,
        { retryable: reason !== "destroyed" },
      );
    });
    // Errors outside our scopes (the driver's own) surface at the next awaited call.
    gpuDevice.onuncapturederror = (event) => {
      event.preventDefault?.();
      this.uncaptured ??= validationError(event.error.message);
    };
  }

  /** @returns nothing when the machine has no WebGPU adapter. */
  static async open(options: WebGpuDeviceOptions = {}): Promise<WebGpuDevice | undefined> {
    const gpu = await findGpu(options.gpu);
    const adapter = await gpu?.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) return undefined;
    const { limits } = adapter;
    if (limits.maxStorageBuffersPerShaderStage < 8)
      throw new UnsupportedError(
        `Cannot use the adapter ${adapter.info.description}: it binds ${limits.maxStorageBuffersPerShaderStage} storage buffers, 8 are needed. Use --device cpu.`,
        { part: "adapter", capability: "maxStorageBuffersPerShaderStage" },
      );
    const gpuDevice = await adapter.requestDevice({
      label: "grpu",
      requiredFeatures: OPTIONAL_FEATURES.filter((name) => adapter.features.has(name)),
      requiredLimits: {
        maxBufferSize: limits.maxBufferSize,
        maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
        maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
        maxComputeWorkgroupSizeX: limits.maxComputeWorkgroupSizeX,
        maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
      },
    });
    return new WebGpuDevice(gpuDevice, describe(adapter), options);
  }

  get memory(): MemoryUse {
    const { live, pooled, peak, budget } = this.pool;
    return { live, pooled, peak, budget };
  }

  alloc(byteLength: number, label: string): Buffer {
    return this.pool.alloc(byteLength, label);
  }

  upload(data: Data, label: string): Buffer {
    const buffer = this.alloc(data.byteLength, label);
    this.write(buffer, data);
    return buffer;
  }

  release(...buffers: readonly Buffer[]): void {
    for (const buffer of buffers) this.pool.release(buffer as Range);
  }

  write(buffer: Buffer, data: Data, byteOffset: number = 0): void {
    const range = buffer as Range;
    if (this.recorded.length > 0 || this.inFlight > 0) {
      this.recorded.push({ type: "write", buffer: range, data: data.slice(), byteOffset });
      return;
    }
    this.writeNow(range, data, byteOffset);
    if (this.unflushedBytes > UPLOAD_FLUSH_BYTES) this.flushUploads();
  }

  copy(from: Buffer, to: Buffer, byteLength: number = Math.min(from.byteLength, to.byteLength)): void {
    if (byteLength > 0)
      this.recorded.push({ type: "copy", from: from as Range, to: to as Range, byteLength });
  }

  clear(buffer: Buffer): void {
    if (buffer.byteLength > 0) this.recorded.push({ type: "clear", buffer: buffer as Range });
  }

  dispatch<B extends BindingKinds, P extends ParamTypes>(
    kernel: Kernel<B, P>,
    options: DispatchOptions<B, P>,
  ): void {
    const constants = options.constants
      ? { ...kernel.constants, ...options.constants }
      : (kernel.constants ?? {});
    const grid = kernel.grid(options.params, constants);
    if (grid.some((side) => side === 0)) return;
    const buffers: Range[] = [];
    for (const name in kernel.bindings) buffers.push(options.buffers[name] as Range);
    this.recorded.push({
      type: "dispatch",
      pipeline: this.pipelines.get(kernel as unknown as Kernel, constants),
      buffers,
      params: packParams(kernel.params, options.params),
      grid,
    });
  }

  async submit(): Promise<void> {
    await this.inOrder(
      () => {},
      () => this.gpuDevice.queue.onSubmittedWorkDone(),
    );
  }

  async read(requests: readonly ReadRequest[]): Promise<Data[]> {
    const sizes = requests.map(({ buffer, length }) =>
      length === undefined ? buffer.byteLength : length * 4,
    );
    const offsets: number[] = [];
    let total = 0;
    for (const size of sizes) {
      offsets.push(total);
      total += Math.ceil(size / 8) * 8;
    }
    const staging = this.takeStaging(total);
    try {
      await this.inOrder(
        (encoder) => {
          for (const [i, { buffer }] of requests.entries())
            if (sizes[i]! > 0)
              encoder.copyBufferToBuffer(
                (buffer as Range).storage,
                buffer.byteOffset,
                staging,
                offsets[i]!,
                sizes[i],
              );
        },
        () => staging.mapAsync(MAP_READ, 0, Math.max(total, 8)),
      );
      const mapped = staging.getMappedRange(0, Math.max(total, 8));
      const results = requests.map(({ type }, i) => {
        const part = mapped.slice(offsets[i], offsets[i]! + sizes[i]!);
        return type === "f32"
          ? new Float32Array(part)
          : type === "u32"
            ? new Uint32Array(part)
            : new Int32Array(part);
      });
      staging.unmap();
      this.freeStaging.get(staging.size)?.push(staging) ?? this.freeStaging.set(staging.size, [staging]);
      return results;
    } catch (error) {
      staging.destroy();
      throw error;
    }
  }

  async prepare(kernels: readonly { kernel: Kernel; constants?: Record<string, number> }[]): Promise<void> {
    await Promise.all(
      kernels.map(({ kernel, constants }) =>
        this.pipelines.get(kernel, { ...kernel.constants, ...constants }).compile(),
      ),
    );
  }

  destroy(): void {
    this.recorded = [];
    this.lost ??= new RemoteError("Cannot use the GPU device: it was destroyed.", { retryable: false });
    this.pool.clear();
    for (const list of this.freeStaging.values()) for (const buffer of list) buffer.destroy();
    this.arena?.destroy();
    this.gpuDevice.destroy();
  }

  /** Encodes what is recorded after all that went before; `finish` adds to the last encoder, `wait` ends the call. */
  private inOrder(finish: (encoder: GPUCommandEncoder) => void, wait: () => Promise<unknown>): Promise<void> {
    const ops = this.recorded;
    const dropped = this.dropped;
    this.recorded = [];
    this.dropped = [];
    this.inFlight++;
    const submitted = this.running
      .then(() => this.encode(ops, finish))
      .finally(() => dropped.length > 0 && this.drop(dropped));
    this.running = submitted.then(
      () => this.inFlight--,
      () => this.inFlight--,
    );
    return submitted.then((scopes) => this.settle(scopes, wait));
  }

  private drop(buffers: readonly GPUBuffer[]): void {
    this.bindGroups.clear();
    for (const buffer of buffers) buffer.destroy();
  }

  private async settle(scopes: ErrorScopes, wait: () => Promise<unknown>): Promise<void> {
    const errors = Promise.all(scopes.results).then(
      (found) => found.find((error) => error !== null),
      () => undefined,
    );
    try {
      await this.napper.during(wait());
    } catch (cause) {
      await Promise.race([this.lostSignal, new Promise((resume) => setTimeout(resume, 200))]);
      const message = (await errors)?.message;
      if (this.lost) throw this.lost;
      throw message
        ? validationError(message)
        : new RemoteError(`Cannot finish the GPU work: ${cause}`, { retryable: false });
    }
    const message = (await errors)?.message;
    const error = message ? validationError(message) : this.uncaptured;
    this.uncaptured = undefined;
    if (this.lost) throw this.lost;
    if (error) throw error;
  }

  /** Submits `ops`; what WebGPU finds wrong with them comes later, through the scopes. */
  private async encode(
    ops: readonly Op[],
    finish: (encoder: GPUCommandEncoder) => void,
  ): Promise<ErrorScopes> {
    if (this.lost) throw this.lost;
    const dispatches = ops.filter((op) => op.type === "dispatch");
    await Promise.all(dispatches.filter((op) => !op.pipeline.ready).map((op) => op.pipeline.compile()));
    if (this.lost) throw this.lost;
    this.gpuDevice.pushErrorScope("validation");
    this.gpuDevice.pushErrorScope("out-of-memory");
    new Encoding(this, ops, this.uploadParams(dispatches)).run(finish);
    this.unflushedBytes = 0;
    return { results: [this.gpuDevice.popErrorScope(), this.gpuDevice.popErrorScope()] };
  }

  writeNow(range: Range, data: Data, byteOffset: number): void {
    this.gpuDevice.queue.writeBuffer(
      range.storage,
      range.byteOffset + byteOffset,
      data.buffer as ArrayBuffer,
      data.byteOffset,
      data.byteLength,
    );
    this.unflushedBytes += data.byteLength;
  }

  private flushUploads(): void {
    this.gpuDevice.queue.submit([]);
    this.unflushedBytes = 0;
  }

  /** All params of one submit in one uniform buffer, bound at dynamic offsets. */
  private uploadParams(dispatches: readonly DispatchOp[]): GPUBuffer {
    const bytes = Math.max(dispatches.length, 1) * PARAMS_STRIDE_BYTES;
    if (!this.arena || this.arena.size < bytes) {
      this.bindGroups.clear();
      this.arena?.destroy();
      this.arena = this.gpuDevice.createBuffer({
        label: "params",
        size: 2 ** Math.ceil(Math.log2(Math.max(bytes, 2 ** 16))),
        usage: UNIFORM | COPY_DST,
      });
    }
    const packed = new Uint8Array(bytes);
    for (const [i, { params }] of dispatches.entries())
      packed.set(new Uint8Array(params), i * PARAMS_STRIDE_BYTES);
    this.gpuDevice.queue.writeBuffer(this.arena, 0, packed);
    return this.arena;
  }

  storageGroup({ pipeline, buffers }: DispatchOp): GPUBindGroup {
    let key = pipeline.bindingKey;
    for (const { id, byteOffset, byteLength } of buffers) key += `|${id}:${byteOffset}:${byteLength}`;
    return this.bindGroups.get(key, () =>
      this.gpuDevice.createBindGroup({
        layout: pipeline.bindingLayout,
        entries: buffers.map((range, binding) => ({
          binding,
          resource: { buffer: range.storage, offset: range.byteOffset, size: boundBytes(range) },
        })),
      }),
    );
  }

  paramsGroup({ pipeline }: DispatchOp, arena: GPUBuffer): GPUBindGroup {
    return this.bindGroups.get(`params:${pipeline.paramsBytes}`, () =>
      this.gpuDevice.createBindGroup({
        layout: pipeline.paramsLayout!,
        entries: [{ binding: 0, resource: { buffer: arena, offset: 0, size: pipeline.paramsBytes } }],
      }),
    );
  }

  private takeStaging(bytes: number): GPUBuffer {
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, 256)));
    return (
      this.freeStaging.get(size)?.pop() ??
      this.gpuDevice.createBuffer({ label: "read-back", size, usage: MAP_READ | COPY_DST })
    );
  }
}

/** A vec4 array needs whole vectors bound: the tail of the allocation belongs to nobody else. */
function boundBytes({ byteOffset, byteLength, capacity }: Range): number {
  return Math.min(Math.max(Math.ceil(byteLength / 16) * 16, 16), capacity - byteOffset);
}

function describe(adapter: GPUAdapter): DeviceInfo {
  const { info, limits } = adapter;
  const isFallback = (info as { isFallbackAdapter?: boolean }).isFallbackAdapter ?? false;
  return {
    kind: "webgpu",
    description: [info.description || info.device, info.description ? "" : info.vendor]
      .filter(Boolean)
      .join(" "),
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
    subgroupSize: adapter.features.has("subgroups") ? fixedSubgroupSize(info) : 0,
  };
}

function fixedSubgroupSize({ subgroupMinSize, subgroupMaxSize }: GPUAdapterInfo): number {
  return subgroupMinSize === subgroupMaxSize ? (subgroupMinSize ?? 0) : 0;
}
