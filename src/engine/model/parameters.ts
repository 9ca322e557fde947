/**
 * Named matrices in device memory, packed into few buffers ("shards"), so that an optimiser dispatches per shard and
 * not per tensor. Gradients and moments are further sets of the same layout.
 */
import { type Buffer, type Device, SLICE_ALIGNMENT_BYTES } from "../compute/device.ts";

/** Matrices are [rows, columns] = [out, in]; vectors are [1, length]. */
export interface ParameterShape {
  readonly rows: number;
  readonly columns: number;
}

/** A tensor's place in the layout. */
export interface Entry extends ParameterShape {
  readonly name: string;
  readonly shard: number;
  readonly byteOffset: number;
}

export interface ParameterLayout {
  readonly entries: ReadonlyMap<string, Entry>;
  readonly shardBytes: readonly number[];
}

/** Shards stay below this and below one binding, so that one dispatch covers a whole shard. */
const MAX_SHARD_BYTES = 2 ** 26;

/** Packs shapes into shards in order. A tensor larger than the limit gets a shard alone. */
export function layOutParameters(device: Device, shapes: Iterable<readonly [string, ParameterShape]>): ParameterLayout {
  const limit = Math.min(MAX_SHARD_BYTES, device.info.limits.maxBindingBytes);
  const entries = new Map<string, Entry>();
  const shardBytes: number[] = [];
  for (const [name, { rows, columns }] of shapes) {
    const bytes = Math.ceil((rows * columns * 4) / SLICE_ALIGNMENT_BYTES) * SLICE_ALIGNMENT_BYTES;
    const last = shardBytes.length - 1;
    if (last < 0 || shardBytes[last]! + bytes > limit) shardBytes.push(0);
    const shard = shardBytes.length - 1;
    entries.set(name, { name, rows, columns, shard, byteOffset: shardBytes[shard]! });
    shardBytes[shard]! += bytes;
  }
  return { entries, shardBytes };
}

/** Bytes of a set with this layout. */
export function layoutBytes({ shardBytes }: ParameterLayout): number {
  return shardBytes.reduce((sum, bytes) => sum + bytes, 0);
}

/** One value per element of a layout: weights, gradients, first moments, ... */
export class ParameterSet {
  readonly layout: ParameterLayout;
  readonly shards: readonly Buffer[];
  private readonly device: Device;
  private readonly slices = new Map<string, Buffer>();

  constructor(device: Device, layout: ParameterLayout, label: string) {
    this.device = device;
    this.layout = layout;
    this.shards = allocateAll(device, layout.shardBytes, label);
    // The gaps between tensors must be numbers, because optimisers process them too.
    for (const shard of this.shards) device.clear(shard);
  }

  get byteLength(): number {
    return layoutBytes(this.layout);
  }

  /** Elements of all tensors, without the gaps between them. */
  get size(): number {
    let sum = 0;
    for (const { rows, columns } of this.layout.entries.values()) sum += rows * columns;
    return sum;
  }

  /** The range of one tensor. */
  get(name: string): Buffer {
    let slice = this.slices.get(name);
    if (!slice) {
      const { shard, byteOffset, rows, columns } = this.entry(name);
      slice = this.shards[shard]!.slice(byteOffset, rows * columns * 4);
      this.slices.set(name, slice);
    }
    return slice;
  }

  /** The range of several tensors that lie on end; undefined where they do not. */
  span(names: readonly string[]): Buffer | undefined {
    const [first, ...rest] = names.map((name) => this.entry(name)) as [Entry, ...Entry[]];
    let end = first.byteOffset + entryBytes(first);
    for (const entry of rest) {
      if (entry.shard !== first.shard || entry.byteOffset !== end) return undefined;
      end += entryBytes(entry);
    }
    return this.shards[first.shard]!.slice(first.byteOffset, end - first.byteOffset);
  }

  entry(name: string): Entry {
    const entry = this.layout.entries.get(name);
    if (!entry) throw new RangeError(`Cannot find a parameter named ${name}.`);
    return entry;
  }

  has(name: string): boolean {
    return this.layout.entries.has(name);
  }

  clear(): void {
    for (const shard of this.shards) this.device.clear(shard);
  }

  /** Copies the values of another set of the same layout. */
  copyFrom(other: ParameterSet): void {
    for (const [i, shard] of this.shards.entries()) this.device.copy(other.shards[i]!, shard);
  }

  /** Every tensor's elements, in the order of the layout. One read-back. */
  async read(): Promise<Map<string, Float32Array>> {
    const data = await this.device.read(this.shards.map((buffer) => ({ buffer, type: "f32" as const })));
    return new Map(
      [...this.layout.entries.values()].map(({ name, shard, byteOffset, rows, columns }) => {
        const start = byteOffset / 4;
        return [name, (data[shard] as Float32Array).subarray(start, start + rows * columns)];
      }),
    );
  }

  write(name: string, data: Float32Array): void {
    this.device.write(this.get(name), data);
  }

  release(): void {
    this.device.release(...this.shards);
  }
}

function entryBytes({ rows, columns }: Entry): number {
  return rows * columns * 4;
}

/** Buffers of these sizes; none where the memory does not suffice for all. */
export function allocateAll(device: Device, sizes: readonly number[], label: string): Buffer[] {
  const buffers: Buffer[] = [];
  try {
    for (const bytes of sizes) buffers.push(device.alloc(bytes, label));
    return buffers;
  } catch (error) {
    device.release(...buffers);
    throw error;
  }
}
