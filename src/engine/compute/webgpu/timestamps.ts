/** GPU times of dispatches: each is a compute pass of its own between two timestamps, which are read back after the submit. */
import type { DeviceObserver } from "../observer.ts";
import type { GpuCommandEncoder, GpuDevice, GpuQuerySet } from "./types.ts";

/** The most that a query set holds. */
const QUERIES = 4096;
const BYTES = 8;
const NS_PER_MS = 1e6;
const { MAP_READ, COPY_SRC, COPY_DST, QUERY_RESOLVE } = {
  MAP_READ: 0x1,
  COPY_SRC: 0x4,
  COPY_DST: 0x8,
  QUERY_RESOLVE: 0x200,
};

/** Times that a pass writes: when it began and when it ended. */
interface PassTimes {
  readonly querySet: GpuQuerySet;
  readonly beginningOfPassWriteIndex: number;
  readonly endOfPassWriteIndex: number;
}

/** The queries of up to {@link QUERIES} / 2 dispatches of one submit, on their way to the host. */
interface Batch {
  readonly querySet: GPUQuerySet;
  readonly resolved: GPUBuffer;
  readonly staging: GPUBuffer;
  readonly kernels: string[];
}

export class Timestamps {
  private readonly gpuDevice: GpuDevice;
  private readonly observer: DeviceObserver;
  private readonly free: Batch[] = [];
  /** Batches of the submit that is being encoded. */
  private open: Batch[] = [];
  private submitted = 0;
  private readonly arriving = new Set<Promise<void>>();

  constructor(gpuDevice: GpuDevice, observer: DeviceObserver) {
    this.gpuDevice = gpuDevice;
    this.observer = observer;
  }

  /** Returns the timestamps for the pass of a dispatch. */
  writesFor(kernel: string): PassTimes {
    let batch = this.open.at(-1);
    if (!batch || batch.kernels.length === QUERIES / 2) {
      batch = this.free.pop() ?? this.create();
      this.open.push(batch);
    }
    const first = 2 * batch.kernels.length;
    batch.kernels.push(kernel);
    return { querySet: batch.querySet, beginningOfPassWriteIndex: first, endOfPassWriteIndex: first + 1 };
  }

  /** Resolves the timestamps at the end of a submit's commands, just before they are submitted. */
  resolve(encoder: GpuCommandEncoder): void {
    this.submitted = performance.now();
    for (const { querySet, resolved, staging, kernels } of this.open) {
      const count = 2 * kernels.length;
      encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, staging, 0, count * BYTES);
    }
  }

  /** After the submit: the times go to the observer when they are there. */
  collect(): void {
    for (const batch of this.open) {
      // A lost device rejects: its times are lost with it.
      const arrival = this.report(batch, this.submitted).catch(() => {});
      this.arriving.add(arrival);
      void arrival.then(() => this.arriving.delete(arrival));
    }
    this.open = [];
  }

  /** Waits for the times of everything submitted. */
  async settle(): Promise<void> {
    await Promise.all(this.arriving);
  }

  destroy(): void {
    for (const batch of this.free) release(batch);
    this.free.length = 0;
  }

  private async report(batch: Batch, submitted: number): Promise<void> {
    const { staging } = batch;
    const bytes = 2 * batch.kernels.length * BYTES;
    await staging.mapAsync(MAP_READ, 0, bytes);
    const done = performance.now();
    const times = Float64Array.from(
      new BigUint64Array(staging.getMappedRange(0, bytes)),
      (ns) => Number(ns) / NS_PER_MS,
    );
    staging.unmap();
    const kernels = batch.kernels.splice(0);
    this.free.push(batch);
    this.observer.ran({ kernels, times, host: { submitted, done } });
  }

  private create(): Batch {
    const buffer = (label: string, usage: number) =>
      this.gpuDevice.createBuffer({ label, size: QUERIES * BYTES, usage });
    return {
      querySet: this.gpuDevice.createQuerySet({ label: "timestamps", type: "timestamp", count: QUERIES }),
      resolved: buffer("timestamps", QUERY_RESOLVE | COPY_SRC),
      staging: buffer("timestamps read back", MAP_READ | COPY_DST),
      kernels: [],
    };
  }
}

function release({ querySet, resolved, staging }: Batch): void {
  querySet.destroy();
  resolved.destroy();
  staging.destroy();
}
