/** A training client's requests in the order of their numbers, whatever the order of their arrival. */
import type { Future } from "../protocol/futures.ts";
import { Refusal } from "../protocol/outcome.ts";

/** Of a request that came before. The request itself, which may hold a whole batch, goes when it has run. */
interface Known {
  readonly future: Future;
  readonly print: string;
}

/** Numbers whose requests are remembered for repeats. A client repeats what it just sent, not what it sent long ago. */
const REMEMBERED = 4096;

/**
 * Numbers count from 1 without gaps. A request that comes early is parked until those before it are there; where they
 * do not come within `gapMs`, the parked ones are given up and counting goes on behind them.
 */
export class Sequence<Item extends { readonly future: Future }> {
  private readonly known = new Map<bigint, Known>();
  private readonly parked = new Map<bigint, Item>();
  private readonly options: {
    readonly gapMs: number;
    readonly most: number;
    /** Takes the next request in order. */
    readonly ready: (item: Item) => void;
    /** Told of requests whose predecessors never came. */
    readonly givenUp: (item: Item, missing: bigint) => void;
  };
  private nextNumber = 1n;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: Sequence<Item>["options"]) {
    this.options = options;
  }

  get parkedCount(): number {
    return this.parked.size;
  }

  get missing(): bigint {
    return this.nextNumber;
  }

  isUsed(number: bigint): boolean {
    return number < this.nextNumber || this.known.has(number);
  }

  /**
   * Takes a request in. 0 is no number: such a request runs when it comes.
   * @param at.print stands for the request's content: the same number with another content is a mistake.
   * @returns the future of what `make` gave, or gave when this number came the first time.
   * @throws Refusal for a number that was used for something else, or is long past.
   */
  submit(number: bigint, at: { print: string; make: () => Item }): Future {
    if (number <= 0n) {
      const item = at.make();
      this.options.ready(item);
      return item.future;
    }
    const known = this.known.get(number);
    if (known) return this.repeated(number, { known, print: at.print });
    if (number < this.nextNumber)
      throw new Refusal(
        400,
        `Cannot take the request as its seq_id is past: ${number}, next is ${this.nextNumber}.`,
      );
    if (this.parked.size >= this.options.most)
      throw new Refusal(
        429,
        `Cannot take the request as ${this.parked.size} wait for seq_id ${this.nextNumber} already.`,
      );
    const item = at.make();
    this.remember(number, { future: item.future, print: at.print });
    this.parked.set(number, item);
    this.release();
    return item.future;
  }

  private repeated(number: bigint, { known, print }: { known: Known; print: string }): Future {
    if (known.print === print) return known.future;
    throw new Refusal(
      400,
      `Cannot take the request as seq_id ${number} was used for another one: give each request its own number.`,
    );
  }

  private remember(number: bigint, known: Known): void {
    this.known.set(number, known);
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

  /** Takes out what is parked. */
  clear(): Item[] {
    this.stopTimer();
    const items = [...this.parked.values()];
    this.parked.clear();
    return items;
  }
}
