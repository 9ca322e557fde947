/** Python's values as Jinja sees them: how they compare, and what they contain. print.ts prints them. */
import { jsonKeys, numberText } from "../../../../leaves/json.ts";

/** A Python float. A JavaScript number is a Python int, and a bigint is one above 2^53. */
export class PythonFloat {
  readonly value: number;
  /** Text as its JSON wrote it, which it prints as: `1e3`. */
  readonly text: string | undefined;
  constructor(value: number, text?: string) {
    this.value = value;
    this.text = text;
  }
}

/** A text marked as HTML by `safe` or `escape`. As in MarkupSafe, what is added to it is escaped. */
export class Markup {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

export class Tuple {
  readonly items: readonly JinjaValue[];
  constructor(items: readonly JinjaValue[]) {
    this.items = items;
  }
}

/** A value and the items that have it: what `groupby` gives. */
export class ItemGroup extends Tuple {}

/** Items that can be counted and visited again, but are no list: `range(3)`, `dict.keys()`. */
export class View {
  readonly kind: "range" | "dict_keys" | "dict_values" | "dict_items";
  readonly items: readonly JinjaValue[];
  /** Start, stop and step of a range. */
  readonly bounds: readonly number[];
  constructor(kind: View["kind"], items: readonly JinjaValue[], bounds: readonly number[] = []) {
    this.kind = kind;
    this.items = items;
    this.bounds = bounds;
  }
}

/** Items that can be visited once, and that are made when they are: the result of `map`, `select` and others. */
export class Lazy {
  readonly kind: "generator" | "iterator";
  readonly items: Iterator<JinjaValue>;
  constructor(items: Iterator<JinjaValue>, kind: Lazy["kind"] = "generator") {
    this.items = items;
    this.kind = kind;
  }
}

/** A missing name or attribute: prints nothing, is false and empty, and has no attributes. */
export class Undefined {
  readonly name: string;
  constructor(name: string) {
    this.name = name;
  }
}

/** An object with attributes: `namespace(...)`, `loop`, a cycler. */
export class AttributeObject {
  readonly kind: "Namespace" | "LoopContext" | "Cycler";
  readonly find: (name: string) => JinjaValue | undefined;
  /** The values of a namespace, which a template can set. */
  readonly values: Map<string, JinjaValue>;
  /** `loop(items)` of a recursive loop. */
  readonly call: PythonCallable | undefined;
  constructor(
    kind: AttributeObject["kind"],
    parts: {
      values?: Map<string, JinjaValue>;
      find?: (name: string) => JinjaValue | undefined;
      call?: PythonCallable | undefined;
    },
  ) {
    const { values = new Map<string, JinjaValue>() } = parts;
    this.kind = kind;
    this.values = values;
    this.find = parts.find ?? ((name) => values.get(name));
    this.call = parts.call;
  }
}

export type PythonCallable = (args: readonly JinjaValue[], named: ReadonlyMap<string, JinjaValue>) => JinjaValue;
export type JinjaValue =
  | string
  | number
  | bigint
  | boolean
  | null
  | PythonFloat
  | Markup
  | Tuple
  | View
  | Lazy
  | Undefined
  | AttributeObject
  | PythonCallable
  | Dict
  | readonly JinjaValue[];

/** A dict in the order of its keys, which may be whatever Python hashes: True, 1 and 1.0 are the same key. */
export class Dict {
  private readonly entries = new Map<unknown, readonly [key: JinjaValue, value: JinjaValue]>();

  constructor(pairs: Iterable<readonly [JinjaValue, JinjaValue]> = []) {
    for (const [key, value] of pairs) {
      const at = hashed(key);
      // As in Python, the first key of those that are equal stays.
      this.entries.set(at, [this.entries.get(at)?.[0] ?? key, value]);
    }
  }

  get size(): number {
    return this.entries.size;
  }

  /** @throws for a key that cannot be hashed, as a list. */
  get(key: JinjaValue): JinjaValue | undefined {
    return this.entries.get(hashed(key))?.[1];
  }

  has(key: JinjaValue): boolean {
    return this.entries.has(hashed(key));
  }

  keys(): JinjaValue[] {
    return Array.from(this.entries.values(), ([key]) => key);
  }

  values(): JinjaValue[] {
    return Array.from(this.entries.values(), ([, value]) => value);
  }

  [Symbol.iterator](): Iterator<readonly [JinjaValue, JinjaValue]> {
    return this.entries.values();
  }
}

/** Items of a tuple that is a key, and characters of its texts. */
const LONGEST_KEY = { items: 1000, length: 2 ** 16 } as const;

/** Equal for values that Python finds equal, as the key of a JavaScript map. @throws for what Python does not hash. */
export function hashed(key: JinjaValue): unknown {
  if (key instanceof Tuple) return `\0${tupleKey(key, { items: 0, length: 0 })}`;
  const text = textIn(key);
  if (text !== undefined) return text.startsWith("\0") ? `\0${text}` : text;
  const number = numberIn(key);
  if (number !== undefined) return Number.isSafeInteger(number) || !Number.isInteger(number) ? number : BigInt(number);
  const isKeys = key instanceof View && (key.kind === "dict_keys" || key.kind === "dict_items");
  if (isJinjaList(key) || isDict(key) || isKeys) throw new Error(`unhashable type: '${typeName(key)}'`);
  return key instanceof Undefined ? Undefined : key;
}

/** A text of its own for every tuple: each part begins with its type and its length. */
function tupleKey({ items }: Tuple, total: { items: number; length: number }): string {
  const parts = items.map((item) => {
    const key = item instanceof Tuple ? tupleKey(item, total) : hashed(item);
    const text = typeof key === "object" && key !== null ? typeName(item) : String(key);
    total.items++;
    total.length += text.length;
    if (total.items > LONGEST_KEY.items || total.length > LONGEST_KEY.length)
      throw new Error("a tuple that is a key of a dict is too long");
    return `${item instanceof Tuple ? "tuple" : typeof key}${text.length}:${text}`;
  });
  return `(${parts.join("")})`;
}

/** Counts work: a template comes with a downloaded model and may run without end. */
export interface WorkCounter {
  /** @throws when the steps or the time are spent. */
  spend(steps: number): void;
  /** Checks the length of a text or list. @throws above the limit. */
  bound(length: number): void;
  /** Checks and counts a text or list before it is made. @throws as the others. */
  room(length: number): void;
}

/** `value`, or an Undefined of that name where there is none. `??` would take None, which is null, for absent. */
export function orUndefined(value: JinjaValue | undefined, name: string): JinjaValue {
  return value === undefined ? new Undefined(name) : value;
}

export const isJinjaList = (value: JinjaValue): value is readonly JinjaValue[] => Array.isArray(value);
export const isDict = (value: JinjaValue): value is Dict => value instanceof Dict;

/** The text in a text, marked as HTML or not. */
export function textIn(value: JinjaValue | undefined): string | undefined {
  if (value instanceof Markup) return value.text;
  return typeof value === "string" ? value : undefined;
}

/** JSON as values, numbers and the order of keys as their text has them. Other whole numbers are ints. */
export function fromJson(json: unknown): JinjaValue {
  if (typeof json === "number") return Number.isInteger(json) ? json : new PythonFloat(json);
  if (typeof json === "bigint") return whole(json);
  if (typeof json === "string" || typeof json === "boolean" || json === null) return json;
  if (json === undefined) return null;
  if (Array.isArray(json)) return json.map((_, i) => memberOf(json, i));
  if (typeof json === "object")
    return new Dict(
      jsonKeys(json)
        .filter((key) => (json as Record<string, unknown>)[key] !== undefined)
        .map((key) => [key, memberOf(json, key)]),
    );
  throw new Error(`a template cannot read a ${typeof json}`);
}

/** A value of an object or list of JSON. */
export function memberOf(holder: object, key: string | number): JinjaValue {
  const text = numberText(holder, key);
  if (text === undefined) return fromJson((holder as Record<string, unknown>)[key]);
  return /^-?\d+$/.test(text) ? whole(BigInt(text)) : new PythonFloat(Number(text), text);
}

/** Digits that Python reads and prints of an int. */
export const LONGEST_INT = 4300;

/** An int of any size. */
export function whole(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** Python's name of the type, for messages. */
export function typeName(value: JinjaValue): string {
  if (value === null) return "NoneType";
  if (value instanceof PythonFloat) return "float";
  if (value instanceof Markup) return "Markup";
  if (value instanceof Tuple) return "tuple";
  if (value instanceof AttributeObject || value instanceof View || value instanceof Lazy) return value.kind;
  if (value instanceof Undefined) return "Undefined";
  if (isJinjaList(value)) return "list";
  if (isDict(value)) return "dict";
  const names = { string: "str", number: "int", bigint: "int", boolean: "bool", function: "function" } as const;
  return names[typeof value as keyof typeof names];
}

export function isTrue(value: JinjaValue): boolean {
  if (value === null || value instanceof Undefined) return false;
  if (value instanceof PythonFloat) return value.value !== 0;
  if (value instanceof Markup) return value.text !== "";
  if (isDict(value)) return value.size > 0;
  if (isJinjaList(value)) return value.length > 0;
  if (value instanceof Tuple || value instanceof View) return value.items.length > 0;
  return typeof value === "object" || typeof value === "function" || Boolean(value);
}

/** Python's ints, of which its bools are some; those above 2^53 apart, which no list or text reaches. */
export const isPythonInt = (value: JinjaValue) => typeof value === "number" || typeof value === "boolean";

/** The number in an int, a float or a bool, to compare and compute with: an int above 2^53 as a bigint. */
export function numberIn(value: JinjaValue): number | bigint | undefined {
  if (typeof value === "number" || typeof value === "bigint") return value;
  if (typeof value === "boolean") return Number(value);
  return value instanceof PythonFloat ? value.value : undefined;
}

/** Lists, tuples, ranges and views of dicts, by their items. */
export function sequenceIn(value: JinjaValue): readonly JinjaValue[] | undefined {
  if (value instanceof Tuple || value instanceof View) return value.items;
  return isJinjaList(value) ? value : undefined;
}

/** The items that a loop visits: characters of a text, keys of a dict. Those of a generator can be read once. @throws for what Python cannot iterate. */
export function itemsOf(value: JinjaValue, work: WorkCounter): readonly JinjaValue[] {
  const items = sequenceIn(value);
  if (items) return items;
  if (value instanceof Undefined) return [];
  if (isDict(value)) {
    work.room(value.size);
    return value.keys();
  }
  if (value instanceof Lazy) return [...rest(value.items, work)];
  const text = textIn(value);
  if (text === undefined) throw new Error(`'${typeName(value)}' object is not iterable`);
  work.room(text.length);
  return [...text];
}

/** Yields the items of {@link itemsOf}, one by one. */
export function iterate(value: JinjaValue, work: WorkCounter): Iterator<JinjaValue> {
  return value instanceof Lazy ? value.items : itemsOf(value, work)[Symbol.iterator]();
}

/** Yields the items that an iterator has left. */
export function* rest(items: Iterator<JinjaValue>, work: WorkCounter): Generator<JinjaValue, undefined> {
  for (let next = items.next(); !next.done; next = items.next()) {
    work.spend(1);
    yield next.value;
  }
}

/** @throws for values without a length. */
export function lengthOf(value: JinjaValue, work: WorkCounter): number {
  const isNone = numberIn(value) !== undefined || value === null || typeof value === "function";
  if (value instanceof AttributeObject && value.kind === "LoopContext") return value.find("length") as number;
  if (isNone || value instanceof AttributeObject || value instanceof Lazy)
    throw new Error(`object of type '${typeName(value)}' has no len()`);
  return itemsOf(value, work).length;
}

/** JavaScript orders a bigint and a number exactly. */
const isSameNumber = (x: number | bigint, y: number | bigint) => (typeof x === typeof y ? x === y : x <= y && x >= y);

/** Python's `==`. */
export function isEqual(a: JinjaValue, b: JinjaValue, work: WorkCounter): boolean {
  work.spend(1);
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x !== undefined && y !== undefined) return isSameNumber(x, y);
  const text = textIn(a);
  if (text !== undefined) return text === textIn(b);
  if (a instanceof Undefined || b instanceof Undefined) return a instanceof Undefined && b instanceof Undefined;
  if (isJinjaList(a) && isJinjaList(b)) return sameItems(a, b, work);
  if (a instanceof Tuple && b instanceof Tuple) return sameItems(a.items, b.items, work);
  if (a instanceof View && b instanceof View) return a === b || (a.kind === b.kind && sameView(a, b, work));
  if (!isDict(a) || !isDict(b)) return a === b;
  return a.size === b.size && [...a].every(([key, value]) => b.has(key) && isEqual(value, b.get(key)!, work));
}

function sameItems(a: readonly JinjaValue[], b: readonly JinjaValue[], work: WorkCounter): boolean {
  return a.length === b.length && a.every((item, i) => isEqual(item, b[i]!, work));
}

function sameView(a: View, b: View, work: WorkCounter): boolean {
  if (a.kind === "range") return sameItems(a.items, b.items, work);
  if (a.kind === "dict_values" || a.items.length !== b.items.length) return false;
  return a.items.every((item) => b.items.some((other) => isEqual(item, other, work)));
}

/** Negative, zero or positive, as Python orders; NaN next to one. @throws for values without an order. */
export function compare(a: JinjaValue, b: JinjaValue, work: WorkCounter): number {
  work.spend(1);
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x !== undefined && y !== undefined) return x < y ? -1 : x > y ? 1 : isSameNumber(x, y) ? 0 : Number.NaN;
  const [text, other] = [textIn(a), textIn(b)];
  if (text !== undefined && other !== undefined) return compareTexts(text, other);
  const areTuples = a instanceof Tuple && b instanceof Tuple;
  const [left, two] = areTuples ? [a.items, b.items] : isJinjaList(a) && isJinjaList(b) ? [a, b] : [];
  if (!left || !two) throw new Error(`'${typeName(a)}' and '${typeName(b)}' cannot be compared`);
  const at = left.findIndex((item, i) => i < two.length && !isEqual(item, two[i]!, work));
  return at < 0 ? left.length - two.length : compare(left[at]!, two[at]!, work);
}

/** Compares texts by code points, where JavaScript's order is that of UTF-16: U+FFFF comes after U+1F600 there. */
function compareTexts(a: string, b: string): number {
  const least = Math.min(a.length, b.length);
  let at = 0;
  while (at < least && a.charCodeAt(at) === b.charCodeAt(at)) at++;
  if (at === least) return a.length - b.length;
  const [x, y] = [a.charCodeAt(at), b.charCodeAt(at)];
  const isHigh = (code: number) => code >= 0xd800 && code < 0xe000;
  return isHigh(x) === isHigh(y) ? x - y : isHigh(x) ? 1 : -1;
}
