/** Curves of any length in bounded memory: neighbouring points are averaged when there are too many. */
import type { CurveData } from "./page_data.ts";

/** Points kept per curve: more than a chart is wide. */
const POINTS = 400;

export class Curve {
  private readonly limit: number;
  private x: number[] = [];
  private y: number[] = [];
  /** Values that one point stands for. */
  private width = 1;
  /** Values gathered for the next point. */
  private open = { count: 0, x: 0, y: 0 };
  private total = { count: 0, sum: 0, first: 0, last: 0, lastX: 0, min: Infinity, max: -Infinity };

  constructor(limit = POINTS) {
    this.limit = limit;
  }

  /** Values that are not finite are left out. */
  add(x: number, y: number): void {
    if (!Number.isFinite(y)) return;
    const { total, open } = this;
    if (total.count === 0) total.first = y;
    total.count++;
    total.sum += y;
    total.last = y;
    total.lastX = x;
    total.min = Math.min(total.min, y);
    total.max = Math.max(total.max, y);
    open.count++;
    open.x += x;
    open.y += y;
    if (open.count === this.width) this.close();
  }

  private close(): void {
    const { count, x, y } = this.open;
    this.x.push(x / count);
    this.y.push(y / count);
    this.open = { count: 0, x: 0, y: 0 };
    if (this.x.length < this.limit) return;
    this.x = pairMeans(this.x);
    this.y = pairMeans(this.y);
    this.width *= 2;
  }

  /** Ends at the last step, also where the last point is a mean. */
  data(): CurveData {
    const { count, sum, first, last, lastX, min, max } = this.total;
    const { open } = this;
    const y = open.count > 0 ? [...this.y, open.y / open.count] : this.y;
    const x = [...this.x.slice(0, y.length - 1), ...(count > 0 ? [lastX] : [])];
    return { x: x.map(rounded), y: y.map(rounded), count, sum, first, last, min, max };
  }
}

function pairMeans(values: readonly number[]): number[] {
  return Array.from({ length: values.length >> 1 }, (_, i) => (values[2 * i]! + values[2 * i + 1]!) / 2);
}

/** Enough for the eye; half the bytes. */
function rounded(value: number): number {
  return Number(value.toPrecision(6));
}

/** Some of any number of items, evenly spread, and always the last. */
export class Sampled<T> {
  private readonly limit: number;
  private kept: T[] = [];
  private stride = 1;
  private seen = 0;
  private last: T | undefined;

  constructor(limit: number) {
    this.limit = limit;
  }

  add(item: T): void {
    this.last = item;
    if (this.seen++ % this.stride !== 0) return;
    this.kept.push(item);
    if (this.kept.length < this.limit) return;
    this.kept = this.kept.filter((_, i) => i % 2 === 0);
    this.stride *= 2;
  }

  items(): readonly T[] {
    if (this.last === undefined || this.kept.at(-1) === this.last) return this.kept;
    return [...this.kept, this.last];
  }
}
