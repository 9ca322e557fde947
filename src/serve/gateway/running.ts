/** The calls that a gateway answers, so that one that stops can wait for them, or end them. */

/** A call that is being answered. */
export interface RunningCall {
  /** Aborts with the caller, with the session, and when the gateway ends its calls. */
  readonly signal: AbortSignal;
  /** The answer is complete, read or not, or given up. Further calls do nothing. */
  done(): void;
}

export class RunningCalls {
  private readonly calls = new Map<
    RunningCall,
    { readonly ending: AbortController; readonly session?: string | undefined }
  >();
  /** Running work, with the session that it is for. */
  private readonly work = new Map<Promise<unknown>, string | undefined>();
  /** Reason why all calls were ended; later ones end at once. */
  private ended: Error | undefined;
  private waiting: (() => void)[] = [];

  /** Calls whose answer is not complete. */
  get count(): number {
    return this.calls.size;
  }

  /** Calls whose answer or trace is not complete. The work of a call in this process goes on when its caller has left. */
  get unfinished(): number {
    return Math.max(this.calls.size, this.work.size);
  }

  /**
   * A call that ends when one of the signals aborts. Signals may outlive many calls, which `AbortSignal.any` would leave
   * behind in them: the listeners go with the call.
   */
  enter(signals: readonly AbortSignal[], session?: string): RunningCall {
    const ending = new AbortController();
    const follow = ({ target }: { readonly target: unknown }) => ending.abort((target as AbortSignal).reason);
    if (this.ended) ending.abort(this.ended);
    for (const signal of signals) {
      if (signal.aborted) ending.abort(signal.reason);
      else signal.addEventListener("abort", follow, { once: true });
    }
    const call = {
      signal: ending.signal,
      done: () => {
        if (!this.calls.delete(call)) return;
        for (const signal of signals) signal.removeEventListener("abort", follow);
        this.wake();
      },
    };
    this.calls.set(call, { ending, session });
    return call;
  }

  /** Work that goes on when its call is done: the sampling of a caller that left, until its trace is written. */
  track<T>(work: Promise<T>, session?: string): Promise<T> {
    const settled = work.then(
      () => {},
      () => {},
    );
    this.work.set(settled, session);
    void settled.then(() => {
      this.work.delete(settled);
      this.wake();
    });
    return work;
  }

  /** Ends every call, also one whose body still arrives. */
  abort(reason: Error): void {
    this.ended = reason;
    for (const { ending } of this.calls.values()) ending.abort(reason);
  }

  /**
   * Resolves when no call runs and no work goes on, at the latest after `ms`.
   * @param sessions default: all, and calls without a session
   * @returns whether all has settled
   */
  async settled(ms: number, sessions?: ReadonlySet<string>): Promise<boolean> {
    const limit = performance.now() + ms;
    for (let left = ms; !this.isIdle(sessions) && left > 0; left = limit - performance.now()) await this.change(left);
    return this.isIdle(sessions);
  }

  private isIdle(sessions: ReadonlySet<string> | undefined): boolean {
    if (!sessions) return this.calls.size === 0 && this.work.size === 0;
    const busy = [...[...this.calls.values()].map(({ session }) => session), ...this.work.values()];
    return !busy.some((session) => session !== undefined && sessions.has(session));
  }

  /** Resolves when a call or work ends, or after `ms`. */
  private change(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.waiting.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  private wake(): void {
    for (const wake of this.waiting.splice(0)) wake();
  }
}
