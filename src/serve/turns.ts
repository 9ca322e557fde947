/** Turns on one device: whoever has had the least time of it goes next. */

/** One who wants the device: a trainer's requests in their order, or the requests to sample from one policy. */
export interface Lane {
  readonly name: string;
  hasWork(): boolean;
  /** A bounded piece of work. Deals with its own failures. */
  turn(): Promise<void>;
}

/**
 * Runs the turns of all lanes one after another. Time counts, not turns: a lane with long ones goes less often. A lane
 * that had nothing to do for a while starts level with the others: what it left unused is not saved up.
 */
export class Turns {
  private readonly waiting = new Set<Lane>();
  private readonly used = new WeakMap<Lane, number>();
  private running: Promise<void> | undefined;
  private stopped = false;
  private readonly now: () => number;
  /** Milliseconds of turns, all together. */
  busyMs = 0;
  /** The lane whose turn it is. */
  current: Lane | undefined;

  /** @param now milliseconds; tests pass their own. */
  constructor(now: () => number = () => performance.now()) {
    this.now = now;
  }

  /** Says that a lane has work. */
  wake(lane: Lane): void {
    if (this.waiting.has(lane)) return;
    const level = Math.min(...[...this.waiting].map((it) => this.used.get(it) ?? 0));
    const own = this.used.get(lane) ?? 0;
    this.used.set(lane, Number.isFinite(level) ? Math.max(own, level) : own);
    this.waiting.add(lane);
    this.running ??= this.run();
  }

  /** Takes no further turns. @returns when the one in hand is over. */
  async stop(): Promise<void> {
    this.stopped = true;
    await this.running;
  }

  /** Resolves when no lane has work. */
  async idle(): Promise<void> {
    while (this.running) await this.running;
  }

  private async run(): Promise<void> {
    // Requests that arrive in the same breath are then there at the first turn.
    await Promise.resolve();
    for (let lane = this.next(); lane && !this.stopped; lane = this.next()) {
      const started = this.now();
      this.current = lane;
      await lane.turn();
      this.current = undefined;
      const spent = this.now() - started;
      this.busyMs += spent;
      this.used.set(lane, (this.used.get(lane) ?? 0) + spent);
    }
    this.running = undefined;
  }

  private next(): Lane | undefined {
    let best: Lane | undefined;
    for (const lane of this.waiting) {
      if (!lane.hasWork()) this.waiting.delete(lane);
      else if (!best || (this.used.get(lane) ?? 0) < (this.used.get(best) ?? 0)) best = lane;
    }
    return best;
  }
}
