/** Looks whether too many of a cluster's rewards and rollouts fail: trainers there leave out failed rollouts and go on. */

/** Ended and failed so far. */
export interface Counts {
  readonly ended: number;
  readonly failed: number;
}

/** The share is taken over this many of the latest, */
const WINDOW = 256;
/** once so many have ended. */
const LEAST = 32;

export class FailureWatch {
  private readonly most: number;
  private readonly latest: Counts[] = [];
  private before: Counts = { ended: 0, failed: 0 };

  /** @param most share of failures, in [0, 1]; 1 = no limit */
  constructor(most: number) {
    this.most = most;
  }

  /** Takes the counts of now. @returns those of the window where its share of failures is too large */
  see(now: Counts): Counts | undefined {
    const since = { ended: now.ended - this.before.ended, failed: now.failed - this.before.failed };
    this.before = now;
    if (since.ended > 0) this.latest.push(since);
    // The oldest parts go while the rest fill the window.
    while (this.latest.length > 1 && sum(this.latest.slice(1)).ended >= WINDOW) this.latest.shift();
    const { ended, failed } = sum(this.latest);
    return ended >= LEAST && failed > this.most * ended ? { ended, failed } : undefined;
  }
}

function sum(counts: readonly Counts[]): Counts {
  return counts.reduce((total, { ended, failed }) => ({ ended: total.ended + ended, failed: total.failed + failed }), {
    ended: 0,
    failed: 0,
  });
}
