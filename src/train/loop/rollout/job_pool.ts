/** Asynchronous jobs, at most `limit` at once. They start in the order in which they are added; none after a failure. */
export class JobPool {
  private readonly limit: number;
  private readonly waiting: (() => Promise<void>)[] = [];
  private running = 0;
  private failure: { readonly error: unknown } | undefined;
  private onEnd: () => void = () => {};

  constructor(limit: number) {
    this.limit = limit;
  }

  add(job: () => Promise<void>): void {
    this.waiting.push(job);
    this.fill();
  }

  /**
   * Waits until `isReady()`, or until no job runs.
   * @throws the signal's reason, or the first error of a job
   */
  async until(isReady: () => boolean, signal?: AbortSignal): Promise<void> {
    while (!isReady()) {
      signal?.throwIfAborted();
      if (this.failure) throw this.failure.error;
      if (this.running === 0) return;
      await this.jobEnd();
    }
  }

  /** Waits until no job runs. @throws the first error of a job */
  async finish(): Promise<void> {
    while (this.running > 0) await this.jobEnd();
    if (this.failure) throw this.failure.error;
  }

  /** Drops the waiting jobs and waits for the running ones. */
  async stop(): Promise<void> {
    this.waiting.length = 0;
    while (this.running > 0) await this.jobEnd();
  }

  private fill(): void {
    while (!this.failure && this.running < this.limit && this.waiting.length > 0)
      void this.start(this.waiting.shift() as () => Promise<void>);
  }

  private async start(job: () => Promise<void>): Promise<void> {
    this.running++;
    try {
      await job();
    } catch (error) {
      this.failure ??= { error };
    }
    this.running--;
    this.fill();
    this.onEnd();
  }

  private jobEnd(): Promise<void> {
    return new Promise((resolve) => {
      this.onEnd = resolve;
    });
  }
}
