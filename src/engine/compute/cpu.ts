/** The `cpu` device: every dispatch runs its kernel's reference. The oracle of the tests, and the fallback without an adapter. */

import { mainMemoryBudget, statedBudget } from "./budget/machine.ts";
import type { Buffer, Data, Device, DeviceInfo, DispatchOptions, ReadRequest } from "./device.ts";
import type { BindingKinds, Kernel, ParamTypes } from "./kernel.ts";
import { BufferPool, type MemoryRange, PooledMemory } from "./memory.ts";
import type { DeviceObserver, Observation } from "./observer.ts";

type Range = MemoryRange<ArrayBuffer>;

/** How long recorded work may run before timers and signals get their turn. */
const SLICE_MS = 40;

export interface CpuDeviceOptions {
  /** Bytes that live buffers may hold together. Default: half of the main memory, less where less is available. */
  readonly memoryBudgetBytes?: number | undefined;
}

/** The device without a GPU: runs the kernels' references, float64 inside. Exact and slow. */
export class CpuDevice extends PooledMemory<ArrayBuffer> implements Device {
  readonly info: DeviceInfo = {
    kind: "cpu",
    description: "cpu (TypeScript references, float64 inside)",
    vendor: "",
    architecture: "",
    features: [],
    limits: {
      maxBindingBytes: 2 ** 31,
      maxBufferBytes: 2 ** 32,
      maxWorkgroupInvocations: 256,
      maxWorkgroupStorageBytes: 16_384,
    },
    family: "scalar",
    subgroupSize: 0,
  };
  protected readonly pool: BufferPool<ArrayBuffer>;
  private recorded: (() => void)[] = [];
  /** Operations handed over by `submit` and `read` so far. */
  private submitted = 0;
  private running: Promise<unknown> = Promise.resolve();
  private observer: DeviceObserver | undefined;

  constructor(options: CpuDeviceOptions = {}) {
    super();
    const { memoryBudgetBytes: stated } = options;
    const budget = stated === undefined ? mainMemoryBudget() : statedBudget(stated);
    this.pool = new BufferPool<ArrayBuffer>(
      {
        // All ones is NaN as f32: work that reads unwritten memory shows at once.
        create: (capacity) => new Uint32Array(capacity / 4).fill(0xffff_ffff).buffer,
        destroy: () => {},
      },
      { budget: budget.bytes, budgetSource: budget.source, maxBufferBytes: this.info.limits.maxBufferBytes },
    );
  }

  write(buffer: Buffer, data: Data, byteOffset: number = 0): void {
    const target = buffer as Range;
    const source = data.slice();
    this.recorded.push(() => bytesOf(target).set(bytes(source), byteOffset));
  }

  copy(from: Buffer, to: Buffer, byteLength: number = Math.min(from.byteLength, to.byteLength)): void {
    this.recorded.push(() => bytesOf(to as Range).set(bytesOf(from as Range).subarray(0, byteLength)));
  }

  clear(buffer: Buffer): void {
    this.recorded.push(() => bytesOf(buffer as Range).fill(0));
  }

  dispatch<B extends BindingKinds, P extends ParamTypes>(kernel: Kernel<B, P>, options: DispatchOptions<B, P>): void {
    const constants = { ...kernel.constants, ...options.constants };
    if (kernel.grid(options.params, constants).some((side) => side === 0)) return;
    const params = { ...options.params };
    const views = Object.fromEntries(
      Object.entries(kernel.bindings).map(([name, kind]) => [name, view(options.buffers[name] as Range, kind)]),
    );
    const run = () => kernel.reference(views as never, params, constants);
    const { observer } = this;
    this.recorded.push(observer?.timesKernels ? () => timed(run, kernel.name, observer) : run);
  }

  submit(): Promise<void> {
    return this.inOrder(() => undefined);
  }

  observe(observer: DeviceObserver): Observation {
    this.observer = observer;
    return {
      untimed: undefined,
      stop: async () => {
        this.observer = undefined;
        await this.running;
      },
    };
  }

  async read(requests: readonly ReadRequest[]): Promise<Data[]> {
    return this.inOrder(() => requests.map(({ buffer, type, length }) => view(buffer as Range, type).slice(0, length)));
  }

  mark(): number {
    return this.submitted + this.recorded.length;
  }

  rollback(mark: number): void {
    this.recorded.length = Math.min(this.recorded.length, Math.max(mark - this.submitted, 0));
  }

  async prepare(): Promise<void> {}

  destroy(): void {
    this.recorded = [];
    this.pool.clear();
  }

  /** Runs the recorded work after all earlier work, then `after`. */
  private inOrder<T>(after: () => T): Promise<T> {
    const work = this.recorded;
    this.recorded = [];
    this.submitted += work.length;
    const done = this.running.then(async () => {
      let last = performance.now();
      for (const run of work) {
        run();
        if (performance.now() - last < SLICE_MS) continue;
        await new Promise((resume) => setTimeout(resume));
        last = performance.now();
      }
      return after();
    });
    this.running = done.catch(() => {});
    return done;
  }
}

function bytes(data: Data): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

function bytesOf({ storage, byteOffset, byteLength }: Range): Uint8Array {
  return new Uint8Array(storage, byteOffset, byteLength);
}

function view({ storage, byteOffset, byteLength }: Range, kind: string): Data {
  const length = Math.floor(byteLength / 4);
  if (kind.endsWith("f32")) return new Float32Array(storage, byteOffset, length);
  if (kind.endsWith("u32")) return new Uint32Array(storage, byteOffset, length);
  return new Int32Array(storage, byteOffset, length);
}

function timed(run: () => void, kernel: string, observer: DeviceObserver): void {
  const start = performance.now();
  run();
  observer.ran({ kernels: [kernel], times: Float64Array.of(start, performance.now()) });
}
