/** Signals of calls that end together. One signal for all of them would have a listener of each, which Node takes for a leak. */
export class SharedAbort {
  private readonly open = new Set<AbortController>();
  private readonly caller: AbortSignal | undefined;
  private readonly end = () => this.abort(this.caller?.reason);
  private ended: { readonly reason: unknown } | undefined;

  /** @param caller its abort ends the calls, until {@link leave} */
  constructor(caller?: AbortSignal) {
    this.caller = caller;
    if (caller?.aborted) this.end();
    caller?.addEventListener("abort", this.end, { once: true });
  }

  get isEnded(): boolean {
    return this.ended !== undefined;
  }

  /** Returns the signal of one more call. */
  signal(): AbortSignal {
    const controller = new AbortController();
    this.open.add(controller);
    if (this.ended) controller.abort(this.ended.reason);
    return controller.signal;
  }

  /** The first reason counts. */
  abort(reason: unknown): void {
    this.ended ??= { reason };
    for (const controller of this.open) controller.abort(this.ended.reason);
  }

  /** A caller's signal may outlive many calls, and `AbortSignal.any` leaves an entry of each in it. */
  leave(): void {
    this.caller?.removeEventListener("abort", this.end);
  }
}
