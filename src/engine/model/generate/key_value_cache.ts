/**
 * Keys and values of the sequences that are being sampled, in pages. A sequence holds the pages that its own prompt and
 * max_tokens need; those that a prompt fills alone are shared by all its sequences.
 */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { capacityFor, formatBytes, largestWithin } from "../../compute/memory.ts";
import type { KeyValueRows, LayerCache } from "../blocks/block.ts";
import { blockKind } from "../blocks/kinds.ts";
import type { ModelConfig } from "../config.ts";
import { cacheAppend, cacheCopy, cacheGather } from "../kernels/cache.ts";
import { CACHE_BYTES, type CacheDtype, PAGE_TOKENS } from "../kernels/cache_storage.ts";
import { blocksOf } from "../layers.ts";
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
  /** Buffers of the layers that keep keys, by number: [pages, PAGE_TOKENS, KV D] each. */
  readonly layers: ReadonlyMap<number, LayerKeys>;
}

/** Keys and values of one layer. */
interface LayerKeys {
  readonly keys: Buffer;
  readonly values: Buffer;
  /** Elements of a token's keys, KV D. */
  readonly width: number;
}

/** The model and the options that a cache is allocated for. */
interface Shape {
  readonly config: ModelConfig;
  readonly options: CacheOptions;
}

/** Elements of a token's keys in each layer that keeps some, by its number. */
function cachedWidths(config: ModelConfig): Map<number, number> {
  const widths = blocksOf(config).flatMap((block) => {
    const width = blockKind(block).cachedWidth?.(block);
    return width === undefined ? [] : [[block.layer, width] as const];
  });
  return new Map(widths);
}

/** Returns the cache that a block of a layer reads and writes; undefined where the layer keeps no keys. */
export function layerCache({ dtype, layers }: KeyValueCache, layer: number): LayerCache | undefined {
  const stored = layers.get(layer);
  return stored && { dtype, keys: stored.keys, values: stored.values };
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
  const layers = [...cachedWidths(shape.config)].map(([layer, width]) => {
    const allocate = (label: string) => scratch.floats((pages * pageBytes(width, dtype)) / 4, label);
    return [layer, { keys: allocate("key cache"), values: allocate("value cache"), width }] as const;
  });
  return { dtype, sequences, pages, layers: new Map(layers) };
}

/** Bytes of a page of the keys or the values of one layer. */
function pageBytes(width: number, dtype: CacheDtype): number {
  return PAGE_TOKENS * width * CACHE_BYTES[dtype];
}

/** Bytes of a page of the keys or the values, for each layer. */
function layerPageBytes({ config, options: { dtype = "float32" } }: Shape): number[] {
  return [...cachedWidths(config).values()].map((width) => pageBytes(width, dtype));
}

function affordablePages(shape: Shape, device: Device): number {
  const { bytes = CACHE_SHARE * freeBytes(device) } = shape.options;
  const bindable = Math.floor(device.info.limits.maxBindingBytes / Math.max(...layerPageBytes(shape)));
  return Math.min(pagesWithin(bytes, shape), bindable);
}

/** Pages whose buffers, of keys and of values in each layer, take at most `bytes` together. */
function pagesWithin(bytes: number, shape: Shape): number {
  const layers = layerPageBytes(shape);
  const total = layers.reduce((sum, each) => sum + each, 0);
  // Of the layers' shares, each rounded down to what a buffer can hold.
  return Math.min(...layers.map((each) => Math.floor(largestWithin(bytes / (2 * (total / each))) / each)));
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
    const buffers = layerPageBytes(shape).map((each) => capacityFor(largest * each));
    const size = formatBytes(2 * buffers.reduce((sum, each) => sum + each, 0));
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
  { at, projected, rows, places }: { at: KeyValueRows; projected: Buffer; rows: number; places: Buffer },
): void {
  const { keys, values } = cache.layers.get(at.layer)!;
  const { width, stride, keyOffset, valueOffset } = at;
  device.dispatch(cacheAppend[cache.dtype], {
    buffers: { k: projected, v: projected, places, keys, values },
    params: { rows, width, k_stride: stride, k_offset: keyOffset, v_stride: stride, v_offset: valueOffset },
  });
}

/** k and v of tokens, [rows, KV D] each, as the cache keeps them at `places`. Records only. */
export function gatherFromCache(
  cache: KeyValueCache,
  { layer, rows, places, scratch }: { layer: number; rows: number; places: Buffer; scratch: Scratch },
): { k: Buffer; v: Buffer } {
  const { keys, values, width } = cache.layers.get(layer)!;
  const k = scratch.floats(rows * width, "gathered keys");
  const v = scratch.floats(rows * width, "gathered values");
  scratch.device.dispatch(cacheGather[cache.dtype], {
    buffers: { places, keys, values, k, v },
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
export function copyPages(cache: KeyValueCache, copies: readonly PageCopy[], { scratch }: { scratch: Scratch }): void {
  if (copies.length === 0) return;
  const table = scratch.upload(Uint32Array.from(copies.flatMap(({ from, to }) => [from, to])), "page copies");
  for (const { keys, values, width } of cache.layers.values())
    scratch.device.dispatch(cacheCopy, {
      buffers: { copies: table, keys, values },
      params: { copies: copies.length, page_quads: pageBytes(width, cache.dtype) / 16 },
    });
}
