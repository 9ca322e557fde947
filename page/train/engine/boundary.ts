/** The moment between two steps: a held run waits there, and what needs whole weights runs there. */

export class Boundary {
  private jobs: (() => Promise<unknown>)[] = [];
  private wake: (() => void) | undefined;
  private isHeld = false;
  private isTraining = false;
  private readonly onHeld: () => void;

  /** @param onHeld called when a held run has come to a boundary */
  constructor(onHeld: () => void) {
    this.onHeld = onHeld;
  }

  /** Work comes to boundaries from here on. */
  begin(): void {
    this.isTraining = true;
  }

  /** The run waits at its next boundary, until {@link release}. */
  hold(): void {
    this.isHeld = true;
  }

  release(): void {
    this.isHeld = false;
    this.wake?.();
  }

  /** Runs the job at the next boundary; at once where nothing trains. */
  between<T>(job: () => Promise<T>): Promise<T> {
    if (!this.isTraining) return job();
    return new Promise((resolve, reject) => {
      this.jobs.push(() => job().then(resolve, reject));
      this.wake?.();
    });
  }

  /** A boundary. Lets the page's messages in first, also on a device that computes without ever waiting. */
  async here(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve));
    await this.runJobs();
    if (this.isHeld) this.onHeld();
    while (this.isHeld) {
      await new Promise<void>((resolve) => (this.wake = resolve));
      await this.runJobs();
    }
  }

  /** The last boundary. */
  async end(): Promise<void> {
    this.isTraining = false;
    await this.runJobs();
  }

  private async runJobs(): Promise<void> {
    for (let job = this.jobs.shift(); job; job = this.jobs.shift()) await job();
  }
}
