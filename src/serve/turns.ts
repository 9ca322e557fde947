/** Turns on one device: whoever has had the least time of it goes next. */

/** Where work for the device waits: a trainer's requests in their order, or the requests to sample from one policy. */
export interface Lane {
  readonly name: string;
  /** The sessions that have work here. */
  owners(): Iterable<string>;
  /**
   * A bounded piece of work, this owner's first. Deals with its own failures.
   * @returns what part of it was whose, in any unit; nothing where all was the owner's.
   */
  turn(owner: string): Promise<ReadonlyMap<string, number> | undefined>;
}

/**
 * Runs the turns of all lanes one after another. Sessions share the device's time: what counts is the time that a
 * session's work took, not how many requests or lanes it has. A session that had nothing to do for a while starts level
 * with the others: what it left unused is not saved up.
 */
export class Turns {
  private readonly waiting = new Set<Lane>();
  private readonly ahead: (() => Promise<void>)[] = [];
  /** Milliseconds by session. */
  private readonly used = new Map<string, number>();
  /** The sessions that have work. */
  private active = new Set<string>();
  /** When a lane had its last turn, as a count of turns. */
  private readonly last = new WeakMap<Lane, number>();
  private count = 0;
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

  /** Says that a session has work in a lane. */
  wake(lane: Lane, owner: string): void {
    if (!this.active.has(owner)) {
      const level = Math.min(...[...this.active].map((it) => this.used.get(it) ?? 0));
      const own = this.used.get(owner) ?? 0;
      this.used.set(owner, Number.isFinite(level) ? Math.max(own, level) : own);
      this.active.add(owner);
    }
    this.waiting.add(lane);
    this.running ??= this.run();
  }

  /** Does work that must not wait for a queue: it comes after the turn in hand, also when no turns are taken any more. */
  first<T>(work: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.ahead.push(() => work().then(resolve, reject));
      this.running ??= this.run();
    });
  }

  /** Forgets a session that has ended. */
  forget(owner: string): void {
    this.used.delete(owner);
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
    for (let work = this.next(); work; work = this.next()) await work();
    this.running = undefined;
  }

  private next(): (() => Promise<void>) | undefined {
    const ahead = this.ahead.shift();
    if (ahead) return ahead;
    const lane = this.stopped ? undefined : this.nextLane();
    return lane && (() => this.take(lane));
  }

  private async take({ lane, owner }: { lane: Lane; owner: string }): Promise<void> {
    const started = this.now();
    this.current = lane;
    this.last.set(lane, ++this.count);
    const shares = (await lane.turn(owner)) ?? new Map([[owner, 1]]);
    this.current = undefined;
    const spent = this.now() - started;
    this.busyMs += spent;
    const whole = [...shares.values()].reduce((sum, share) => sum + share, 0) || 1;
    for (const [who, share] of shares)
      if (this.used.has(who)) this.used.set(who, (this.used.get(who) ?? 0) + (spent * share) / whole);
  }

  /** The session with the least time, and the one of its lanes that waits longest. */
  private nextLane(): { lane: Lane; owner: string } | undefined {
    const active = new Set<string>();
    let best: { lane: Lane; owner: string; used: number; last: number } | undefined;
    for (const lane of this.waiting) {
      const owners = [...lane.owners()];
      if (owners.length === 0) this.waiting.delete(lane);
      const last = this.last.get(lane) ?? 0;
      for (const owner of owners) {
        active.add(owner);
        const used = this.used.get(owner) ?? 0;
        if (!best || used < best.used || (used === best.used && last < best.last))
          best = { lane, owner, used, last };
      }
    }
    this.active = active;
    return best;
  }
}
