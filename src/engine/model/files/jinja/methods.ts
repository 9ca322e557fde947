/** Methods of Python's values that templates call. */
import { escaped } from "./markup.ts";
import { pythonStr } from "./print.ts";
import {
  Dict,
  isDict,
  isEqual,
  isJinjaList,
  isPythonInt,
  isTrue,
  itemsOf,
  type JinjaValue,
  Markup,
  type PythonCallable,
  PythonFloat,
  sequenceIn,
  Tuple,
  textIn,
  typeName,
  View,
  type WorkCounter,
} from "./value.ts";

type Method<T> = (self: T, args: readonly JinjaValue[], work: WorkCounter) => JinjaValue;

/** Characters that Python's `str.strip` removes. They differ from those of JavaScript's `trim`. */
const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const IS_SPACE = new RegExp(`^[${SPACES}]$`);
const WORD = new RegExp(`[^${SPACES}]+`, "g");
/** Places where Python's `str.splitlines` cuts. */
const LINE_ENDS = "\\r\\n|[\\n\\r\\v\\f\\x1c-\\x1e\\x85\\u2028\\u2029]";
export const LINE_END = new RegExp(LINE_ENDS);

const optional = (value: JinjaValue | undefined) => (value === null ? undefined : value);

/** Returns a text without the given characters, or spaces, at its ends. */
export function strip(text: string, chars?: JinjaValue, sides: "left" | "right" | "both" = "both"): string {
  const characters = optional(chars);
  const set = characters === undefined ? undefined : new Set(string(characters));
  const isCut = (letter: string) => (set ? set.has(letter) : IS_SPACE.test(letter));
  const letters = [...text];
  let [from, to] = [0, letters.length];
  if (sides !== "right") while (from < to && isCut(letters[from]!)) from++;
  if (sides !== "left") while (to > from && isCut(letters[to - 1]!)) to--;
  return letters.slice(from, to).join("");
}

function string(value: JinjaValue | undefined): string {
  const text = textIn(value);
  if (text !== undefined) return text;
  throw new Error(`expected str, not ${value === undefined ? "nothing" : typeName(value)}`);
}

function integer(value: JinjaValue | undefined, fallback: number): number {
  if (value === undefined) return fallback;
  if (isPythonInt(value)) return Number(value);
  throw new Error(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

function split(text: string, [separator, most]: readonly JinjaValue[], from: "left" | "right"): string[] {
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

export function pythonReplace(text: string, [old, by, most]: readonly JinjaValue[], work: WorkCounter): string {
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
  return (text, [part, from, to]) => {
    const { text: within, isInside } = window(text, from, to);
    const fits = (each: JinjaValue | undefined) => test(within, string(each)) && (isInside || string(each) !== "");
    // Python reads every one only until it finds one.
    return part instanceof Tuple ? part.items.some(fits) : fits(part);
  };
}

/** The part of a text between two places, which count from the end where they are negative. */
function window(text: string, from: JinjaValue | undefined, to: JinjaValue | undefined) {
  if (optional(from) === undefined && optional(to) === undefined) return { text, start: 0, isInside: true };
  const letters = [...text];
  const place = (at: number) => Math.max(at < 0 ? at + letters.length : at, 0);
  const start = place(integer(optional(from), 0));
  const stop = place(integer(optional(to), letters.length));
  return { text: letters.slice(start, stop).join(""), start, isInside: start <= Math.min(stop, letters.length) };
}

/** A capital that stands before small letters: `Ss` for `ß`, where all in capitals is `SS`. */
function initial(letter: string): string {
  const digraph = "ǄǅǆǇǈǉǊǋǌǱǲǳ".indexOf(letter);
  if (letter !== "" && digraph >= 0) return "ǅǈǋǲ"[Math.floor(digraph / 3)]!;
  const [first = "", ...rest] = letter.toUpperCase();
  return first + rest.join("").toLowerCase();
}

/** Titles like Python's `str.title`: every run of letters that have a case starts with a capital. */
const titled = (text: string) =>
  text.replace(/\p{Cased}+/gu, (run) => {
    const [first = "", ...rest] = run;
    return initial(first) + rest.join("").toLowerCase();
  });

export const capitalized = ([first = "", ...rest]: string) => initial(first) + rest.join("").toLowerCase();

const letters = (text: string, test: RegExp) => text !== "" && test.test(text);

/** Index of a part in characters, as Python counts; -1 where there is none. */
function place(text: string, [part, from, to]: readonly JinjaValue[], isLast = false): number {
  const { text: within, start, isInside } = window(text, from, to);
  const at = isLast ? within.lastIndexOf(string(part)) : within.indexOf(string(part));
  return at < 0 || !isInside ? -1 : start + [...within.slice(0, at)].length;
}

function found(text: string, args: readonly JinjaValue[], isLast = false): number {
  const at = place(text, args, isLast);
  if (at < 0) throw new Error("substring not found");
  return at;
}

function counts(text: string, [part, from, to]: readonly JinjaValue[]): number {
  const { text: within, isInside } = window(text, from, to);
  if (!isInside) return 0;
  return string(part) === "" ? [...within].length + 1 : within.split(string(part)).length - 1;
}

/** Lines, with their ends where `keepends` is true; the end of the last one begins no other. */
function lines(text: string, [keeps = false]: readonly JinjaValue[]): string[] {
  const out: string[] = [];
  let at = 0;
  for (const { 0: end, index } of text.matchAll(new RegExp(LINE_END, "g"))) {
    out.push(text.slice(at, isTrue(keeps) ? index + end.length : index));
    at = index + end.length;
  }
  return at < text.length ? [...out, text.slice(at)] : out;
}

/** Pads to so many characters at least: the text at its left, its right or between, where Python rounds by the width. */
function padded(side: "left" | "right" | "both"): Method<string> {
  return (text, [width, fill = " "], work) => {
    const most = integer(width, 0);
    if ([...string(fill)].length !== 1) throw new Error("The fill character must be exactly one character long");
    work.room(most);
    const missing = Math.max(most - [...text].length, 0);
    const half = Math.floor(missing / 2) + (missing & most & 1);
    const before = side === "left" ? 0 : side === "right" ? missing : half;
    return string(fill).repeat(before) + text + string(fill).repeat(missing - before);
  };
}

function expandTabs(text: string, [size]: readonly JinjaValue[], work: WorkCounter): string {
  const width = integer(size, 8);
  work.room(text.length + Math.max(width, 0) * (text.split("\t").length - 1));
  let column = 0;
  return [...text]
    .map((letter) => {
      const space = letter === "\t" ? (width > 0 ? width - (column % width) : 0) : 1;
      column = letter === "\n" || letter === "\r" ? 0 : column + space;
      return letter === "\t" ? " ".repeat(space) : letter;
    })
    .join("");
}

const swapped = (text: string) =>
  [...text].map((letter) => (letter === letter.toLowerCase() ? letter.toUpperCase() : letter.toLowerCase())).join("");

/** Titles are those texts that `title` leaves as they are, and that have a letter with a case. */
const isTitle = (text: string) => /\p{Cased}/u.test(text) && text === titled(text);

function partition(text: string, separator: JinjaValue | undefined, at: number): Tuple {
  const by = string(separator);
  if (by === "") throw new Error("empty separator");
  return at < 0 ? new Tuple([text, "", ""]) : new Tuple([text.slice(0, at), by, text.slice(at + by.length)]);
}

const TEXT: Readonly<Record<string, Method<string>>> = {
  strip: (text, [chars]) => strip(text, chars),
  lstrip: (text, [chars]) => strip(text, chars, "left"),
  rstrip: (text, [chars]) => strip(text, chars, "right"),
  split: (text, args) => split(text, args, "left"),
  rsplit: (text, args) => split(text, args, "right"),
  splitlines: lines,
  replace: pythonReplace,
  startswith: affix((text, part) => text.startsWith(part)),
  endswith: affix((text, part) => text.endsWith(part)),
  removeprefix: (text, [part]) => (text.startsWith(string(part)) ? text.slice(string(part).length) : text),
  removesuffix: (text, [part]) =>
    part !== "" && text.endsWith(string(part)) ? text.slice(0, text.length - string(part).length) : text,
  find: (text, args) => place(text, args),
  rfind: (text, args) => place(text, args, true),
  index: (text, args) => found(text, args),
  rindex: (text, args) => found(text, args, true),
  count: counts,
  center: padded("both"),
  ljust: padded("left"),
  rjust: padded("right"),
  expandtabs: expandTabs,
  swapcase: swapped,
  casefold: (text) => text.toLowerCase().replace(/ß/g, "ss").replace(/ς/g, "σ"),
  partition: (text, [by]) => partition(text, by, text.indexOf(string(by))),
  rpartition: (text, [by]) => {
    const at = text.lastIndexOf(string(by));
    return at < 0 && by !== "" ? new Tuple(["", "", text]) : partition(text, by, at);
  },
  upper: (text) => text.toUpperCase(),
  lower: (text) => text.toLowerCase(),
  title: titled,
  capitalize: capitalized,
  isdigit: (text) => letters(text, /^[\p{Nd}\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089]+$/u),
  isdecimal: (text) => letters(text, /^\p{Nd}+$/u),
  isnumeric: (text) => letters(text, /^[\p{N}一二三四五六七八九十百千万億兆零]+$/u),
  isalpha: (text) => letters(text, /^\p{L}+$/u),
  isalnum: (text) => letters(text, /^[\p{L}\p{N}]+$/u),
  isascii: (text) => /^[\0-\x7f]*$/.test(text),
  isspace: (text) => letters(text, new RegExp(`^[${SPACES}]+$`)),
  isprintable: (text) => !/\p{C}|(?! )\p{Z}/u.test(text),
  isidentifier: (text) => letters(text, /^[\p{ID_Start}_]\p{ID_Continue}*$/u),
  istitle: isTitle,
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
    const missing = Math.max(integer(width, 0) - [...text].length, 0);
    return sign + "0".repeat(missing) + text.slice(sign.length);
  },
};

const DICT: Readonly<Record<string, Method<Dict>>> = {
  get(dict, [key, fallback = null]) {
    const value = dict.get(key!);
    return value === undefined ? fallback : value;
  },
  items: (dict) => new View("dict_items", pairsOf(dict)),
  keys: (dict) => new View("dict_keys", dict.keys()),
  values: (dict) => new View("dict_values", dict.values()),
  copy: (dict) => new Dict(dict),
};

export const pairsOf = (dict: Dict): Tuple[] => Array.from(dict, (pair) => new Tuple(pair));

const SEQUENCE: Readonly<Record<string, Method<readonly JinjaValue[]>>> = {
  index: indexIn,
  count: (items, [item], work) => items.filter((each) => isEqual(each, item!, work)).length,
};
const LIST: typeof SEQUENCE = { ...SEQUENCE, copy: (items) => [...items] };

const FLOAT: Readonly<Record<string, Method<PythonFloat>>> = { is_integer: ({ value }) => Number.isInteger(value) };

/** A method bound to its object; `undefined` where there is none of that name, and for those that change it. */
export function methodOf(self: JinjaValue, name: string, work: WorkCounter): PythonCallable | undefined {
  const bind = <T>(table: Readonly<Record<string, Method<T>>>, receiver: T): PythonCallable | undefined => {
    const method = Object.hasOwn(table, name) ? table[name]! : undefined;
    return (
      method &&
      ((args, named) => {
        // Each call reads the whole text, list or dict.
        work.room(size);
        return method(receiver, counted(name, withNamed(name, args, named)), work);
      })
    );
  };
  const text = textIn(self);
  const size = text?.length ?? (isDict(self) ? self.size : (sequenceIn(self)?.length ?? 0));
  if (text !== undefined) {
    const method = bind(TEXT, text);
    return method && self instanceof Markup ? marked(name, method) : method;
  }
  if (isDict(self)) return bind(DICT, self);
  if (self instanceof PythonFloat) return bind(FLOAT, self);
  if (isJinjaList(self)) return bind(LIST, self);
  return self instanceof Tuple || (self instanceof View && self.kind === "range")
    ? bind(SEQUENCE, sequenceIn(self)!)
    : undefined;
}

/** Methods of a marked text whose arguments are escaped. */
const ESCAPING = new Set(["join", "replace", "ljust", "rjust", "center"]);

/** A method of a text marked as HTML, whose texts are marked too. */
function marked(name: string, method: PythonCallable): PythonCallable {
  const mark = (value: JinjaValue): JinjaValue => {
    if (typeof value === "string") return new Markup(value);
    if (value instanceof Tuple) return new Tuple(value.items.map(mark));
    return isJinjaList(value) ? value.map(mark) : value;
  };
  const safe = (value: JinjaValue): JinjaValue => {
    const items = sequenceIn(value);
    const text = textIn(value);
    return items ? items.map(safe) : text === undefined ? value : escaped(value, text);
  };
  return (args, named) => {
    // What `replace` looks for stays as it is.
    const escaped = ESCAPING.has(name) ? args.map((arg, i) => (name === "replace" && i === 0 ? arg : safe(arg))) : args;
    return mark(method(escaped, named));
  };
}

/** Arguments that a method takes, least and most. The others take none. */
const COUNTS: Readonly<Record<string, readonly [least: number, most: number]>> = {
  ...Object.fromEntries("strip lstrip rstrip splitlines expandtabs".split(" ").map((name) => [name, [0, 1]] as const)),
  ...Object.fromEntries(["split", "rsplit"].map((name) => [name, [0, 2]] as const)),
  ...Object.fromEntries(
    "startswith endswith find rfind index rindex count".split(" ").map((name) => [name, [1, 3]] as const),
  ),
  ...Object.fromEntries(
    "removeprefix removesuffix partition rpartition join zfill".split(" ").map((name) => [name, [1, 1]] as const),
  ),
  ...Object.fromEntries("center ljust rjust get".split(" ").map((name) => [name, [1, 2]] as const)),
  replace: [2, 3],
};

function counted(method: string, args: readonly JinjaValue[]): readonly JinjaValue[] {
  const [least, most] = Object.hasOwn(COUNTS, method) ? COUNTS[method]! : [0, 0];
  if (args.length >= least && args.length <= most) return args;
  throw new Error(
    `${method}() takes ${least === most ? least : `${least} to ${most}`} argument${most === 1 ? "" : "s"} here (${args.length})`,
  );
}

/** @throws where no item of the list equals it, as in Python. */
function indexIn(list: readonly JinjaValue[], [item, from, to]: readonly JinjaValue[], work: WorkCounter): number {
  const clamp = (at: number) => Math.max(at < 0 ? at + list.length : at, 0);
  const [start, stop] = [clamp(integer(from, 0)), clamp(integer(to, list.length))];
  const at = list.slice(0, stop).findIndex((each, i) => i >= start && isEqual(each, item!, work));
  if (at >= 0) return at;
  throw new Error(`${pythonStr(item!, work)} is not in list`);
}

/** Names of arguments that templates use, at their places; those before them go by place alone. */
const NAMED: Readonly<Record<string, readonly string[]>> = {
  expandtabs: ["tabsize"],
  // From Python 3.13 on.
  replace: ["", "", "count"],
  splitlines: ["keepends"],
  split: ["sep", "maxsplit"],
  rsplit: ["sep", "maxsplit"],
};

/** Arguments at their places; None stands for one that is left out before a named one. */
function withNamed(
  method: string,
  args: readonly JinjaValue[],
  named: ReadonlyMap<string, JinjaValue>,
): readonly JinjaValue[] {
  const positional: (JinjaValue | undefined)[] = [...args];
  for (const [name, value] of named) {
    const at = (NAMED[method] ?? []).indexOf(name);
    if (at < 0) throw new Error(`${method}() takes no argument named ${name}`);
    if (at < args.length) throw new Error(`${method}() has two values for ${name}`);
    positional[at] = value;
  }
  return Array.from(positional, (value) => (value === undefined ? null : value));
}
