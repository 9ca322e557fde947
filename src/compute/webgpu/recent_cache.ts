/**
 * A cache of recently used values in two generations: when the younger is full, it replaces the older. A value used
 * again within `size` other values is found; at most twice `size` values are held.
 */
export class RecentCache<V> {
  private readonly size: number;
  private younger = new Map<string, V>();
  private older = new Map<string, V>();

  constructor(size: number) {
    this.size = size;
  }

  get(key: string, make: () => V): V {
    const known = this.younger.get(key);
    if (known !== undefined) return known;
    const value = this.older.get(key) ?? make();
    if (this.younger.size >= this.size) [this.older, this.younger] = [this.younger, new Map()];
    this.younger.set(key, value);
    return value;
  }

  get count(): number {
    return this.younger.size + this.older.size;
  }

  clear(): void {
    this.younger.clear();
    this.older.clear();
  }
}
