/** A server-wide limit on the memory that clients' requests hold. */
import { Refusal } from "./refusal.ts";

/** Share of the budget that work waiting for the device may hold; the rest is for arriving requests. */
const WAITING_SHARE = 0.75;

/** Counts the bytes of all requests: bodies being read, and work that waits for the device. */
export class ByteBudget {
  readonly bytes: number;
  /** Held now. */
  used = 0;
  /** Held by work that waits for the device. */
  waiting = 0;

  constructor(bytes: number) {
    this.bytes = bytes;
  }

  lease(): Lease {
    return new Lease(this);
  }

  /** @throws Refusal 429 when there is no room; clients retry. */
  check(bytes: number): void {
    if (this.used + bytes > this.bytes) throw full(this.used, this.bytes);
  }
}

/** One request's share of a {@link ByteBudget}. */
export class Lease {
  private readonly budget: ByteBudget;
  private held = 0;
  private isWaiting = false;

  constructor(budget: ByteBudget) {
    this.budget = budget;
  }

  get bytes(): number {
    return this.held;
  }

  /**
   * Takes what a request stands for beyond its body.
   * @throws Refusal 413 for more than the budget ever holds, which no retry would change, else as {@link take}.
   */
  takeMore(bytes: number): void {
    const total = this.held + bytes;
    if (total > this.budget.bytes)
      throw new Refusal(
        413,
        `Cannot accept the request: its work takes ${total} bytes of memory, and all requests together may hold ${this.budget.bytes}. Send it in smaller parts.`,
      );
    this.take(bytes);
  }

  /** @throws Refusal 429 when there is no room; clients retry. */
  take(bytes: number): void {
    this.budget.check(bytes);
    this.budget.used += bytes;
    this.held += bytes;
  }

  give(bytes: number): void {
    const returned = Math.min(bytes, this.held);
    this.budget.used -= returned;
    if (this.isWaiting) this.budget.waiting -= returned;
    this.held -= returned;
  }

  /**
   * Keeps the memory after the answer, until {@link release}, because the request waits for the device.
   * @param others.waitForIt true when requests that hold memory cannot continue before this one: it is then never refused.
   * @throws Refusal 429 when waiting requests already hold their share.
   */
  wait({ waitForIt }: { readonly waitForIt: boolean }): void {
    const { waiting, bytes } = this.budget;
    if (!waitForIt && waiting > 0 && waiting + this.held > WAITING_SHARE * bytes) throw full(waiting, bytes);
    this.isWaiting = true;
    this.budget.waiting += this.held;
  }

  /** Frees the memory once the request is answered, unless it waits for the device. */
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
    `Cannot accept the request: other requests hold ${used} of ${most} bytes. Try again in a moment.`,
  );
}
