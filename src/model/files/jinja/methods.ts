/** Methods of Python's texts and dicts that templates call. */
import { textOf } from "./print.ts";
import {
  type Callable,
  type Dict,
  isDict,
  isEqual,
  isList,
  itemsOf,
  numberIn,
  Tuple,
  typeName,
  type Value,
  type Work,
} from "./value.ts";

type Method<T> = (self: T, args: readonly Value[], work: Work) => Value;

/** What Python's `str.strip` removes. It differs from JavaScript's `trim` in a few characters. */
const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const IS_SPACE = new RegExp(`^[${SPACES}]$`);
const WORD = new RegExp(`[^${SPACES}]+`, "g");
/** Where Python's `str.splitlines` cuts. */
const LINE_ENDS = "\\r\\n|[\\n\\r\\v\\f\\x1c-\\x1e\\x85\\u2028\\u2029]";
export const LINE_END = new RegExp(LINE_ENDS);

const optional = (value: Value | undefined) => (value === null ? undefined : value);

/** Without the given characters, or spaces, at its ends. */
export function strip(text: string, chars?: Value, sides: "left" | "right" | "both" = "both"): string {
  const given = optional(chars);
  const set = given === undefined ? undefined : new Set(string(given));
  const isCut = (letter: string) => (set ? set.has(letter) : IS_SPACE.test(letter));
  const letters = [...text];
  let [from, to] = [0, letters.length];
  if (sides !== "right") while (from < to && isCut(letters[from]!)) from++;
  if (sides !== "left") while (to > from && isCut(letters[to - 1]!)) to--;
  return letters.slice(from, to).join("");
}

function string(value: Value | undefined): string {
  if (typeof value === "string") return value;
  throw new Error(`expected str, not ${value === undefined ? "nothing" : typeName(value)}`);
}

function integer(value: Value | undefined, fallback: number): number {
  if (value === undefined) return fallback;
  if (typeof value === "number") return value;
  throw new Error(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

function split(text: string, [separator, most]: readonly Value[], from: "left" | "right"): string[] {
  const limit = integer(most, -1);
  const by = optional(separator);
  if (by === "") throw new Error("empty separator");
  const parts = by === undefined ? (text.match(WORD) ?? []) : text.split(string(by));
  if (limit < 0 || parts.length <= limit) return parts;
  // The rest keeps the spaces at its other end, even where it is one word.
  if (by === undefined) return splitWords(text, limit, from);
  if (parts.length === limit + 1) return parts;
  const joined = string(by);
  return from === "left"
    ? [...parts.slice(0, limit), parts.slice(limit).join(joined)]
    : [parts.slice(0, parts.length - limit).join(joined), ...parts.slice(parts.length - limit)];
}

function splitWords(text: string, limit: number, from: "left" | "right"): string[] {
  const words = [...text.matchAll(WORD)];
  if (from === "left")
    return [...words.slice(0, limit).map(([word]) => word), strip(text.slice(words[limit]!.index), undefined, "left")];
  const last = words[words.length - limit - 1]!;
  return [text.slice(0, last.index + last[0].length), ...words.slice(words.length - limit).map(([word]) => word)];
}

export function replace(text: string, [old, by, most]: readonly Value[], work: Work): string {
  const [from, to] = [string(old), string(by)];
  const limit = integer(optional(most), -1);
  const parts = from === "" ? ["", ...text, ""] : text.split(from);
  const count = limit < 0 ? parts.length - 1 : Math.min(limit, parts.length - 1);
  work.room(text.length + count * to.length);
  return (
    parts.slice(0, count + 1).join(to) + (count < parts.length - 1 ? from + parts.slice(count + 1).join(from) : "")
  );
}

function affix(test: (text: string, part: string) => boolean): Method<string> {
  return (text, [part]) => {
    if (part instanceof Tuple) return part.items.some((each) => test(text, string(each)));
    return test(text, string(part));
  };
}

/** A capital that stands before small letters: `Ss` for `ß`, where all in capitals is `SS`. */
function initial(letter: string): string {
  const [first = "", ...rest] = letter.toUpperCase();
  return first + rest.join("").toLowerCase();
}

/** As Python's `str.title`: every run of letters starts with a capital. */
const titled = (text: string) =>
  text.toLowerCase().replace(/\p{L}+/gu, ([first, ...rest]) => initial(first!) + rest.join(""));

export const capitalized = ([first = "", ...rest]: string) => initial(first) + rest.join("").toLowerCase();

const letters = (text: string, test: RegExp) => text !== "" && test.test(text);
/** Index in characters, as Python counts. */
const place = (text: string, part: Value | undefined) => {
  const at = text.indexOf(string(part));
  return at < 0 ? -1 : [...text.slice(0, at)].length;
};

function partition(text: string, separator: Value | undefined, at: number): Tuple {
  const by = string(separator);
  return at < 0 ? new Tuple([text, "", ""]) : new Tuple([text.slice(0, at), by, text.slice(at + by.length)]);
}

const TEXT: Readonly<Record<string, Method<string>>> = {
  strip: (text, [chars]) => strip(text, chars),
  lstrip: (text, [chars]) => strip(text, chars, "left"),
  rstrip: (text, [chars]) => strip(text, chars, "right"),
  split: (text, args) => split(text, args, "left"),
  rsplit: (text, args) => split(text, args, "right"),
  splitlines: (text) => {
    const lines = text.split(LINE_END);
    return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
  },
  replace,
  startswith: affix((text, part) => text.startsWith(part)),
  endswith: affix((text, part) => text.endsWith(part)),
  removeprefix: (text, [part]) => (text.startsWith(string(part)) ? text.slice(string(part).length) : text),
  removesuffix: (text, [part]) =>
    part !== "" && text.endsWith(string(part)) ? text.slice(0, text.length - string(part).length) : text,
  find: (text, [part]) => place(text, part),
  index: (text, [part]) => {
    const at = place(text, part);
    if (at < 0) throw new Error("substring not found");
    return at;
  },
  count: (text, [part]) => (part === "" ? [...text].length + 1 : text.split(string(part)).length - 1),
  partition: (text, [by]) => partition(text, by, text.indexOf(string(by))),
  rpartition: (text, [by]) => {
    const at = text.lastIndexOf(string(by));
    return at < 0 ? new Tuple(["", "", text]) : partition(text, by, at);
  },
  upper: (text) => text.toUpperCase(),
  lower: (text) => text.toLowerCase(),
  title: titled,
  capitalize: capitalized,
  isdigit: (text) => letters(text, /^\p{Decimal_Number}+$/u),
  isalpha: (text) => letters(text, /^\p{L}+$/u),
  isalnum: (text) => letters(text, /^[\p{L}\p{N}]+$/u),
  isspace: (text) => letters(text, new RegExp(`^[${SPACES}]+$`)),
  isupper: (text) => text !== text.toLowerCase() && text === text.toUpperCase(),
  islower: (text) => text !== text.toUpperCase() && text === text.toLowerCase(),
  join(text, [items], work) {
    const parts = itemsOf(items ?? null, work).map((item) => string(item));
    work.room(parts.reduce((sum, part) => sum + part.length + text.length, 0));
    return parts.join(text);
  },
  zfill(text, [width], work) {
    work.room(integer(width, 0));
    const sign = /^[+-]/.exec(text)?.[0] ?? "";
    return sign + text.slice(sign.length).padStart(integer(width, 0) - sign.length, "0");
  },
};

const DICT: Readonly<Record<string, Method<Dict>>> = {
  get(dict, [key, fallback = null]) {
    const value = valueAt(dict, key!);
    return value === undefined ? fallback : value;
  },
  items: (dict) => [...dict].map((pair) => new Tuple(pair)),
  keys: (dict) => [...dict.keys()],
  values: (dict) => [...dict.values()],
  copy: (dict) => new Map(dict),
};

/** The key of a dict that a template makes. @throws for keys that no dict here holds: other than texts and whole numbers. */
export function keyOf(value: Value | undefined): string | number {
  if (typeof value === "string" || typeof value === "number") return value;
  throw new Error(`a dict takes texts and whole numbers as keys here, not '${typeName(value ?? null)}'`);
}

/** The value under a key. True is the key 1 and 1.0 too, as in Python. @throws for a list or a dict as key */
export function valueAt(dict: Dict, key: Value): Value | undefined {
  if (isList(key) || isDict(key)) throw new Error(`unhashable type: '${typeName(key)}'`);
  if (typeof key === "string") return dict.get(key);
  const number = numberIn(key);
  return number === undefined ? undefined : dict.get(number);
}

/** A method bound to its object; `undefined` where there is none of that name. */
export function methodOf(self: Value, name: string, work: Work): Callable | undefined {
  const bind = <T>(table: Readonly<Record<string, Method<T>>>, it: T): Callable | undefined => {
    const method = Object.hasOwn(table, name) ? table[name]! : undefined;
    return method && ((args, named) => method(it, counted(name, withNamed(name, args, named)), work));
  };
  if (typeof self === "string") {
    // Each call reads the whole text.
    work.room(self.length);
    return bind(TEXT, self);
  }
  if (self instanceof Map) return bind(DICT, self as Dict);
  return isList(self) && name === "index" ? (args) => indexIn(self, counted(name, args)[0]!, work) : undefined;
}

/** Arguments that a method takes here, least and most. The others take none. */
const COUNTS: Readonly<Record<string, readonly [least: number, most: number]>> = {
  ...Object.fromEntries(["strip", "lstrip", "rstrip"].map((name) => [name, [0, 1]] as const)),
  ...Object.fromEntries(["split", "rsplit"].map((name) => [name, [0, 2]] as const)),
  // Python's places to begin and end at are not among them.
  ...Object.fromEntries(
    "startswith endswith removeprefix removesuffix find index count partition rpartition join zfill"
      .split(" ")
      .map((name) => [name, [1, 1]] as const),
  ),
  replace: [2, 3],
  get: [1, 2],
};

function counted(method: string, args: readonly Value[]): readonly Value[] {
  const [least, most] = Object.hasOwn(COUNTS, method) ? COUNTS[method]! : [0, 0];
  if (args.length >= least && args.length <= most) return args;
  throw new Error(
    `${method}() takes ${least === most ? least : `${least} to ${most}`} argument${most === 1 ? "" : "s"} here (${args.length})`,
  );
}

/** @throws where no item of the list equals it, as in Python. */
function indexIn(list: readonly Value[], item: Value, work: Work): number {
  const at = list.findIndex((each) => isEqual(each, item, work));
  if (at >= 0) return at;
  throw new Error(`${textOf(item, work)} is not in list`);
}

/** Names of arguments that templates use, at their places; those before them go by place alone. */
const NAMED: Readonly<Record<string, readonly string[]>> = {
  replace: ["", "", "count"],
  split: ["sep", "maxsplit"],
  rsplit: ["sep", "maxsplit"],
};

/** Arguments at their places; None stands for one that is left out before a named one. */
function withNamed(method: string, args: readonly Value[], named: ReadonlyMap<string, Value>): readonly Value[] {
  const all: (Value | undefined)[] = [...args];
  for (const [name, value] of named) {
    const at = (NAMED[method] ?? []).indexOf(name);
    if (at < 0) throw new Error(`${method}() takes no argument named ${name}`);
    if (at < args.length) throw new Error(`${method}() has two values for ${name}`);
    all[at] = value;
  }
  return Array.from(all, (value) => (value === undefined ? null : value));
}
