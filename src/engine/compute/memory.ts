/** Ranges of device memory, and the pool from which both devices allocate within a byte budget. */
import { ConfigError, OutOfMemoryError } from "../../leaves/errors.ts";
import { type Buffer, type Data, type MemoryUse, SLICE_ALIGNMENT_BYTES } from "./device.ts";

/** A buffer of either device; `S` is what holds the bytes (a GPUBuffer, an ArrayBuffer). */
export class MemoryRange<S> implements Buffer {
  readonly storage: S;
  readonly label: string;
  readonly byteOffset: number;
  readonly byteLength: number;
  readonly whole: MemoryRange<S>;
  /** Bytes of the whole allocation, at least `byteLength`. */
  readonly capacity: number;
  /** Identity of the allocation, for caches. */
  readonly id: number;

  constructor(
    storage: S,
    of: {
      label: string;
      byteOffset: number;
      byteLength: number;
      capacity: number;
      id: number;
      whole?: MemoryRange<S>;
    },
  ) {
    this.storage = storage;
    this.label = of.label;
    this.byteOffset = of.byteOffset;
    this.byteLength = of.byteLength;
    this.capacity = of.capacity;
    this.id = of.id;
    this.whole = of.whole ?? this;
  }

  slice(byteOffset: number, byteLength: number): MemoryRange<S> {
    if (byteOffset % SLICE_ALIGNMENT_BYTES !== 0)
      throw new RangeError(
        `Cannot slice ${this.label}: its start is no multiple of ${SLICE_ALIGNMENT_BYTES} bytes (${byteOffset}).`,
      );
    if (byteOffset < 0 || byteLength < 0 || byteOffset + byteLength > this.byteLength)
      throw new RangeError(
        `Cannot slice ${this.label}: the end is beyond its ${this.byteLength} bytes (${byteOffset} + ${byteLength}).`,
      );
    const { storage, label, capacity, id, whole } = this;
    return new MemoryRange(storage, {
      label,
      byteOffset: this.byteOffset + byteOffset,
      byteLength,
      capacity,
      id,
      whole,
    });
  }
}

/** Smallest allocation; also the alignment of every capacity. */
const MIN_CAPACITY_BYTES = 256;

/** Sizes are rounded to an eighth of a power of two, so that a freed buffer fits its near neighbours. */
export function capacityFor(byteLength: number): number {
  const step = capacityStep(byteLength);
  return Math.max(Math.ceil(byteLength / step) * step, MIN_CAPACITY_BYTES);
}

/** The largest size whose capacity is at most `bytes`; 0 where that is less than any. */
export function largestWithin(bytes: number): number {
  if (bytes === Number.POSITIVE_INFINITY) return bytes;
  const step = capacityStep(bytes);
  return Math.floor(bytes / step) * step;
}

function capacityStep(bytes: number): number {
  return Math.max(MIN_CAPACITY_BYTES, 2 ** Math.floor(Math.log2(Math.max(bytes, 1))) / 8);
}

interface PoolHooks<S> {
  /** May throw where memory is exhausted; the pool then trims itself and tries once more. */
  create(capacity: number, label: string): S;
  /** Recorded work may still use the storage; the device frees it once that work is submitted. */
  destroy(storages: readonly S[]): void;
  /** False for a storage that the driver refused afterwards: it is destroyed on release, never used again. */
  usable?(storage: S): boolean;
}

interface Slot<S> {
  readonly storage: S;
  readonly capacity: number;
  readonly id: number;
  /** A count of releases, so that trimming drops the oldest first. */
  readonly released: number;
}

/** Free storages that are set aside. They count as pooled. */
export interface Reservation {
  /** False once memory was short, and after `release`. */
  readonly isHeld: boolean;
  release(): void;
}

/** Free lists by capacity. `release` frees memory at once: recorded work runs in order, so reuse cannot overtake it. */
export class BufferPool<S> {
  private readonly free = new Map<number, Slot<S>[]>();
  private readonly held = new Map<number, MemoryRange<S>>();
  private readonly reserved = new Set<readonly Slot<S>[]>();
  private readonly hooks: PoolHooks<S>;
  private nextId = 1;
  /** Buffers before this one are lost. */
  private firstId = 1;
  private releases = 0;
  /** Drivers allocate lazily and rarely refuse, so the bytes are counted here. */
  readonly budget: number;
  readonly budgetSource: string;
  readonly maxBufferBytes: number;
  live = 0;
  pooled = 0;
  peak = 0;

  constructor(hooks: PoolHooks<S>, limits: { budget: number; budgetSource?: string; maxBufferBytes: number }) {
    this.hooks = hooks;
    this.budget = limits.budget;
    this.budgetSource = limits.budgetSource ?? "memory_budget_bytes";
    this.maxBufferBytes = limits.maxBufferBytes;
  }

  alloc(byteLength: number, label: string): MemoryRange<S> {
    const capacity = capacityFor(byteLength);
    if (capacity > this.maxBufferBytes)
      throw new ConfigError(
        `Cannot allocate ${label} as one buffer: the device allows ${this.maxBufferBytes} bytes (${byteLength}). Work in smaller batches.`,
      );
    const { storage, id } = this.take(capacity) ?? this.create(capacity, label);
    this.live += capacity;
    this.peak = Math.max(this.peak, this.live);
    const range = new MemoryRange(storage, { label, byteOffset: 0, byteLength, capacity, id });
    this.held.set(id, range);
    return range;
  }

  private take(capacity: number): Slot<S> | undefined {
    const slot = this.free.get(capacity)?.pop();
    if (slot) this.pooled -= capacity;
    return slot;
  }

  release(range: MemoryRange<S>): void {
    if (range.id < this.firstId) return;
    const held = this.held.get(range.id);
    if (held !== range) throw new RangeError(`Cannot release ${range.label}: it is a slice or was released before.`);
    this.held.delete(range.id);
    this.live -= range.capacity;
    if (this.hooks.usable?.(range.storage) === false) this.hooks.destroy([range.storage]);
    else this.keep(range);
  }

  private keep({ storage, capacity, id }: MemoryRange<S>): void {
    this.pooled += capacity;
    this.putBack({ storage, capacity, id, released: this.releases++ });
  }

  private putBack(slot: Slot<S>): void {
    const list = this.free.get(slot.capacity);
    if (list) list.push(slot);
    else this.free.set(slot.capacity, [slot]);
  }

  /** Whether a whole buffer is in use: allocated, and not released since. */
  holds(range: MemoryRange<S>): boolean {
    return this.held.get(range.id) === range;
  }

  /**
   * Sets the storages of released buffers aside, so that no other buffer takes them until memory is short.
   * @returns nothing where one of them is in use or gone
   */
  reserve(ranges: readonly MemoryRange<S>[]): Reservation | undefined {
    const slots: Slot<S>[] = [];
    for (const { capacity, id } of ranges) {
      const list = this.free.get(capacity) ?? [];
      const at = list.findIndex((slot) => slot.id === id);
      if (at >= 0) slots.push(...list.splice(at, 1));
    }
    if (slots.length < ranges.length) {
      for (const slot of slots) this.putBack(slot);
      return undefined;
    }
    const { reserved } = this;
    reserved.add(slots);
    return {
      get isHeld() {
        return reserved.has(slots);
      },
      release: () => {
        if (reserved.delete(slots)) for (const slot of slots) this.putBack(slot);
      },
    };
  }

  private endReservations(): void {
    for (const slots of this.reserved) for (const slot of slots) this.putBack(slot);
    this.reserved.clear();
  }

  private create(capacity: number, label: string): Pick<Slot<S>, "storage" | "id"> {
    if (this.live + capacity > this.budget) throw this.overBudget(capacity, label);
    const excess = this.live + this.pooled + capacity - this.budget;
    if (excess > 0) this.trim(excess);
    return { storage: this.createTwice(capacity, label), id: this.nextId++ };
  }

  private createTwice(capacity: number, label: string): S {
    try {
      return this.hooks.create(capacity, label);
    } catch {
      this.trim(this.pooled);
    }
    try {
      return this.hooks.create(capacity, label);
    } catch (cause) {
      throw refusedByDriver({ label, bytes: capacity, live: this.live }, cause as Error);
    }
  }

  /** Drops free buffers, the earliest released first and reserved ones last, until `bytes` are freed or none is left. */
  trim(bytes: number): void {
    const dropped: S[] = [];
    const enough = this.pooled - bytes;
    while (this.pooled > enough && this.pooled > 0) {
      const list = this.oldest();
      if (!list) {
        this.endReservations();
        continue;
      }
      const { storage, capacity } = list.shift()!;
      if (list.length === 0) this.free.delete(capacity);
      this.pooled -= capacity;
      dropped.push(storage);
    }
    this.hooks.destroy(dropped);
  }

  /** The free list that holds the earliest released buffer. */
  private oldest(): Slot<S>[] | undefined {
    let oldest: Slot<S>[] | undefined;
    for (const list of this.free.values())
      if (list.length > 0 && (!oldest || list[0]!.released < oldest[0]!.released)) oldest = list;
    return oldest;
  }

  /** Forgets all buffers, which are lost with their device. Releasing one of them later has no effect. */
  reset(): void {
    this.free.clear();
    this.held.clear();
    this.reserved.clear();
    this.live = 0;
    this.pooled = 0;
    this.firstId = this.nextId;
  }

  /** Frees everything, live buffers too. */
  clear(): void {
    this.trim(this.pooled);
    this.hooks.destroy([...this.held.values()].map(({ storage }) => storage));
    this.held.clear();
    this.live = 0;
  }

  private overBudget(capacity: number, label: string): OutOfMemoryError {
    const byLabel = new Map<string, number>();
    for (const { label, capacity } of this.held.values()) byLabel.set(label, (byLabel.get(label) ?? 0) + capacity);
    const largest = [...byLabel].sort((a, b) => b[1] - a[1]).slice(0, 3);
    const holders = largest.map(([name, bytes]) => `${name} ${formatBytes(bytes)}`).join(", ");
    return new OutOfMemoryError(
      `Cannot allocate ${label} (${formatBytes(capacity)}) within the memory budget of ${formatBytes(this.budget)}: ` +
        `${formatBytes(this.live)} are in use${holders ? ` (${holders})` : ""}. ` +
        "Raise memory_budget_bytes or train on fewer tokens at a time.",
      { label, bytes: capacity },
    );
  }
}

/** The driver has less memory than the budget promises. */
export function refusedByDriver(
  { label, bytes, live }: { label: string; bytes: number; live: number },
  cause: { readonly message: string },
): OutOfMemoryError {
  return new OutOfMemoryError(
    `Cannot allocate ${label} (${formatBytes(bytes)}): the driver refuses it with ${formatBytes(live)} in use ` +
      `(${cause.message.trim()}). Lower memory_budget_bytes, or close other programs that use this GPU.`,
    { label, bytes },
    { cause },
  );
}

/** The part of a device that its buffers' pool does. */
export abstract class PooledMemory<S> {
  protected abstract readonly pool: BufferPool<S>;

  abstract write(buffer: Buffer, data: Data, byteOffset?: number): void;

  get memory(): MemoryUse {
    const { live, pooled, peak, budget, budgetSource } = this.pool;
    return { live, pooled, peak, budget, budgetSource };
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
    for (const buffer of buffers) this.pool.release(buffer as MemoryRange<S>);
  }
}

/** `12.5 KiB`, `3.0 MiB`, `128 MiB`, `11.8 GiB`. */
export function formatBytes(bytes: number): string {
  if (bytes >= 2 ** 30) return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  const [unit, name] = bytes < 2 ** 20 ? [2 ** 10, "KiB"] : [2 ** 20, "MiB"];
  return `${(bytes / unit).toFixed(bytes < 10 * unit ? 1 : 0)} ${name}`;
}
