/** Copies of device memory for the host: the ranges of one read lie end to end in a staging buffer, which is reused. */
import type { Data, ReadRequest } from "../device.ts";
import type { StorageRange } from "./encoding.ts";

const { MAP_READ, COPY_DST } = { MAP_READ: 0x1, COPY_DST: 0x8 };
/** A copy and a mapping start at multiples of this. */
const ALIGNMENT_BYTES = 8;
const LEAST_STAGING_BYTES = 256;
const VIEWS = { f32: Float32Array, u32: Uint32Array, i32: Int32Array } as const;

/** Staging buffers by size. */
export class StagingPool {
  private readonly gpuDevice: GPUDevice;
  private readonly free = new Map<number, GPUBuffer[]>();

  constructor(gpuDevice: GPUDevice) {
    this.gpuDevice = gpuDevice;
  }

  take(bytes: number): GPUBuffer {
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, LEAST_STAGING_BYTES)));
    return (
      this.free.get(size)?.pop() ??
      this.gpuDevice.createBuffer({ label: "read-back", size, usage: MAP_READ | COPY_DST })
    );
  }

  give(staging: GPUBuffer): void {
    this.free.get(staging.size)?.push(staging) ?? this.free.set(staging.size, [staging]);
  }

  destroy(): void {
    for (const list of this.free.values()) for (const buffer of list) buffer.destroy();
  }
}

/** One read: recorded behind the work, mapped when that is done, then taken. */
export class ReadBack {
  private readonly requests: readonly ReadRequest[];
  private readonly sizes: readonly number[];
  private readonly offsets: number[] = [];
  private readonly mappedBytes: number;
  private readonly pool: StagingPool;
  private readonly staging: GPUBuffer;

  constructor(requests: readonly ReadRequest[], pool: StagingPool) {
    this.requests = requests;
    this.sizes = requests.map(({ buffer, length }) => (length === undefined ? buffer.byteLength : length * 4));
    let total = 0;
    for (const size of this.sizes) {
      this.offsets.push(total);
      total += Math.ceil(size / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;
    }
    this.mappedBytes = Math.max(total, ALIGNMENT_BYTES);
    this.pool = pool;
    this.staging = pool.take(total);
  }

  /** Bytes of the results. */
  get bytes(): number {
    return this.sizes.reduce((sum, size) => sum + size, 0);
  }

  /** A read of nothing clears the start of the staging buffer, so that its mapping waits behind the work as any other does. */
  record(encoder: GPUCommandEncoder): void {
    if (this.bytes === 0) encoder.clearBuffer(this.staging, 0, this.mappedBytes);
    for (const [i, { buffer }] of this.requests.entries()) {
      const { storage, byteOffset } = buffer as StorageRange;
      if (this.sizes[i]! > 0)
        encoder.copyBufferToBuffer(storage.buffer, byteOffset, this.staging, this.offsets[i]!, this.sizes[i]);
    }
  }

  map(): Promise<void> {
    return this.staging.mapAsync(MAP_READ, 0, this.mappedBytes);
  }

  /** The results, in the order asked for; the staging buffer is free after that. */
  take(): Data[] {
    const mapped = this.staging.getMappedRange(0, this.mappedBytes);
    const results = this.requests.map(({ type }, i) => {
      const start = this.offsets[i]!;
      return new VIEWS[type](mapped.slice(start, start + this.sizes[i]!));
    });
    this.staging.unmap();
    this.pool.give(this.staging);
    return results;
  }

  /** After a failure: the staging buffer may be mapped or lost. */
  drop(): void {
    this.staging.destroy();
  }
}
