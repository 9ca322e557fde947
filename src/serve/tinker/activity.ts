/** The server's work: totals, and rates over the last half minute. */

const WINDOW_SECONDS = 30;

/** A count with a rate. */
export class Counter {
  total = 0;
  private readonly seconds = new Float64Array(WINDOW_SECONDS);
  private last = 0;
  private readonly started = now();

  add(amount: number): void {
    this.total += amount;
    this.advance();
    this.seconds[this.last % WINDOW_SECONDS]! += amount;
  }

  /** Returns the rate per second. */
  get rate(): number {
    this.advance();
    const span = Math.min(Math.max(now() - this.started, 1), WINDOW_SECONDS);
    return this.seconds.reduce((sum, count) => sum + count, 0) / span;
  }

  /** Clears the seconds since the last call. */
  private advance(): void {
    const second = now();
    for (let s = Math.max(this.last + 1, second - WINDOW_SECONDS + 1); s <= second; s++)
      this.seconds[s % WINDOW_SECONDS] = 0;
    this.last = second;
  }
}

function now(): number {
  return Math.floor(Date.now() / 1000);
}

export class Activity {
  readonly sampledTokens = new Counter();
  readonly scoredTokens = new Counter();
  readonly trainedTokens = new Counter();
  readonly batches = new Counter();
  readonly sequences = new Counter();
  /** Answers by route and status: `asample 200`. */
  readonly answers = new Map<string, number>();
  readonly startedAt = Date.now();
  steps = 0;

  /** Counts a part of a batch; the last one has `batches` 1. */
  sampledBatch(batch: { batches: number; sequences: number; sampled: number; scored: number }): void {
    this.batches.add(batch.batches);
    this.sequences.add(batch.sequences);
    this.sampledTokens.add(batch.sampled);
    this.scoredTokens.add(batch.scored);
  }

  trained(tokens: number): void {
    this.trainedTokens.add(tokens);
  }

  answered(route: string, status: number): void {
    const key = `${route} ${status}`;
    this.answers.set(key, (this.answers.get(key) ?? 0) + 1);
  }
}
