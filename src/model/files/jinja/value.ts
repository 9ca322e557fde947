/** Python's values as Jinja sees them: how they compare, and what they contain. print.ts prints them. */
import { jsonKeys, numberText } from "../../../json.ts";

/** A Python float. A JavaScript number is a Python int. */
export class Float {
  readonly value: number;
  /** As its JSON wrote it, which it prints as: `1e3`, or an int above 2^53. */
  readonly text: string | undefined;
  constructor(value: number, text?: string) {
    this.value = value;
    this.text = text;
  }

  /** A number of JSON that is an int, and that a JavaScript number does not hold. */
  get isInt(): boolean {
    return this.text !== undefined && /^-?\d+$/.test(this.text);
  }
}

export class Tuple {
  readonly items: readonly Value[];
  constructor(items: readonly Value[]) {
    this.items = items;
  }
}

/** A missing name or attribute: prints nothing, is false and empty, and has no attributes. */
export class Undefined {
  readonly name: string;
  constructor(name: string) {
    this.name = name;
  }
}

/** An object with attributes: `namespace(...)`, `loop`. */
export class Fields {
  readonly kind: "Namespace" | "LoopContext";
  readonly values: Map<string, Value>;
  constructor(kind: "Namespace" | "LoopContext", values: Map<string, Value>) {
    this.kind = kind;
    this.values = values;
  }
}

export type Callable = (args: readonly Value[], named: ReadonlyMap<string, Value>) => Value;
export type Dict = ReadonlyMap<string | number, Value>;
export type Value =
  | string
  | number
  | boolean
  | null
  | Float
  | Tuple
  | Undefined
  | Fields
  | Callable
  | Dict
  | readonly Value[];

/** Counts work: a template comes with a downloaded model and may run without end. */
export interface Work {
  /** @throws when the steps or the time are spent. */
  spend(steps: number): void;
  /** Checks the length of a text or list. @throws above the limit. */
  bound(length: number): void;
  /** Checks and counts a text or list before it is made. @throws as the others. */
  room(length: number): void;
}

/** `value`, or an Undefined of that name where there is none. `??` would take None, which is null, for absent. */
export function orUndefined(value: Value | undefined, name: string): Value {
  return value === undefined ? new Undefined(name) : value;
}

export const isList = (value: Value): value is readonly Value[] => Array.isArray(value);
export const isDict = (value: Value): value is Dict => value instanceof Map;

/** JSON as values, numbers and the order of keys as their text has them. Other whole numbers are ints. */
export function fromJson(json: unknown): Value {
  if (typeof json === "number") return Number.isInteger(json) ? json : new Float(json);
  if (typeof json === "bigint") return new Float(Number(json), String(json));
  if (typeof json === "string" || typeof json === "boolean" || json === null) return json;
  if (json === undefined) return null;
  if (Array.isArray(json)) return json.map((_, i) => memberOf(json, i));
  if (typeof json === "object")
    return new Map(
      jsonKeys(json)
        .filter((key) => (json as Record<string, unknown>)[key] !== undefined)
        .map((key) => [key, memberOf(json, key)]),
    );
  throw new Error(`a template cannot read a ${typeof json}`);
}

/** A value of an object or list of JSON. */
export function memberOf(holder: object, key: string | number): Value {
  const text = numberText(holder, key);
  return text === undefined ? fromJson((holder as Record<string, unknown>)[key]) : new Float(Number(text), text);
}

/** Python's name of the type, for messages. */
export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (value instanceof Float) return value.isInt ? "int" : "float";
  if (value instanceof Tuple) return "tuple";
  if (value instanceof Fields) return value.kind;
  if (value instanceof Undefined) return "Undefined";
  if (isList(value)) return "list";
  if (isDict(value)) return "dict";
  const names = { string: "str", number: "int", boolean: "bool", function: "function" } as const;
  return names[typeof value as keyof typeof names];
}

export function isTrue(value: Value): boolean {
  if (value === null || value instanceof Undefined) return false;
  if (value instanceof Float) return value.value !== 0;
  if (isDict(value)) return value.size > 0;
  if (isList(value)) return value.length > 0;
  if (value instanceof Tuple) return value.items.length > 0;
  return typeof value === "object" || typeof value === "function" || Boolean(value);
}

/** Python's ints, of which its bools are some. */
export const isWhole = (value: Value) => typeof value === "number" || typeof value === "boolean";

/** The number in an int, a float or a bool. */
export function numberIn(value: Value): number | undefined {
  if (typeof value === "number") return value;
  if (typeof value === "boolean") return Number(value);
  return value instanceof Float ? value.value : undefined;
}

/** The items that a loop visits: characters of a text, keys of a dict. @throws for what Python cannot iterate. */
export function itemsOf(value: Value, work: Work): readonly Value[] {
  if (value instanceof Undefined) return [];
  if (value instanceof Tuple) return value.items;
  if (isList(value)) return value;
  if (isDict(value)) return [...value.keys()];
  if (typeof value !== "string") throw new Error(`'${typeName(value)}' object is not iterable`);
  work.room(value.length);
  return [...value];
}

/** @throws for values without a length. */
export function lengthOf(value: Value, work: Work): number {
  if (numberIn(value) !== undefined || value === null || value instanceof Fields || typeof value === "function")
    throw new Error(`object of type '${typeName(value)}' has no len()`);
  return itemsOf(value, work).length;
}

/** Python's `==`. */
export function isEqual(a: Value, b: Value, work: Work): boolean {
  work.spend(1);
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x !== undefined || y !== undefined) return x === y;
  if (a instanceof Undefined || b instanceof Undefined) return a instanceof Undefined && b instanceof Undefined;
  if (isList(a) && isList(b)) return sameItems(a, b, work);
  if (a instanceof Tuple && b instanceof Tuple) return sameItems(a.items, b.items, work);
  if (!isDict(a) || !isDict(b)) return a === b;
  return a.size === b.size && [...a].every(([key, value]) => b.has(key) && isEqual(value, b.get(key)!, work));
}

function sameItems(a: readonly Value[], b: readonly Value[], work: Work): boolean {
  return a.length === b.length && a.every((item, i) => isEqual(item, b[i]!, work));
}

/** Negative, zero or positive, as Python orders. @throws for values without an order. */
export function compare(a: Value, b: Value, work: Work): number {
  work.spend(1);
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x !== undefined && y !== undefined) return x - y;
  if (typeof a === "string" && typeof b === "string") return a < b ? -1 : Number(a > b);
  const areTuples = a instanceof Tuple && b instanceof Tuple;
  const [one, other] = areTuples ? [a.items, b.items] : isList(a) && isList(b) ? [a, b] : [];
  if (!one || !other) throw new Error(`'${typeName(a)}' and '${typeName(b)}' cannot be compared`);
  const at = one.findIndex((item, i) => i < other.length && !isEqual(item, other[i]!, work));
  return at < 0 ? one.length - other.length : compare(one[at]!, other[at]!, work);
}
