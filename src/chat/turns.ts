/** Much short work of many callers, one after the other, with room for timers and sockets in between. */

/** Work between two looks at what else waits. */
const SLICE_MS = 10;

export class Turns {
  private last = Promise.resolve();
  private sliceStart: number | undefined;

  /** Resolves when it is the caller's turn. */
  take(): Promise<void> {
    this.last = this.last.then(() => this.yieldToEventLoop());
    return this.last;
  }

  private async yieldToEventLoop(): Promise<void> {
    if (this.sliceStart !== undefined && performance.now() - this.sliceStart > SLICE_MS) {
      await new Promise((resolve) => setTimeout(resolve, 0));
      this.sliceStart = undefined;
    }
    if (this.sliceStart !== undefined) return;
    this.sliceStart = performance.now();
    setTimeout(() => {
      this.sliceStart = undefined;
    }, 0);
  }
}
