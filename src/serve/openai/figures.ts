/** What a served model has done: totals, rates, and how long requests took. */
import { Counter } from "../activity.ts";

/** Upper bounds of a histogram of durations, seconds. */
const BOUNDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120] as const;

/** Durations by size, as Prometheus takes them. */
export class Histogram {
  readonly bounds: readonly number[] = BOUNDS;
  /** Durations up to each bound, and all. */
  readonly counts: number[] = new Array(BOUNDS.length + 1).fill(0);
  sum = 0;

  observe(seconds: number): void {
    this.sum += seconds;
    for (const [i, bound] of BOUNDS.entries()) if (seconds <= bound) this.counts[i]!++;
    this.counts[BOUNDS.length]!++;
  }
}

export class ServingFigures {
  readonly startedAt = Date.now();
  readonly sampledTokens = new Counter();
  readonly promptTokens = new Counter();
  readonly requests = new Counter();
  readonly batches = new Counter();
  readonly sequences = new Counter();
  /** Requests that ended without a reply, by reason: `cancelled`, `failed`, `refused`. */
  readonly failures = new Map<string, number>();
  /** From the request to its first token, and to its end. */
  readonly firstTokenSeconds = new Histogram();
  readonly requestSeconds = new Histogram();

  /** Tokens are counted when they are drawn, because a batch that others join may last. */
  batch({ sequences }: { sequences: number }): void {
    this.batches.add(1);
    this.sequences.add(sequences);
  }

  failed(reason: string): void {
    this.failures.set(reason, (this.failures.get(reason) ?? 0) + 1);
  }
}
