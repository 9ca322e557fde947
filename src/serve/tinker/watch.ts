/** A limit on silence: work that is aborted when nothing has happened for some time, or with another signal. */

export interface ServiceWatchOptions {
  /** The longest time between two signs of life. */
  readonly ms: number;
  /** Aborts the work too, with its reason. */
  readonly stop: AbortSignal;
}

export class Watch {
  private readonly controller = new AbortController();
  private readonly ms: number;
  private timer: ReturnType<typeof setTimeout> | undefined;

  private constructor(ms: number) {
    this.ms = ms;
    this.alive();
  }

  /** Runs work whose steps call {@link alive}, and which ends when {@link signal} aborts. */
  static async during<T>(work: (watch: Watch) => Promise<T>, { ms, stop }: ServiceWatchOptions): Promise<T> {
    stop.throwIfAborted();
    const watch = new Watch(ms);
    const end = () => watch.controller.abort(stop.reason);
    stop.addEventListener("abort", end);
    try {
      return await work(watch);
    } finally {
      clearTimeout(watch.timer);
      stop.removeEventListener("abort", end);
    }
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** A sign of life. */
  alive(): void {
    clearTimeout(this.timer);
    const late = new Error(`nothing arrives for ${this.ms / 1000} s`);
    this.timer = setTimeout(() => this.controller.abort(late), this.ms);
  }
}
