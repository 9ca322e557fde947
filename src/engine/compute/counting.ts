/**
 * The device that counts: it allocates through the same pool as the others, so within the same limits and with the same
 * rounding, and computes nothing. Running the real code on it says what a run holds, phase by phase, in advance.
 */
import type { Buffer, Data, Device, DeviceInfo, DispatchOptions, ReadRequest } from "./device.ts";
import type { BindingKinds, Kernel, ParamTypes } from "./kernel.ts";
import { BufferPool, type MemoryRange, PooledMemory } from "./memory.ts";

/** A GPU as most of them answer: the family `tiled`, bindings and buffers that do not limit. */
export const TYPICAL_GPU: DeviceInfo = {
  kind: "webgpu",
  description: "a typical GPU (counted, not opened)",
  vendor: "",
  architecture: "",
  features: [],
  limits: {
    // The largest multiple of 4 in 32 bits, as drivers report it.
    maxBindingBytes: 2 ** 32 - 4,
    maxBufferBytes: 2 ** 32,
    maxWorkgroupInvocations: 1024,
    maxWorkgroupStorageBytes: 32_768,
  },
  family: "tiled",
  subgroupSize: 0,
};

/** The moment at which a phase held the most. */
export interface Peak {
  readonly bytes: number;
  /** Bytes held at that time, by the buffers' labels. They add up to `bytes`. */
  readonly byLabel: ReadonlyMap<string, number>;
}

export interface CountingDeviceOptions {
  /** The device to stand in for. Default {@link TYPICAL_GPU}. */
  readonly info?: DeviceInfo | undefined;
  /** Bytes that live buffers may hold together. Default: no limit. */
  readonly memoryBudgetBytes?: number | undefined;
}

/** Counts allocations and computes nothing: every read returns zeros, of its own length. */
export class CountingDevice extends PooledMemory<undefined> implements Device {
  readonly info: DeviceInfo;
  protected readonly pool: BufferPool<undefined>;
  private readonly heldByLabel = new Map<string, number>();
  private highest: Peak = { bytes: 0, byLabel: new Map() };

  constructor({ info = TYPICAL_GPU, memoryBudgetBytes = Number.POSITIVE_INFINITY }: CountingDeviceOptions = {}) {
    super();
    this.info = info;
    this.pool = new BufferPool<undefined>(
      { create: () => undefined, destroy: () => {} },
      { budget: memoryBudgetBytes, maxBufferBytes: info.limits.maxBufferBytes },
    );
  }

  /** The largest moment since the last {@link startPhase}. */
  get phasePeak(): Peak {
    return this.highest;
  }

  /** Starts a phase: its peak is at least what is held now. */
  startPhase(): void {
    this.highest = this.moment();
  }

  private moment(): Peak {
    return { bytes: this.pool.live, byLabel: new Map(this.heldByLabel) };
  }

  override alloc(byteLength: number, label: string): Buffer {
    const range = super.alloc(byteLength, label) as MemoryRange<undefined>;
    this.heldByLabel.set(label, (this.heldByLabel.get(label) ?? 0) + range.capacity);
    if (this.pool.live > this.highest.bytes) this.highest = this.moment();
    return range;
  }

  override release(...buffers: readonly Buffer[]): void {
    super.release(...buffers);
    for (const { label, capacity } of buffers as readonly MemoryRange<undefined>[]) {
      const left = this.heldByLabel.get(label)! - capacity;
      if (left > 0) this.heldByLabel.set(label, left);
      else this.heldByLabel.delete(label);
    }
  }

  write(_buffer: Buffer, _data: Data, _byteOffset?: number): void {}
  copy(_from: Buffer, _to: Buffer, _byteLength?: number): void {}
  clear(_buffer: Buffer): void {}
  dispatch<B extends BindingKinds, P extends ParamTypes>(
    _kernel: Kernel<B, P>,
    _options: DispatchOptions<B, P>,
  ): void {}
  mark(): number {
    return 0;
  }
  rollback(_mark: number): void {}
  async submit(): Promise<void> {}
  async prepare(): Promise<void> {}

  async read(requests: readonly ReadRequest[]): Promise<Data[]> {
    const views = { f32: Float32Array, u32: Uint32Array, i32: Int32Array } as const;
    return requests.map(({ buffer, type, length }) => new views[type](length ?? Math.floor(buffer.byteLength / 4)));
  }

  destroy(): void {
    this.pool.clear();
    this.heldByLabel.clear();
  }
}
