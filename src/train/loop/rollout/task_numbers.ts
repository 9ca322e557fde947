/** Chooses the tasks that asynchronous generation attempts next, by their numbers over all batches. */
export class TaskNumbers {
  /** Tasks of the whole run. */
  private readonly total: number;
  private next = 0;
  /** Started before the checkpoint and not trained on. */
  private again: number[] = [];

  constructor(total: number) {
    this.total = total;
  }

  resume(next: number, pending: readonly number[]): void {
    this.next = next;
    this.again = [...pending];
  }

  /** Undefined after the last task. */
  take(): number | undefined {
    return this.again.shift() ?? (this.next < this.total ? this.next++ : undefined);
  }

  /** Returns the state for a checkpoint, with the numbers taken and not trained on. */
  state(taken: readonly number[]): { readonly next: number; readonly pending: readonly number[] } {
    return { next: this.next, pending: [...this.again, ...taken].sort((a, b) => a - b) };
  }
}
