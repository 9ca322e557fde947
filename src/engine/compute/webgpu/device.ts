/** The WebGPU device: records work, then encodes it into one submit; pipelines, bind groups and buffers are kept. */
import { DeviceLostError, RemoteError } from "../../../leaves/errors.ts";
import { chooseBudget } from "../budget/choose.ts";
import { type MemoryBudget, statedBudget } from "../budget/machine.ts";
import type { Buffer, Data, Device, DeviceInfo, DispatchOptions, KeptWork, ReadRequest } from "../device.ts";
import type { BindingKinds, Constants, Kernel, ParamTypes } from "../kernel.ts";
import { BufferPool, PooledMemory } from "../memory.ts";
import type { DeviceObserver, HostEvent, Observation } from "../observer.ts";
import { type AdapterChoice, type DeviceRequirements, findAdapter } from "./adapter.ts";
import type { Storage } from "./allocations.ts";
import type { Bindings } from "./bindings.ts";
import { Connection, connectAgain, requestDevice } from "./connection.ts";
import { CommandEncoding, type Op, packParams, rangesOf, type StorageRange, type TimedWork } from "./encoding.ts";
import type { ErrorScopes } from "./failures.ts";
import { gpuInfo } from "./info.ts";
import { Pace } from "./pace.ts";
import { PollSleep } from "./poll_sleep.ts";
import { probeMemory } from "./probe.ts";
import { ReadBack } from "./read_back.ts";
import { keepOps } from "./repetition.ts";
import type { Timestamps } from "./timestamps.ts";
import type { Gpu, GpuDevice } from "./types.ts";

/** Dawn keeps the staging memory of queue writes until a submit, so uploads are flushed at this many bytes. */
const UPLOAD_FLUSH_BYTES = 64 * 2 ** 20;

/** The GPU to use, and how much of its memory. */
export interface WebGpuDeviceOptions extends AdapterChoice {
  /** The host's GPU; else `navigator.gpu`, else the `webgpu` package. */
  readonly gpu?: Gpu;
  /** Bytes that live buffers may hold together. Default: what the adapter allows, less a reserve. */
  readonly memoryBudgetBytes?: number | undefined;
}

/** Work that the GPU has, in an object so that awaiting it does not await its error scopes. */
interface Submitted {
  readonly scopes: ErrorScopes;
  readonly pieces: readonly TimedWork[];
  /** When it was submitted, in ms. */
  readonly start: number;
}

/** The device on WebGPU, in Node, Deno and pages. {@link openDevice} opens it where an adapter answers. */
export class WebGpuDevice extends PooledMemory<Storage> implements Device {
  /** `openDevice` completes it by what it measures. */
  info: DeviceInfo;
  readonly pace: Pace;
  protected readonly pool: BufferPool<Storage>;
  private readonly options: WebGpuDeviceOptions & DeviceRequirements;
  private readonly pollSleep: PollSleep;
  /** Replaced when the device is reopened. */
  private connection: Connection;
  private recorded: Op[] = [];
  /** Operations handed over by `submit` and `read` so far. */
  private submitted = 0;
  /** Handed over, not yet encoded. */
  private readonly waiting = new Set<readonly Op[]>();
  /** Buffers that left the pool while recorded work may name them; destroyed once that is submitted. */
  private dropped: Storage[] = [];
  private inFlight = 0;
  private running: Promise<unknown> = Promise.resolve();
  private unflushedBytes = 0;
  /** When the work of the last finished call was done. */
  private lastDone = 0;
  private observer: DeviceObserver | undefined;
  /** Timer of the connection; absent without an observer, and where the adapter has none. */
  private timer: Timestamps | undefined;
  /** Timer of the submit that begins: absent without an observer that times kernels. */
  timestamps: Timestamps | undefined;

  private constructor(
    connection: Connection,
    {
      info,
      budget,
      options,
    }: { info: DeviceInfo; budget: MemoryBudget; options: WebGpuDeviceOptions & DeviceRequirements },
  ) {
    super();
    this.connection = connection;
    this.info = info;
    this.options = options;
    this.pace = new Pace(info.family);
    this.pollSleep = new PollSleep(info.family === "scalar");
    this.pool = new BufferPool<Storage>(
      {
        create: (size, label) => this.connection.allocations.create(size, label),
        usable: ({ state }) => state !== "refused",
        destroy: (storages) => {
          if (this.recorded.length === 0 && this.inFlight === 0) this.drop(storages);
          else this.dropped.push(...storages);
        },
      },
      { budget: budget.bytes, budgetSource: budget.source, maxBufferBytes: info.limits.maxBufferBytes },
    );
  }

  /**
   * @returns nothing when the machine has no WebGPU adapter.
   * @throws ConfigError when the adapter asked for is not there; names those that are. UnsupportedError where the adapter lacks
   *   what was asked for.
   */
  static async open(options: WebGpuDeviceOptions & DeviceRequirements = {}): Promise<WebGpuDevice | undefined> {
    const adapter = await findAdapter(options.gpu, options);
    if (!adapter) return undefined;
    const gpuDevice = await requestDevice(adapter, options);
    const info = gpuInfo(adapter);
    const isSoftware = info.family === "scalar";
    const { vendor, architecture, device } = adapter.info;
    const probe = async () => probeMemory(await requestDevice((await findAdapter(options.gpu, options))!));
    const budget =
      options.memoryBudgetBytes === undefined
        ? await chooseBudget({ vendor, architecture, device, isSoftware }, probe)
        : statedBudget(options.memoryBudgetBytes);
    return new WebGpuDevice(new Connection(gpuDevice), { info, budget, options });
  }

  /** The WebGPU device, for hosts that share it. Another one after {@link reopen}. */
  get gpuDevice(): GpuDevice {
    return this.connection.gpuDevice;
  }

  get bindings(): Bindings {
    return this.connection.bindings;
  }

  get isSettled(): boolean {
    return this.connection.allocations.isSettled;
  }

  get isLost(): boolean {
    return this.connection.failures.isLost;
  }

  async reopen(): Promise<void> {
    this.connection.destroy(new DeviceLostError("it was opened again"));
    this.timer = undefined;
    this.recorded = [];
    this.dropped = [];
    this.pool.reset();
    this.connection = await connectAgain(() => findAdapter(this.options.gpu, this.options), this.options);
  }

  write(buffer: Buffer, data: Data, byteOffset: number = 0): void {
    const range = buffer as StorageRange;
    if (this.recorded.length > 0 || this.inFlight > 0) {
      this.recorded.push({ type: "write", buffer: range, data: data.slice(), byteOffset });
      return;
    }
    this.connection.allocations.writing(range.storage, () => this.writeNow(range, data, byteOffset));
    if (this.unflushedBytes > UPLOAD_FLUSH_BYTES) this.flushUploads();
  }

  copy(from: Buffer, to: Buffer, byteLength: number = Math.min(from.byteLength, to.byteLength)): void {
    if (byteLength > 0)
      this.recorded.push({ type: "copy", from: from as StorageRange, to: to as StorageRange, byteLength });
  }

  clear(buffer: Buffer): void {
    if (buffer.byteLength > 0) this.recorded.push({ type: "clear", buffer: buffer as StorageRange });
  }

  dispatch<B extends BindingKinds, P extends ParamTypes>(kernel: Kernel<B, P>, options: DispatchOptions<B, P>): void {
    const constants = options.constants ? { ...kernel.constants, ...options.constants } : (kernel.constants ?? {});
    const grid = kernel.grid(options.params, constants);
    if (grid.some((side) => side === 0)) return;
    const buffers: StorageRange[] = [];
    let bytes = 0;
    for (const name in kernel.bindings) {
      const range = options.buffers[name] as StorageRange;
      buffers.push(range);
      bytes += range.byteLength;
    }
    const { pipelines } = this.connection;
    const untyped = kernel as unknown as Kernel;
    this.recorded.push({
      type: "dispatch",
      pipeline: options.constants ? pipelines.get(untyped, constants) : pipelines.getPlain(untyped),
      buffers,
      params: packParams(kernel.params, options.params),
      paramTypes: kernel.params,
      grid,
      kernel: kernel.name,
      nominal: this.pace.nominal({ flops: kernel.work?.(options.params, constants), bytes }),
    });
  }

  async submit(): Promise<void> {
    await this.inOrder({ kind: "wait" }, () => this.gpuDevice.queue.onSubmittedWorkDone());
  }

  observe(observer: DeviceObserver): Observation {
    this.observer = observer;
    const hasTimes = this.gpuDevice.features.has("timestamp-query");
    return {
      untimed: hasTimes ? undefined : `the adapter ${this.info.description} has no timestamps (timestamp-query)`,
      stop: async () => {
        this.observer = undefined;
        await this.running;
        await this.timer?.settle();
        this.timer?.destroy();
        this.timer = undefined;
      },
    };
  }

  /** Pages load it with their first profile. */
  private async openTimer(observer: DeviceObserver): Promise<Timestamps | undefined> {
    if (!this.gpuDevice.features.has("timestamp-query")) return undefined;
    const { Timestamps } = await import("./timestamps.ts");
    this.timer ??= new Timestamps(this.gpuDevice, observer);
    return this.timer;
  }

  async read(requests: readonly ReadRequest[]): Promise<Data[]> {
    const readBack = new ReadBack(requests, this.connection.staging);
    this.recorded.push({
      type: "read",
      buffers: requests.map(({ buffer }) => buffer as StorageRange),
      record: (encoder) => readBack.record(encoder),
    });
    try {
      await this.inOrder({ kind: "read-back", bytes: readBack.bytes }, () => readBack.map());
      return readBack.take();
    } catch (error) {
      readBack.drop();
      throw error;
    }
  }

  mark(): number {
    return this.submitted + this.recorded.length;
  }

  rollback(mark: number): void {
    this.recorded.length = Math.min(this.recorded.length, Math.max(mark - this.submitted, 0));
  }

  keep(mark: number): KeptWork | undefined {
    const recorded = (ops: readonly Op[]) => {
      for (const op of ops) this.recorded.push(op);
    };
    return keepOps(this.recorded.slice(Math.max(mark - this.submitted, 0)), { pool: this.pool, recorded });
  }

  async prepare(kernels: readonly { kernel: Kernel; constants?: Constants }[]): Promise<void> {
    const { pipelines, failures } = this.connection;
    const compile = kernels.map(({ kernel, constants }) =>
      pipelines.get(kernel, { ...kernel.constants, ...constants }).compile(),
    );
    await failures.unlessLost(Promise.all(compile));
  }

  destroy(): void {
    this.recorded = [];
    const reason = new RemoteError("Cannot use the GPU device: it was destroyed.", { retryable: false });
    this.connection.failures.end(reason);
    this.pool.clear();
    this.connection.destroy(reason);
  }

  /** Encodes the recorded work after all earlier work; `wait` ends the call. An observer sees it as `what`. */
  private inOrder(what: Pick<HostEvent, "kind" | "bytes">, wait: () => Promise<unknown>): Promise<void> {
    const { connection } = this;
    const { allocations, failures } = connection;
    const ops = this.recorded;
    const allocated = allocations.take();
    const dropped = this.dropped;
    this.recorded = [];
    this.submitted += ops.length;
    this.dropped = [];
    this.inFlight++;
    this.waiting.add(ops);
    const submitted = this.running
      .then(() => allocations.check(allocated, { free: () => this.makeRoom(), live: () => this.pool.live }))
      .then(() => this.encode(ops, connection))
      .finally(() => {
        this.waiting.delete(ops);
        if (dropped.length > 0) this.drop(dropped);
      });
    this.running = submitted.then(
      () => this.inFlight--,
      () => this.inFlight--,
    );
    return submitted.then(async ({ scopes, ...timed }) => {
      const { observer } = this;
      const start = observer && performance.now();
      await failures.settle(scopes, this.pollSleep.during(wait()));
      const end = performance.now();
      observer?.host({ ...what, start: start!, end });
      await this.learn(timed, end);
    });
  }

  private async learn({ pieces, start }: Omit<Submitted, "scopes">, end: number): Promise<void> {
    let from = Math.max(start, this.lastDone);
    this.lastDone = end;
    for (const { work, done } of pieces) {
      const at = (await done) ?? end;
      this.pace.learn(work, (at - from) / 1000);
      from = Math.max(from, at);
    }
  }

  private drop(storages: readonly Storage[]): void {
    this.bindings.forget();
    for (const { buffer } of storages) buffer.destroy();
  }

  /** Frees whatever no work names that is still to be submitted, once the GPU is done with it. */
  private async makeRoom(): Promise<void> {
    this.pool.trim(this.pool.pooled);
    const named = new Set<Storage>();
    for (const ops of [...this.waiting, this.recorded])
      for (const op of ops) for (const { storage } of rangesOf(op)) named.add(storage);
    this.drop(this.dropped.filter((storage) => !named.has(storage)));
    this.dropped = this.dropped.filter((storage) => named.has(storage));
    await this.gpuDevice.queue.onSubmittedWorkDone().catch(() => {});
  }

  /** Submits `ops`; WebGPU reports their errors later, through the scopes. */
  private async encode(ops: readonly Op[], { failures, bindings }: Connection): Promise<Submitted> {
    failures.throwIfLost();
    const dispatches = ops.filter((op) => op.type === "dispatch");
    const { observer } = this;
    const cold = dispatches.filter((op) => !op.pipeline.ready).map((op) => op.pipeline);
    const compileStart = performance.now();
    await failures.unlessLost(Promise.all(cold.map((pipeline) => pipeline.compile())));
    const start = performance.now();
    this.timestamps = observer?.timesKernels ? await this.openTimer(observer) : undefined;
    if (cold.length > 0) observer?.host({ kind: "compile", start: compileStart, end: start });
    let pieces: readonly TimedWork[] = [];
    const scopes = failures.scoped(() => {
      bindings.uploadParams(dispatches);
      pieces = new CommandEncoding(this, ops).run();
      this.unflushedBytes = 0;
    });
    observer?.host({ kind: "submit", start, end: performance.now(), dispatches: dispatches.length });
    return { scopes, pieces, start };
  }

  writeNow(range: StorageRange, data: Data, byteOffset: number): void {
    // Deno's own WebGPU ends the process at an empty write.
    if (data.byteLength === 0) return;
    this.gpuDevice.queue.writeBuffer(
      range.storage.buffer,
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
