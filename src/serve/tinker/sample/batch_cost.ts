/** The duration of sampling batches, fitted to those that ran: it bounds the next batch, so that other clients get a turn. */

/** A batch may always take this long, ms. */
const BATCH_MS = 1000;
/** Decay per batch of older observations: the first batches compile kernels. */
const DECAY = 0.8;

/** Decoding steps (the longest sequence), and the tokens of all sequences. */
export interface BatchSize {
  readonly steps: number;
  readonly tokens: number;
}

/**
 * Fits ms = a * steps + b * tokens by least squares. If a step costs the same for any number of sequences, b is near 0
 * and batches may be large; if each token costs, large batches save nothing.
 */
export class BatchCost {
  private ss = 0;
  private st = 0;
  private tt = 0;
  private sm = 0;
  private tm = 0;

  observe({ steps, tokens }: BatchSize, ms: number): void {
    const decayed = (sum: number, more: number) => DECAY * sum + more;
    this.ss = decayed(this.ss, steps * steps);
    this.st = decayed(this.st, steps * tokens);
    this.tt = decayed(this.tt, tokens * tokens);
    this.sm = decayed(this.sm, steps * ms);
    this.tm = decayed(this.tm, tokens * ms);
  }

  /** False for a batch of more than a second that takes more than twice as long as its longest sequence alone. */
  allows({ steps, tokens }: BatchSize): boolean {
    const [perStep, perToken] = this.costs();
    return perStep * steps + perToken * tokens <= Math.max(BATCH_MS, 2 * perStep * steps);
  }

  private costs(): readonly [perStep: number, perToken: number] {
    if (this.tt === 0) return [0, 0];
    const determinant = this.ss * this.tt - this.st * this.st;
    // Batches of one shape cannot separate the two costs. All cost goes to tokens, which gives the next batch another shape.
    if (determinant < 1e-6 * this.ss * this.tt) return [0, this.tm / this.tt];
    const perStep = (this.sm * this.tt - this.tm * this.st) / determinant;
    const perToken = (this.tm * this.ss - this.sm * this.st) / determinant;
    if (perToken < 0) return [this.sm / this.ss, 0];
    return perStep < 0 ? [0, this.tm / this.tt] : [perStep, perToken];
  }
}
