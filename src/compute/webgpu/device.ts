/** The WebGPU device: records work, then encodes it into one submit; pipelines, bind groups and buffers are kept. */
import { UnsupportedError } from "../../errors.ts";
import type { Buffer, Data, Device, DeviceInfo, DispatchOptions, ReadRequest } from "../device.ts";
import type { BindingKinds, Constants, Kernel, ParamTypes } from "../kernel.ts";
import { BufferPool, DEFAULT_BUDGET_BYTES, PooledMemory } from "../memory.ts";
import { findGpu } from "./adapter.ts";
import { Bindings } from "./bindings.ts";
import { Encoding, type Op, packParams, type Range } from "./encoding.ts";
import { type ErrorScopes, Failures } from "./failures.ts";
import { describeAdapter } from "./info.ts";
import { Napper } from "./nap.ts";
import { PipelineCache } from "./pipeline.ts";
import { ReadBack, StagingPool } from "./read_back.ts";
import type { Gpu, GpuBuffer, GpuCommandEncoder, GpuDevice } from "./types.ts";

/** Dawn keeps the staging memory of queue writes until a submit, so uploads are flushed at this many bytes. */
const UPLOAD_FLUSH_BYTES = 64 * 2 ** 20;
/** Requested where the adapter has them; a kernel that needs one is chosen by the device's features. */
const OPTIONAL_FEATURES: readonly GPUFeatureName[] = ["subgroups", "shader-f16", "timestamp-query"];
/** Storage buffers that the largest kernels bind. */
const STORAGE_BUFFERS = 8;
const { STORAGE, COPY_SRC, COPY_DST } = { COPY_SRC: 0x4, COPY_DST: 0x8, STORAGE: 0x80 };

/** The GPU to use, and how much of its memory. */
export interface WebGpuDeviceOptions {
  /** The host's GPU; else `navigator.gpu`, else the `webgpu` package. */
  readonly gpu?: Gpu;
  /** Bytes that live buffers may hold together. Default 8 GiB. */
  readonly memoryBudgetBytes?: number | undefined;
}

/** The device on WebGPU, in Node, Deno and pages. {@link openDevice} opens it where an adapter answers. */
export class WebGpuDevice extends PooledMemory<GpuBuffer> implements Device {
  readonly info: DeviceInfo;
  /** The WebGPU device, for hosts that share it. */
  readonly gpuDevice: GpuDevice;
  readonly bindings: Bindings;
  protected readonly pool: BufferPool<GpuBuffer>;
  private readonly pipelines: PipelineCache;
  private readonly staging: StagingPool;
  private readonly failures: Failures;
  private readonly napper: Napper;
  private recorded: Op[] = [];
  /** Buffers that left the pool while recorded work named them; destroyed after the next submit. */
  private dropped: GpuBuffer[] = [];
  private inFlight = 0;
  private running: Promise<unknown> = Promise.resolve();
  private unflushedBytes = 0;

  private constructor(gpuDevice: GpuDevice, info: DeviceInfo, options: WebGpuDeviceOptions) {
    super();
    this.gpuDevice = gpuDevice;
    this.info = info;
    this.bindings = new Bindings(gpuDevice);
    this.pipelines = new PipelineCache(gpuDevice);
    this.staging = new StagingPool(gpuDevice);
    this.failures = new Failures(gpuDevice);
    this.napper = new Napper(info.family === "scalar");
    this.pool = new BufferPool<GpuBuffer>(
      {
        create: (size, label) => gpuDevice.createBuffer({ size, label, usage: STORAGE | COPY_SRC | COPY_DST }),
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
  }

  /** @returns nothing when the machine has no WebGPU adapter. */
  static async open(options: WebGpuDeviceOptions = {}): Promise<WebGpuDevice | undefined> {
    const gpu = await findGpu(options.gpu);
    const adapter = await gpu?.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) return undefined;
    const { limits } = adapter;
    if (limits.maxStorageBuffersPerShaderStage < STORAGE_BUFFERS)
      throw new UnsupportedError(
        `Cannot use the adapter ${adapter.info.description}: it binds ${limits.maxStorageBuffersPerShaderStage} storage buffers, ${STORAGE_BUFFERS} are needed. Use --device cpu.`,
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
    return new WebGpuDevice(gpuDevice, describeAdapter(adapter), options);
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
    if (byteLength > 0) this.recorded.push({ type: "copy", from: from as Range, to: to as Range, byteLength });
  }

  clear(buffer: Buffer): void {
    if (buffer.byteLength > 0) this.recorded.push({ type: "clear", buffer: buffer as Range });
  }

  dispatch<B extends BindingKinds, P extends ParamTypes>(kernel: Kernel<B, P>, options: DispatchOptions<B, P>): void {
    const constants = options.constants ? { ...kernel.constants, ...options.constants } : (kernel.constants ?? {});
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
    const readBack = new ReadBack(requests, this.staging);
    try {
      await this.inOrder(
        (encoder) => readBack.record(encoder),
        () => readBack.map(),
      );
      return readBack.take();
    } catch (error) {
      readBack.drop();
      throw error;
    }
  }

  async prepare(kernels: readonly { kernel: Kernel; constants?: Constants }[]): Promise<void> {
    await Promise.all(
      kernels.map(({ kernel, constants }) =>
        this.pipelines.get(kernel, { ...kernel.constants, ...constants }).compile(),
      ),
    );
  }

  destroy(): void {
    this.recorded = [];
    this.failures.destroyed();
    this.pool.clear();
    this.staging.destroy();
    this.bindings.destroy();
    this.gpuDevice.destroy();
  }

  /** Encodes the recorded work after all earlier work; `finish` adds to the last encoder, `wait` ends the call. */
  private inOrder(finish: (encoder: GpuCommandEncoder) => void, wait: () => Promise<unknown>): Promise<void> {
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
    return submitted.then((scopes) => this.failures.settle(scopes, this.napper.during(wait())));
  }

  private drop(buffers: readonly GpuBuffer[]): void {
    this.bindings.forget();
    for (const buffer of buffers) buffer.destroy();
  }

  /** Submits `ops`; WebGPU reports their errors later, through the scopes. */
  private async encode(ops: readonly Op[], finish: (encoder: GpuCommandEncoder) => void): Promise<ErrorScopes> {
    this.failures.throwIfLost();
    const dispatches = ops.filter((op) => op.type === "dispatch");
    await Promise.all(dispatches.filter((op) => !op.pipeline.ready).map((op) => op.pipeline.compile()));
    this.failures.throwIfLost();
    return this.failures.scoped(() => {
      this.bindings.uploadParams(dispatches);
      new Encoding(this, ops).run(finish);
      this.unflushedBytes = 0;
    });
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
}
