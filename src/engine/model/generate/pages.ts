/** Pages of the cache on the host: how many a request needs, and which are free. */
import { PAGE_TOKENS } from "../kernels/cache_storage.ts";

/** Pages that a request fills. */
export interface Need {
  /** The same for requests with the same prompt. */
  readonly key: string;
  /** Pages with the prompt alone: all requests with that prompt share them. */
  readonly shared: number;
  /** Pages with the tokens drawn, and with the end of the prompt. */
  readonly own: number;
}

/** Returns the pages that a prompt and `limit` drawn tokens need. The last one drawn is never read: it needs no place. */
export function pageNeed(key: string, { prompt, limit }: { prompt: number; limit: number }): Need {
  const shared = Math.floor(prompt / PAGE_TOKENS);
  return { key, shared, own: Math.ceil((prompt + limit - 1) / PAGE_TOKENS) - shared };
}

/** Pages that no `sequences` of these requests exceed together. */
export function usablePages(needs: readonly Need[], sequences: number): number {
  const prompts = new Map(needs.map(({ key, shared }) => [key, shared]));
  const largest = (pages: number[]) =>
    pages
      .sort((a, b) => b - a)
      .slice(0, sequences)
      .reduce((sum, count) => sum + count, 0);
  return largest(needs.map(({ own: ownPages }) => ownPages)) + largest([...prompts.values()]);
}

/** The free pages of a cache. */
export class PagePool {
  private readonly unused: number[];

  constructor(pages: number) {
    this.unused = Array.from({ length: pages }, (_, i) => pages - 1 - i);
  }

  get free(): number {
    return this.unused.length;
  }

  /** Takes `count` pages, at most as many as are free. */
  take(count: number): number[] {
    return Array.from({ length: count }, () => this.unused.pop()!);
  }

  give(pages: readonly number[]): void {
    this.unused.push(...pages);
  }
}
