/** The variable `loop`. */
import {
  AttributeObject,
  isEqual,
  type JinjaValue,
  orUndefined,
  type PythonCallable,
  sequenceIn,
  Tuple,
  type WorkCounter,
} from "./value.ts";

/** Goes through items one by one, because a generator makes each when it is asked for, and knows what is around the current one. */
export class Loop {
  private readonly source: JinjaValue;
  private readonly work: WorkCounter;
  private items: Iterator<JinjaValue>;
  private index0 = -1;
  private before: JinjaValue | undefined;
  private current: JinjaValue | undefined;
  private ahead: JinjaValue | undefined;
  private count: number | undefined;
  private changed: JinjaValue | undefined;
  private readonly depth0: number;
  readonly fields: AttributeObject;

  constructor(
    source: JinjaValue,
    items: Iterator<JinjaValue>,
    context: { work: WorkCounter; depth0: number; call: PythonCallable | undefined; isFiltered: boolean },
  ) {
    // The length of what a test leaves is not known before.
    this.source = context.isFiltered ? null : source;
    this.items = items;
    this.work = context.work;
    this.depth0 = context.depth0;
    this.fields = new AttributeObject("LoopContext", { find: (name) => this.field(name), call: context.call });
  }

  /** The next item; undefined at the end. */
  next(): JinjaValue | undefined {
    const item = this.peek();
    this.ahead = undefined;
    this.index0++;
    this.before = this.current;
    this.current = item;
    return item;
  }

  private peek(): JinjaValue | undefined {
    if (this.ahead !== undefined) return this.ahead;
    const next = this.items.next();
    this.ahead = next.done ? undefined : next.value;
    return this.ahead;
  }

  private length(): number {
    if (this.count !== undefined) return this.count;
    const sequence = sequenceIn(this.source);
    if (sequence) this.count = sequence.length;
    else {
      const left: JinjaValue[] = [];
      for (let next = this.items.next(); !next.done; next = this.items.next()) left.push(next.value);
      this.work.room(left.length);
      this.items = left[Symbol.iterator]();
      this.count = left.length + this.index0 + 1 + (this.ahead === undefined ? 0 : 1);
    }
    return this.count;
  }

  private field(name: string): JinjaValue | undefined {
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

  private cycle(args: readonly JinjaValue[]): JinjaValue {
    if (args.length === 0) throw new Error("loop.cycle takes the items to go through");
    return args[this.index0 % args.length]!;
  }

  private isChanged(args: readonly JinjaValue[]): boolean {
    const now = new Tuple(args);
    const isSame = this.changed !== undefined && isEqual(this.changed, now, this.work);
    this.changed = now;
    return !isSame;
  }
}

/** `cycler("odd", "even")` */
export const cycler: PythonCallable = (items) => {
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
  const fields: Readonly<Record<string, () => JinjaValue>> = {
    next: () => next,
    reset: () => reset,
    current: () => items[at]!,
    pos: () => at,
    items: () => new Tuple(items),
  };
  return new AttributeObject("Cycler", { find: (name) => (Object.hasOwn(fields, name) ? fields[name]!() : undefined) });
};

/** `joiner(", ")`: nothing at its first call, then the text between. */
export const joiner: PythonCallable = ([separator = ", "], named) => {
  let isUsed = false;
  const between = named.get("sep") ?? separator;
  return () => {
    if (isUsed) return between;
    isUsed = true;
    return "";
  };
};
