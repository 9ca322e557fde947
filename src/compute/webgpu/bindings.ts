/** Bind groups, kept between submits, and the params of a submit in one uniform buffer. */

import { RecentCache } from "../../recent_cache.ts";
import { type DispatchOp, PARAMS_STRIDE_BYTES, type Range } from "./encoding.ts";
import type { GpuBindGroup, GpuBuffer, GpuDevice } from "./types.ts";

/** In each generation of the cache. A step binds about twenty a layer; each takes about 2 KiB of the driver. */
const BIND_GROUPS = 4096;
const LEAST_PARAMS_BYTES = 2 ** 16;
const { COPY_DST, UNIFORM } = { COPY_DST: 0x8, UNIFORM: 0x40 };

export class Bindings {
  private readonly gpuDevice: GpuDevice;
  private readonly groups = new RecentCache<string, GpuBindGroup>(BIND_GROUPS);
  private arena: GpuBuffer | undefined;

  constructor(gpuDevice: GpuDevice) {
    this.gpuDevice = gpuDevice;
  }

  /** Writes the params of all dispatches of a submit into one buffer, bound at dynamic offsets. */
  uploadParams(dispatches: readonly DispatchOp[]): void {
    const packed = new Uint8Array(Math.max(dispatches.length, 1) * PARAMS_STRIDE_BYTES);
    for (const [i, { params }] of dispatches.entries()) packed.set(new Uint8Array(params), i * PARAMS_STRIDE_BYTES);
    this.gpuDevice.queue.writeBuffer(this.arenaOf(packed.byteLength), 0, packed);
  }

  private arenaOf(bytes: number): GpuBuffer {
    if (this.arena && this.arena.size >= bytes) return this.arena;
    this.forget();
    this.arena?.destroy();
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, LEAST_PARAMS_BYTES)));
    this.arena = this.gpuDevice.createBuffer({ label: "params", size, usage: UNIFORM | COPY_DST });
    return this.arena;
  }

  storageGroup({ pipeline, buffers }: DispatchOp): GpuBindGroup {
    let key = pipeline.bindingKey;
    for (const { id, byteOffset, byteLength } of buffers) key += `|${id}:${byteOffset}:${byteLength}`;
    return this.groups.get(key, () =>
      this.gpuDevice.createBindGroup({
        layout: pipeline.bindingLayout,
        entries: buffers.map((range, binding) => ({
          binding,
          resource: { buffer: range.storage.buffer, offset: range.byteOffset, size: boundBytes(range) },
        })),
      }),
    );
  }

  paramsGroup({ pipeline }: DispatchOp): GpuBindGroup {
    return this.groups.get(`params:${pipeline.paramsBytes}`, () =>
      this.gpuDevice.createBindGroup({
        layout: pipeline.paramsLayout!,
        entries: [{ binding: 0, resource: { buffer: this.arena!, offset: 0, size: pipeline.paramsBytes } }],
      }),
    );
  }

  /** Drops every bind group: the buffers they name may be destroyed. */
  forget(): void {
    this.groups.clear();
  }

  destroy(): void {
    this.arena?.destroy();
  }
}

/** An array of vec4 needs whole vectors bound; no other range uses the rest of the last one. */
function boundBytes({ byteOffset, byteLength, capacity }: Range): number {
  return Math.min(Math.max(Math.ceil(byteLength / 16) * 16, 16), capacity - byteOffset);
}
