/**
 * A cache of recently used values in two generations: when the younger is full, it replaces the older. A value used
 * again within `size` other values is found; at most twice `size` values are held. Values are never undefined.
 */
export class RecentCache<K, V extends NonNullable<unknown> | null> {
  private readonly size: number;
  private younger = new Map<K, V>();
  private older = new Map<K, V>();

  constructor(size: number) {
    this.size = size;
  }

  /** @throws what `make` throws; nothing is kept then */
  get(key: K, make: () => V): V {
    const younger = this.younger.get(key);
    if (younger !== undefined) return younger;
    const old = this.older.get(key);
    const value = old === undefined ? make() : old;
    this.set(key, value);
    return value;
  }

  /** Keeps a value, in place of one that has the key. */
  set(key: K, value: V): void {
    if (this.younger.size >= this.size) [this.older, this.younger] = [this.younger, new Map()];
    this.younger.set(key, value);
  }

  get count(): number {
    return this.younger.size + this.older.size;
  }

  clear(): void {
    this.younger.clear();
    this.older.clear();
  }
}
