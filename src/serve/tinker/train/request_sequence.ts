/** A training client's requests in the order of their numbers, whatever the order of their arrival. */
import type { Future } from "../protocol/futures.ts";
import { Refusal } from "../protocol/outcome.ts";

/**
 * Facts about an earlier request by which repeats are recognised. Its content, possibly a whole batch, goes when it has
 * run.
 */
interface Known {
  readonly future: Future;
  readonly print: string;
}

/** Numbers remembered to recognise repeats. A client repeats its latest requests, not old ones. */
const REMEMBERED = 4096;

/**
 * Numbers count from 1 without gaps. A request that arrives early is parked until those before it have arrived. If they
 * do not arrive within `gapMs`, the parked requests fail and counting continues behind them.
 */
export class RequestSequence<Item extends { readonly future: Future }> {
  private readonly known = new Map<bigint, Known>();
  private readonly parked = new Map<bigint, Item>();
  private readonly options: {
    readonly gapMs: number;
    /** The most requests that may be parked. */
    readonly most: number;
    /** Takes the next request in order. */
    readonly ready: (item: Item) => void;
    /** Takes a request whose predecessor `missing` never arrived. */
    readonly givenUp: (item: Item, missing: bigint) => void;
  };
  private nextNumber = 1n;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: RequestSequence<Item>["options"]) {
    this.options = options;
  }

  get parkedCount(): number {
    return this.parked.size;
  }

  /** The number that must arrive next. */
  get missing(): bigint {
    return this.nextNumber;
  }

  isUsed(number: bigint): boolean {
    return number < this.nextNumber || this.known.has(number);
  }

  /**
   * Accepts a request. A request without a number (0) runs when it arrives.
   * @param of.print identifies the request's content
   * @returns the future of what `make` returns, or returned when this number first arrived
   * @throws Refusal for a number that had another content before, or that is long past.
   */
  submit(number: bigint, of: { print: string; make: () => Item }): Future {
    if (number <= 0n) {
      const item = of.make();
      this.options.ready(item);
      return item.future;
    }
    const earlier = this.known.get(number);
    if (earlier) return repeated(number, { earlier, print: of.print });
    this.refuse(number);
    const item = of.make();
    this.remember(number, { future: item.future, print: of.print });
    this.parked.set(number, item);
    this.release();
    return item.future;
  }

  private refuse(number: bigint): void {
    if (number < this.nextNumber)
      throw new Refusal(
        400,
        `Cannot accept the request: its seq_id is in the past (${number}). The next one is ${this.nextNumber}.`,
      );
    if (this.parked.size >= this.options.most)
      throw new Refusal(
        429,
        `Cannot accept the request: ${this.parked.size} requests already wait for seq_id ${this.nextNumber}. Send that one first.`,
      );
  }

  private remember(number: bigint, earlier: Known): void {
    this.known.set(number, earlier);
    if (this.known.size <= REMEMBERED) return;
    const [oldest] = this.known.keys();
    this.known.delete(oldest!);
  }

  private release(): void {
    const missing = this.nextNumber;
    for (let item = this.parked.get(this.nextNumber); item; item = this.parked.get(this.nextNumber)) {
      this.parked.delete(this.nextNumber++);
      this.options.ready(item);
    }
    // Later arrivals do not prolong the wait for the same number: a client that keeps sending would wait for ever.
    if (this.timer !== undefined && this.nextNumber === missing) return;
    this.stopTimer();
    if (this.parked.size > 0) this.timer = setTimeout(() => this.giveUp(), this.options.gapMs);
  }

  private stopTimer(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  private giveUp(): void {
    this.stopTimer();
    const missing = this.nextNumber;
    const numbers = [...this.parked.keys()].sort((a, b) => (a < b ? -1 : 1));
    for (const number of numbers) {
      const item = this.parked.get(number) as Item;
      this.parked.delete(number);
      this.options.givenUp(item, missing);
      this.nextNumber = number + 1n;
    }
  }

  /** Removes and returns the parked requests. */
  clear(): Item[] {
    this.stopTimer();
    const items = [...this.parked.values()];
    this.parked.clear();
    return items;
  }
}

function repeated(number: bigint, { earlier, print }: { earlier: Known; print: string }): Future {
  if (earlier.print === print) return earlier.future;
  throw new Refusal(
    400,
    `Cannot accept the request: seq_id ${number} belongs to another request. Give each request its own number.`,
  );
}
