/** Memory for what clients send, over a whole server. */
import { Refusal } from "./refusal.ts";

/** Of the whole budget, what work that waits for the device may hold: the rest is for requests that arrive. */
const WAITING_SHARE = 0.75;

/** Bytes that all requests together may hold: bodies while they are read, and what waits for the device. */
export class Budget {
  readonly bytes: number;
  /** Held now. */
  used = 0;
  /** Held by work that waits. */
  waiting = 0;

  constructor(bytes: number) {
    this.bytes = bytes;
  }

  lease(): Lease {
    return new Lease(this);
  }

  /** @throws Refusal 429 where there is no room: the client comes again. */
  check(bytes: number): void {
    if (this.used + bytes > this.bytes) throw full(this.used, this.bytes);
  }
}

/** What one request holds of a {@link Budget}. */
export class Lease {
  private readonly budget: Budget;
  private held = 0;
  private isWaiting = false;

  constructor(budget: Budget) {
    this.budget = budget;
  }

  get bytes(): number {
    return this.held;
  }

  /** @throws Refusal 429 where there is no room: the client comes again. */
  take(bytes: number): void {
    this.budget.check(bytes);
    this.budget.used += bytes;
    this.held += bytes;
  }

  give(bytes: number): void {
    const given = Math.min(bytes, this.held);
    this.budget.used -= given;
    if (this.isWaiting) this.budget.waiting -= given;
    this.held -= given;
  }

  /**
   * Keeps what is held beyond the answer, until {@link release}: the request waits for the device.
   * @param others.waitForIt requests that hold memory themselves go on only after this one, which is never refused then.
   * @throws Refusal 429 where waiting requests hold their share already.
   */
  wait({ waitForIt }: { readonly waitForIt: boolean }): void {
    const { waiting, bytes } = this.budget;
    if (!waitForIt && waiting > 0 && waiting + this.held > WAITING_SHARE * bytes) throw full(waiting, bytes);
    this.isWaiting = true;
    this.budget.waiting += this.held;
  }

  /** Ends the request's answer: frees what does not wait. */
  answered(): void {
    if (!this.isWaiting) this.give(this.held);
  }

  release(): void {
    this.give(this.held);
  }
}

function full(used: number, most: number): Refusal {
  return new Refusal(
    429,
    `Cannot take the request now: requests hold ${used} of ${most} bytes already. Try again in a moment.`,
  );
}
