/** The variable `loop`. */
import { type Callable, Fields, isEqual, orUndefined, sequenceIn, Tuple, type Value, type Work } from "./value.ts";

/** Goes through items one by one, because a generator makes each when it is asked for, and knows what is around the current one. */
export class Loop {
  private readonly source: Value;
  private readonly work: Work;
  private items: Iterator<Value>;
  private index0 = -1;
  private before: Value | undefined;
  private current: Value | undefined;
  private ahead: Value | undefined;
  private count: number | undefined;
  private changed: Value | undefined;
  private readonly depth0: number;
  readonly fields: Fields;

  constructor(
    source: Value,
    items: Iterator<Value>,
    it: { work: Work; depth0: number; call: Callable | undefined; isFiltered: boolean },
  ) {
    // The length of what a test leaves is not known before.
    this.source = it.isFiltered ? null : source;
    this.items = items;
    this.work = it.work;
    this.depth0 = it.depth0;
    this.fields = new Fields("LoopContext", { find: (name) => this.field(name), call: it.call });
  }

  /** The next item; undefined at the end. */
  next(): Value | undefined {
    const item = this.peek();
    this.ahead = undefined;
    this.index0++;
    this.before = this.current;
    this.current = item;
    return item;
  }

  private peek(): Value | undefined {
    if (this.ahead !== undefined) return this.ahead;
    const next = this.items.next();
    this.ahead = next.done ? undefined : next.value;
    return this.ahead;
  }

  private length(): number {
    if (this.count !== undefined) return this.count;
    const known = sequenceIn(this.source);
    if (known) this.count = known.length;
    else {
      const left: Value[] = [];
      for (let next = this.items.next(); !next.done; next = this.items.next()) left.push(next.value);
      this.work.room(left.length);
      this.items = left[Symbol.iterator]();
      this.count = left.length + this.index0 + 1 + (this.ahead === undefined ? 0 : 1);
    }
    return this.count;
  }

  private field(name: string): Value | undefined {
    switch (name) {
      case "index":
        return this.index0 + 1;
      case "index0":
        return this.index0;
      case "length":
        return this.length();
      case "revindex":
        return this.length() - this.index0;
      case "revindex0":
        return this.length() - this.index0 - 1;
      case "first":
        return this.index0 === 0;
      case "last":
        return this.peek() === undefined;
      case "depth":
        return this.depth0 + 1;
      case "depth0":
        return this.depth0;
      case "previtem":
        return orUndefined(this.before, "previtem");
      case "nextitem":
        return orUndefined(this.peek(), "nextitem");
      case "cycle":
        return (args) => this.cycle(args);
      case "changed":
        return (args) => this.isChanged(args);
      default:
        return undefined;
    }
  }

  private cycle(args: readonly Value[]): Value {
    if (args.length === 0) throw new Error("loop.cycle takes the items to go through");
    return args[this.index0 % args.length]!;
  }

  private isChanged(args: readonly Value[]): boolean {
    const now = new Tuple(args);
    const isSame = this.changed !== undefined && isEqual(this.changed, now, this.work);
    this.changed = now;
    return !isSame;
  }
}

/** `cycler("odd", "even")` */
export const cycler: Callable = (items) => {
  if (items.length === 0) throw new Error("at least one item has to be provided");
  let at = 0;
  const next = () => {
    const item = items[at]!;
    at = (at + 1) % items.length;
    return item;
  };
  const reset = () => {
    at = 0;
    return null;
  };
  const fields: Readonly<Record<string, () => Value>> = {
    next: () => next,
    reset: () => reset,
    current: () => items[at]!,
    pos: () => at,
    items: () => new Tuple(items),
  };
  return new Fields("Cycler", { find: (name) => (Object.hasOwn(fields, name) ? fields[name]!() : undefined) });
};

/** `joiner(", ")`: nothing at its first call, then the text between. */
export const joiner: Callable = ([separator = ", "], named) => {
  let isUsed = false;
  const between = named.get("sep") ?? separator;
  return () => {
    if (isUsed) return between;
    isUsed = true;
    return "";
  };
};
