/** Fair sharing of one device: the session that has used the least of its time runs next. */

/** Work that waits for the device: a trainer's requests, or the requests to sample from one policy. */
export interface WorkQueue {
  readonly name: string;
  /** The sessions with work in this queue. */
  owners(): Iterable<string>;
  /** Whether other queues should run first for now, even where they have used more, because its turn would unload what they use. Absent: never. */
  isDeferred?(): boolean;
  /** Whether its next turn may run while another queue's turn pauses, because it takes nothing that such a turn holds. Absent: never. */
  fitsBetween?(): boolean;
  /**
   * Runs a bounded piece of work, this owner's first. Handles its own failures.
   * @returns each session's share of the work, in any unit; undefined when all of it is the owner's.
   */
  turn(owner: string): Promise<ReadonlyMap<string, number> | undefined>;
}

/**
 * Runs the turns of all queues one after another. A session's share counts by the device time its work took, not by its
 * number of requests or queues. A session that was idle starts level with the others: unused time is not saved up.
 */
export class Scheduler {
  private readonly waiting = new Set<WorkQueue>();
  private readonly urgent: (() => Promise<void>)[] = [];
  /** Milliseconds by session. */
  private readonly used = new Map<string, number>();
  /** The sessions with work. */
  private active = new Set<string>();
  /** The number of a queue's latest turn. */
  private readonly latest = new WeakMap<WorkQueue, number>();
  private count = 0;
  private running: Promise<void> | undefined;
  private stopped = false;
  private readonly now: () => number;
  /** Milliseconds of all turns so far. */
  busyMs = 0;
  /** The queue whose turn runs. */
  current: WorkQueue | undefined;
  /** Time until which the running turn has been charged. */
  private chargedTo = 0;

  /** Called before each turn; a promise is awaited, and must not reject. */
  prepare: (() => Promise<void> | undefined) | undefined;

  /** @param now milliseconds; tests pass their own. */
  constructor(now: () => number = () => performance.now()) {
    this.now = now;
  }

  /** Announces a session's work in a queue. */
  wake(queue: WorkQueue, owner: string): void {
    if (!this.active.has(owner)) {
      const level = Math.min(...[...this.active].map((active) => this.used.get(active) ?? 0));
      const used = this.used.get(owner) ?? 0;
      this.used.set(owner, Number.isFinite(level) ? Math.max(used, level) : used);
      this.active.add(owner);
    }
    this.waiting.add(queue);
    this.running ??= this.run();
  }

  /** Runs urgent work right after the current turn, also after {@link stop}. */
  first<T>(work: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.urgent.push(() => work().then(resolve, reject));
      this.running ??= this.run();
    });
  }

  /** Whether urgent work or another queue waits: a turn that could go on should end. */
  waitsBesides(queue: WorkQueue): boolean {
    if (this.urgent.length > 0 || this.stopped) return true;
    for (const other of this.waiting) if (other !== queue && !isEmpty(other.owners())) return true;
    return false;
  }

  /**
   * Pauses the running turn: charges its time so far, and runs turns that fit between its parts, for sessions that have used no more
   * time than any that the turn works for.
   * @param shares as {@link WorkQueue.turn} returns them, of this time.
   * @returns whether the turn's queue would be chosen again: then the turn may take on more of its work.
   */
  async pause(shares: ReadonlyMap<string, number>): Promise<boolean> {
    this.charge(shares);
    const { current } = this;
    for (;;) {
      if (this.urgent.length > 0 || this.stopped) return false;
      const next = this.nextQueue(Math.min(...[...shares.keys()].map((who) => this.used.get(who) ?? 0)));
      if (next === undefined || next.queue === current || !next.queue.fitsBetween?.()) return next?.queue === current;
      await this.runTurn(next);
      this.current = current;
    }
  }

  /** Forgets a session that has ended. */
  forget(owner: string): void {
    this.used.delete(owner);
  }

  /** Starts no further turn. @returns when the current one has ended. */
  async stop(): Promise<void> {
    this.stopped = true;
    await this.running;
  }

  /** Resolves when no queue has work. */
  async idle(): Promise<void> {
    while (this.running) await this.running;
  }

  private async run(): Promise<void> {
    // Requests that arrive in the same tick share the first turn.
    await Promise.resolve();
    for (;;) {
      const ready = this.prepare?.();
      if (ready) await ready;
      const work = this.next();
      if (!work) break;
      await work();
    }
    this.running = undefined;
  }

  private next(): (() => Promise<void>) | undefined {
    const urgent = this.urgent.shift();
    if (urgent) return urgent;
    const chosen = this.stopped ? undefined : this.nextQueue();
    return chosen && (() => this.runTurn(chosen));
  }

  private async runTurn({ queue, owner }: { queue: WorkQueue; owner: string }): Promise<void> {
    this.chargedTo = this.now();
    this.current = queue;
    this.latest.set(queue, ++this.count);
    const shares = (await queue.turn(owner)) ?? new Map([[owner, 1]]);
    this.current = undefined;
    this.charge(shares);
  }

  private charge(shares: ReadonlyMap<string, number>): void {
    const now = this.now();
    const spent = now - this.chargedTo;
    this.chargedTo = now;
    this.busyMs += spent;
    const whole = [...shares.values()].reduce((sum, share) => sum + share, 0) || 1;
    for (const [who, share] of shares)
      if (this.used.has(who)) this.used.set(who, (this.used.get(who) ?? 0) + (spent * share) / whole);
  }

  /**
   * The session with the least time, and the one of its queues that has waited longest; deferred queues last.
   * @param mostUsed during a pause: sessions that have used more wait for the end of the turn, where theirs would fit into it.
   */
  private nextQueue(mostUsed = Number.POSITIVE_INFINITY): Candidate | undefined {
    const active = new Set<string>();
    let best: Candidate | undefined;
    for (const queue of this.waiting) {
      const owners = [...queue.owners()];
      if (owners.length === 0) this.waiting.delete(queue);
      const latest = this.latest.get(queue) ?? 0;
      const isDeferred = queue.isDeferred?.() === true;
      for (const owner of owners) {
        active.add(owner);
        const used = this.used.get(owner) ?? 0;
        const waits = used > mostUsed && queue.fitsBetween?.() === true;
        const candidate = { queue, owner, isDeferred, used, latest };
        if (!waits && (!best || isBefore(candidate, best))) best = candidate;
      }
    }
    this.active = active;
    return best;
  }
}

interface Candidate {
  readonly queue: WorkQueue;
  readonly owner: string;
  readonly isDeferred: boolean;
  readonly used: number;
  readonly latest: number;
}

function isBefore(candidate: Candidate, other: Candidate): boolean {
  if (candidate.isDeferred !== other.isDeferred) return other.isDeferred;
  return candidate.used === other.used ? candidate.latest < other.latest : candidate.used < other.used;
}

function isEmpty(items: Iterable<string>): boolean {
  for (const _ of items) return false;
  return true;
}
