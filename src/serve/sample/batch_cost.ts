/** How long batches of samples take, learnt from those that ran, so that none keeps other clients waiting for long. */

/** What a batch may take, ms, where a smaller one would be quicker. */
const BATCH_MS = 1000;
/** Weight of what was seen, at the next batch: the first ones compile kernels. */
const MEMORY = 0.8;

/** Steps of the longest sequence, and tokens of all sequences. */
export interface BatchSize {
  readonly steps: number;
  readonly tokens: number;
}

/**
 * Fits ms = a * steps + b * tokens by least squares. On a device where a step costs the same whatever the number of
 * sequences, b is near 0 and batches may be large; where each token costs, large ones save nothing.
 */
export class BatchCost {
  private ss = 0;
  private st = 0;
  private tt = 0;
  private sm = 0;
  private tm = 0;

  observe({ steps, tokens }: BatchSize, ms: number): void {
    const forget = (sum: number, more: number) => MEMORY * sum + more;
    this.ss = forget(this.ss, steps * steps);
    this.st = forget(this.st, steps * tokens);
    this.tt = forget(this.tt, tokens * tokens);
    this.sm = forget(this.sm, steps * ms);
    this.tm = forget(this.tm, tokens * ms);
  }

  /** False where the batch would take over a second, and over twice the time that its longest sequence takes alone. */
  allows({ steps, tokens }: BatchSize): boolean {
    const [perStep, perToken] = this.costs();
    return perStep * steps + perToken * tokens <= Math.max(BATCH_MS, 2 * perStep * steps);
  }

  private costs(): readonly [perStep: number, perToken: number] {
    if (this.tt === 0) return [0, 0];
    const determinant = this.ss * this.tt - this.st * this.st;
    // Batches of one shape do not tell the two apart. As if by token: the next one is then of another shape.
    if (determinant < 1e-6 * this.ss * this.tt) return [0, this.tm / this.tt];
    const perStep = (this.sm * this.tt - this.tm * this.st) / determinant;
    const perToken = (this.tm * this.ss - this.sm * this.st) / determinant;
    if (perToken < 0) return [this.sm / this.ss, 0];
    return perStep < 0 ? [0, this.tm / this.tt] : [perStep, perToken];
  }
}
