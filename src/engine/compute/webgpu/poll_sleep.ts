/**
 * Waits for a software GPU without using the core that it computes on. While a promise of Dawn's is pending, its Node
 * binding polls in a busy loop; a short sleep in each turn of the event loop leaves the core to the driver's threads
 * (measured on two cores: matmul from 9 to 20 GFLOP/s).
 */

/** Turns without a sleep, so that short work returns at once. */
const BUSY_TURNS = 20;
const FIRST_SLEEP_MS = 0.05;
const LONGEST_SLEEP_MS = 0.5;

interface Runtime {
  readonly setImmediate?: (run: () => void) => unknown;
}

export class PollSleep {
  private waiting = 0;
  private turns = 0;
  private ticking = false;
  private readonly cell: Int32Array | undefined;

  /** @param enabled false where waiting costs nothing (a GPU); pages may not sleep at all */
  constructor(enabled: boolean) {
    const able = enabled && (globalThis as Runtime).setImmediate && typeof SharedArrayBuffer !== "undefined";
    this.cell = able ? new Int32Array(new SharedArrayBuffer(4)) : undefined;
  }

  /** Waits for `work`, sleeping between polls. */
  async during<T>(work: Promise<T>): Promise<T> {
    if (!this.cell) return work;
    this.turns = 0;
    this.waiting++;
    if (!this.ticking) this.turn();
    try {
      return await work;
    } finally {
      this.waiting--;
    }
  }

  private turn(): void {
    this.ticking = true;
    (globalThis as Runtime).setImmediate?.(() => {
      this.ticking = false;
      if (this.waiting === 0) return;
      const sleeps = this.turns++ - BUSY_TURNS;
      if (sleeps >= 0) Atomics.wait(this.cell!, 0, 0, Math.min(FIRST_SLEEP_MS * (1 + sleeps / 4), LONGEST_SLEEP_MS));
      this.turn();
    });
  }
}
