/** Keys and values of the sequences that are being sampled: one slot per sequence. */
import type { Buffer, Device } from "../../compute/device.ts";
import type { ModelConfig } from "../files/config.ts";
import { cacheAppend, cacheCopy } from "../kernels/cache.ts";
import { keyValueOffsets, qkvWidth } from "../qkv_layout.ts";
import type { Scratch } from "../scratch.ts";

/** Most sequences decoded together. */
const MAX_SLOTS = 256;
/** Share of the free memory for the cache; passes need the rest. */
const CACHE_SHARE = 0.5;

export interface KeyValueCache {
  readonly slots: number;
  /** Tokens per slot. */
  readonly maxLength: number;
  /** Per layer, [slots, maxLength, KV D]. */
  readonly keys: readonly Buffer[];
  readonly values: readonly Buffer[];
}

/** A cache for up to `sequences` sequences of `maxLength` tokens: fewer slots where the memory or a binding is small. */
export function allocateCache(
  config: ModelConfig,
  scratch: Scratch,
  { sequences, maxLength }: { sequences: number; maxLength: number },
): KeyValueCache {
  const { layers, kvHeads, headDim } = config;
  const slotBytes = maxLength * kvHeads * headDim * 4;
  const { memory, info } = scratch.device;
  const bindable = Math.floor(info.limits.maxBindingBytes / slotBytes);
  const affordable = Math.floor((CACHE_SHARE * (memory.budget - memory.live)) / (2 * layers * slotBytes));
  const slots = Math.max(Math.min(sequences, MAX_SLOTS, bindable, affordable), 1);
  const allocate = (label: string) =>
    Array.from({ length: layers }, () => scratch.floats(slots * maxLength * kvHeads * headDim, label));
  return { slots, maxLength, keys: allocate("key cache"), values: allocate("value cache") };
}

/** Writes k and v of a pass's tokens into their slots. Records only. */
export function appendToCache(
  device: Device,
  cache: KeyValueCache,
  at: { config: ModelConfig; layer: number; qkv: Buffer; rows: number; slots: Buffer; positions: Buffer },
): void {
  const { config, layer, qkv, slots, positions } = at;
  const stride = qkvWidth(config);
  const { k, v } = keyValueOffsets(config);
  const buffers = {
    k: qkv,
    v: qkv,
    slots,
    positions,
    keys: cache.keys[layer]!,
    values: cache.values[layer]!,
  };
  device.dispatch(cacheAppend, {
    buffers,
    params: {
      rows: at.rows,
      width: config.kvHeads * config.headDim,
      k_stride: stride,
      k_offset: k,
      v_stride: stride,
      v_offset: v,
      max_length: cache.maxLength,
      shift: 0,
    },
  });
}

/** Copies the first `length` tokens of slot `from` to slot `to`, for each of the copies. Records only. */
export function copySlots(
  cache: KeyValueCache,
  copies: readonly { readonly from: number; readonly to: number; readonly length: number }[],
  { config, scratch }: { config: ModelConfig; scratch: Scratch },
): void {
  if (copies.length === 0) return;
  const table = Uint32Array.from(copies.flatMap(({ from, to, length }) => [from, to, length]));
  const tableBuffer = scratch.upload(table, "cache copies");
  const longest = Math.max(...copies.map(({ length }) => length));
  const width = config.kvHeads * config.headDim;
  for (const [layer, keys] of cache.keys.entries())
    scratch.device.dispatch(cacheCopy, {
      buffers: { copies: tableBuffer, keys, values: cache.values[layer]! },
      params: { copies: copies.length, longest, width, max_length: cache.maxLength },
    });
}
