/** How the key/value cache of sampling lies in memory: pages of tokens, their numbers in float32 or bfloat16. */
import { decodeFloats, encodeBf16 } from "../dtype.ts";

/** How keys and values are stored. bfloat16 rounds them to 8 significant bits. */
export type CacheDtype = "float32" | "bfloat16";

/** Tokens per page; `PAGE` in shaders/decode/parts/pages.wgsl. */
export const PAGE_TOKENS = 16;

/** Bytes per element. */
export const CACHE_BYTES = { float32: 4, bfloat16: 2 } as const;

/** Element type of the cache's buffers: a u32 holds two bfloat16 numbers, the even one in its low half. */
export const CACHE_ELEMENT = { float32: "f32", bfloat16: "u32" } as const;

/** A kernel for each type of number, from the names of their modules. */
export function byCacheDtype<T>(
  names: Readonly<Record<CacheDtype, string>>,
  make: (dtype: CacheDtype, name: string) => T,
): Readonly<Record<CacheDtype, T>> {
  return { float32: make("float32", names.float32), bfloat16: make("bfloat16", names.bfloat16) };
}

type CacheView = Float32Array | Uint32Array;

/** Elements [from, from + length) of a cache. Both are even. */
export function readCache(cache: CacheView, from: number, length: number): Float32Array {
  if (cache instanceof Float32Array) return cache.subarray(from, from + length);
  const { buffer, byteOffset } = cache;
  return decodeFloats(new Uint8Array(buffer, byteOffset + from * 2, length * 2), "BF16")!;
}

/** Stores elements from `to` on, rounded as the cache's type requires. Their number and `to` are even. */
export function writeCache(cache: CacheView, to: number, values: Float32Array): void {
  if (cache instanceof Float32Array) cache.set(values, to);
  else cache.set(new Uint32Array(encodeBf16(values).buffer), to / 2);
}

/** A page table of rows: line r holds the pages of row r's positions in order, `row_pages` of them. */
export interface PageTable {
  readonly pages: Uint32Array;
  readonly row_pages: number;
}

/** Returns where the position of a row lies, in tokens of the whole cache. */
export function cacheIndex({ pages, row_pages }: PageTable, row: number, position: number): number {
  return pages[row * row_pages + Math.floor(position / PAGE_TOKENS)]! * PAGE_TOKENS + (position % PAGE_TOKENS);
}

/** The first position that a row sees: the last `window` ones up to its own. */
export function firstSeen(position: number, window: number): number {
  return Math.max(position + 1 - window, 0);
}
