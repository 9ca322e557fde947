/**
 * Keys and values of the sequences that are being sampled, in pages. A sequence holds the pages that its own prompt and
 * max_tokens need; those that a prompt fills alone are shared by all its sequences.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import { capacityFor, formatBytes, largestWithin } from "../../compute/memory.ts";
import { ConfigError } from "../../errors.ts";
import type { ModelConfig } from "../files/config.ts";
import { cacheAppend, cacheCopy, cacheGather } from "../kernels/cache.ts";
import { CACHE_BYTES, type CacheDtype, PAGE_TOKENS } from "../kernels/cache_storage.ts";
import { keyValueOffsets, qkvWidth } from "../qkv_layout.ts";
import type { Scratch } from "../scratch.ts";
import { type Need, usablePages } from "./pages.ts";

/** Default of {@link CacheOptions.maxSequences}. */
const MAX_SEQUENCES = 256;
/** Share of the free memory for the cache; passes need the rest. */
const CACHE_SHARE = 0.5;

/** How the keys and values of sampled sequences are held. */
export interface CacheOptions {
  /** Default `float32`, exact. `bfloat16` halves the cache, and rounds keys and values to 8 significant bits. */
  readonly dtype?: CacheDtype | undefined;
  /**
   * Most bytes of all layers together. Default: half of the memory that is free when sampling starts, or what the largest
   * request needs where that is more. Never more is allocated than the requests can use.
   */
  readonly bytes?: number | undefined;
  /** Most sequences decoded together, at least 1. Default 256. */
  readonly maxSequences?: number | undefined;
}

export interface KeyValueCache {
  readonly dtype: CacheDtype;
  /** Sequences that may run together. */
  readonly sequences: number;
  readonly pages: number;
  /** Keys per layer, [pages, PAGE_TOKENS, KV D]. */
  readonly keys: readonly Buffer[];
  readonly values: readonly Buffer[];
}

interface Shape {
  readonly config: ModelConfig;
  readonly options: CacheOptions;
}

/**
 * A cache for requests: as large as those that run together can use, or less where memory or a binding is small.
 * @param at.mostRows sequences of which one binding covers q, k and v of a token each.
 * @throws ConfigError for a request that does not fit alone, or no sequence at all.
 */
export function allocateCache(
  shape: Shape,
  at: { needs: readonly Need[]; mostRows: number; scratch: Scratch },
): KeyValueCache {
  const { needs, mostRows, scratch } = at;
  const { dtype = "float32", maxSequences = MAX_SEQUENCES } = shape.options;
  if (!(Number.isInteger(maxSequences) && maxSequences >= 1))
    throw new ConfigError(`Cannot sample: cache.maxSequences must be a whole number above 0 (${maxSequences}).`);
  const largest = checkLargest(shape, { needs, device: scratch.device });
  const sequences = Math.min(needs.length, maxSequences, mostRows);
  const pages = Math.min(usablePages(needs, sequences), Math.max(affordablePages(shape, scratch.device), largest));
  const length = (pages * layerPageBytes(shape)) / 4;
  const allocate = (label: string) => Array.from({ length: shape.config.layers }, () => scratch.floats(length, label));
  return { dtype, sequences, pages, keys: allocate("key cache"), values: allocate("value cache") };
}

/** Returns the bytes of a page of one layer's keys or values. */
function layerPageBytes({ config, options: { dtype = "float32" } }: Shape): number {
  return PAGE_TOKENS * config.kvHeads * config.headDim * CACHE_BYTES[dtype];
}

function affordablePages(shape: Shape, device: Device): number {
  const { bytes = CACHE_SHARE * freeBytes(device) } = shape.options;
  const bindable = Math.floor(device.info.limits.maxBindingBytes / layerPageBytes(shape));
  return Math.min(pagesWithin(bytes, shape), bindable);
}

/** Pages whose buffers, of keys and of values in each layer, take at most `bytes` together. */
function pagesWithin(bytes: number, shape: Shape): number {
  return Math.floor(largestWithin(bytes / (2 * shape.config.layers)) / layerPageBytes(shape));
}

function freeBytes({ memory }: Device): number {
  return Math.max(memory.budget - memory.live, 0);
}

/**
 * The pages of the largest request. One binding always covers them, because it covers q, k and v of the longest sequence.
 * @throws ConfigError where it cannot run even alone.
 */
function checkLargest(shape: Shape, { needs, device }: { needs: readonly Need[]; device: Device }): number {
  const pages = needs.map(({ shared, own: ownPages }) => shared + ownPages);
  const largest = Math.max(...pages);
  const free = freeBytes(device);
  const { bytes = Number.POSITIVE_INFINITY } = shape.options;
  const limits = [
    [bytes, `cache.bytes, which a run plans by memory_budget_bytes, allows ${formatBytes(bytes)}`],
    [free, `${formatBytes(free)} of memory_budget_bytes are free`],
  ] as const;
  for (const [most, what] of limits) {
    if (largest <= pagesWithin(most, shape)) continue;
    const size = formatBytes(2 * shape.config.layers * capacityFor(largest * layerPageBytes(shape)));
    throw new ConfigError(
      `Cannot sample: the keys and values of this prompt with its max_tokens take ${size}, and ${what}. Raise it, lower max_tokens, or set rollout.kv_cache_dtype to bfloat16.`,
      { path: `requests[${pages.indexOf(largest)}]` },
    );
  }
  return largest;
}

/** Writes k and v of a pass's tokens into the cache. `places`: of each token, in tokens of the cache. Records only. */
export function appendToCache(
  device: Device,
  cache: KeyValueCache,
  at: { config: ModelConfig; layer: number; qkv: Buffer; rows: number; places: Buffer },
): void {
  const { config, layer, qkv, places } = at;
  const stride = qkvWidth(config);
  const { k, v } = keyValueOffsets(config);
  device.dispatch(cacheAppend[cache.dtype], {
    buffers: { k: qkv, v: qkv, places, keys: cache.keys[layer]!, values: cache.values[layer]! },
    params: {
      rows: at.rows,
      width: config.kvHeads * config.headDim,
      k_stride: stride,
      k_offset: k,
      v_stride: stride,
      v_offset: v,
    },
  });
}

/** k and v of tokens, [rows, KV D] each, as the cache keeps them at `places`. Records only. */
export function gatherFromCache(
  cache: KeyValueCache,
  at: { config: ModelConfig; layer: number; rows: number; places: Buffer; scratch: Scratch },
): { k: Buffer; v: Buffer } {
  const { layer, rows, places, scratch } = at;
  const width = at.config.kvHeads * at.config.headDim;
  const k = scratch.floats(rows * width, "gathered keys");
  const v = scratch.floats(rows * width, "gathered values");
  scratch.device.dispatch(cacheGather[cache.dtype], {
    buffers: { places, keys: cache.keys[layer]!, values: cache.values[layer]!, k, v },
    params: { rows, width },
  });
  return { k, v };
}

/** A copy of a page. */
export interface PageCopy {
  readonly from: number;
  readonly to: number;
}

/** Copies pages in every layer. Records only. */
export function copyPages(
  cache: KeyValueCache,
  copies: readonly PageCopy[],
  { config, scratch }: { config: ModelConfig; scratch: Scratch },
): void {
  if (copies.length === 0) return;
  const table = scratch.upload(Uint32Array.from(copies.flatMap(({ from, to }) => [from, to])), "page copies");
  const page_quads = layerPageBytes({ config, options: cache }) / 16;
  for (const [layer, keys] of cache.keys.entries())
    scratch.device.dispatch(cacheCopy, {
      buffers: { copies: table, keys, values: cache.values[layer]! },
      params: { copies: copies.length, page_quads },
    });
}
