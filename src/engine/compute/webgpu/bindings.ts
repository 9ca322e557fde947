/** Bind groups, kept between submits, and the params of a submit in one uniform buffer. */

import { RecentCache } from "../../../leaves/recent_cache.ts";
import { type DispatchOp, PARAMS_STRIDE_BYTES, type StorageRange } from "./encoding.ts";
import { PARAMS_BINDING } from "./pipeline.ts";
import type { GpuBindGroup, GpuBindGroupLayout, GpuBuffer, GpuDevice } from "./types.ts";

/**
 * Most bind groups in each generation of the cache. A step binds about twenty a layer; each takes about 2 KiB of the
 * driver.
 */
const BIND_GROUPS = 4096;
const LEAST_PARAMS_BYTES = 2 ** 16;
const { COPY_DST, UNIFORM } = { COPY_DST: 0x8, UNIFORM: 0x40 };

/** A bind group with what it was made for. */
interface KeptGroup {
  readonly layout: GpuBindGroupLayout;
  readonly buffers: readonly StorageRange[];
  readonly group: GpuBindGroup;
}

export class Bindings {
  private readonly gpuDevice: GpuDevice;
  /** Groups by {@link hashOf}. Ranges whose hashes are equal replace each other. */
  private readonly groups = new RecentCache<number, KeptGroup>(BIND_GROUPS);
  private arena: GpuBuffer | undefined;
  /** Replaced by {@link forget}. */
  era: object = {};
  /** The params of the last submit, a stride each. */
  private packed = new Uint32Array(0);

  constructor(gpuDevice: GpuDevice) {
    this.gpuDevice = gpuDevice;
  }

  /** Writes the params of all dispatches of a submit into one buffer, bound at dynamic offsets. */
  uploadParams(dispatches: readonly DispatchOp[]): void {
    const words = Math.max(dispatches.length, 1) * (PARAMS_STRIDE_BYTES / 4);
    if (this.packed.length < words) this.packed = new Uint32Array(words);
    let at = 0;
    for (const { params } of dispatches) {
      this.packed.set(params, at);
      at += PARAMS_STRIDE_BYTES / 4;
    }
    this.gpuDevice.queue.writeBuffer(this.arenaOf(words * 4), 0, this.packed.subarray(0, words));
  }

  private arenaOf(bytes: number): GpuBuffer {
    if (this.arena && this.arena.size >= bytes) return this.arena;
    this.forget();
    this.arena?.destroy();
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, LEAST_PARAMS_BYTES)));
    this.arena = this.gpuDevice.createBuffer({ label: "params", size, usage: UNIFORM | COPY_DST });
    return this.arena;
  }

  /** The buffers and the params of a dispatch; the latter at a dynamic offset. */
  group(op: DispatchOp): GpuBindGroup {
    const hash = hashOf(op);
    const kept = this.groups.get(hash, () => this.create(op));
    if (isFor(kept, op)) return kept.group;
    const created = this.create(op);
    this.groups.set(hash, created);
    return created.group;
  }

  private create({ pipeline: { bindingLayout: layout, paramsBytes }, buffers }: DispatchOp): KeptGroup {
    const params = { binding: PARAMS_BINDING, resource: { buffer: this.arena!, offset: 0, size: paramsBytes } };
    const group = this.gpuDevice.createBindGroup({
      layout,
      entries: [
        ...buffers.map((range, binding) => ({
          binding,
          resource: { buffer: range.storage.buffer, offset: range.byteOffset, size: boundBytes(range) },
        })),
        ...(paramsBytes > 0 ? [params] : []),
      ],
    });
    return { layout, buffers, group };
  }

  /** Drops every bind group: the buffers they name may be destroyed. */
  forget(): void {
    this.groups.clear();
    this.era = {};
  }

  destroy(): void {
    this.arena?.destroy();
  }
}

/** An array of vec4 needs whole vectors bound; no other range uses the rest of the last one. */
function boundBytes({ byteOffset, byteLength, capacity }: StorageRange): number {
  return Math.min(Math.max(Math.ceil(byteLength / 16) * 16, 16), capacity - byteOffset);
}

/**
 * Returns a hash of a layout and its ranges, 32 bits. A step looks up hundreds, and text as the key would take most of
 * the time.
 */
function hashOf({ pipeline, buffers }: DispatchOp): number {
  let hash = pipeline.bindingCode;
  for (const { id, byteOffset, byteLength } of buffers) {
    hash = mixed(hash, id);
    hash = mixed(hash, byteOffset);
    hash = mixed(hash, byteLength);
  }
  return hash;
}

/** @see Appleby, MurmurHash3: the body of its 32-bit variant. */
function mixed(hash: number, value: number): number {
  const scrambled = Math.imul(value, 0xcc9e2d51);
  const bits = hash ^ Math.imul((scrambled << 15) | (scrambled >>> 17), 0x1b873593);
  return (Math.imul((bits << 13) | (bits >>> 19), 5) + 0xe6546b64) | 0;
}

function isFor({ layout, buffers }: KeptGroup, op: DispatchOp): boolean {
  if (layout !== op.pipeline.bindingLayout || buffers.length !== op.buffers.length) return false;
  for (let i = 0; i < buffers.length; i++) if (!isSameRange(buffers[i]!, op.buffers[i]!)) return false;
  return true;
}

function isSameRange(range: StorageRange, other: StorageRange): boolean {
  return range.id === other.id && range.byteOffset === other.byteOffset && range.byteLength === other.byteLength;
}
