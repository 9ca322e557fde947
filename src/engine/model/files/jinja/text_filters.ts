/** Filters that change a text. A text marked as HTML stays marked where Jinja2 leaves it so. */
import { type FilterFunction, read, wholeArgument } from "./filter.ts";
import { toMarkup } from "./markup.ts";
import { capitalized, LINE_END, methodOf, pythonReplace, strip } from "./methods.ts";
import { fixed, numberInText } from "./numbers.ts";
import { pythonStr } from "./print.ts";
import {
  isDict,
  isTrue,
  itemsOf,
  type JinjaValue,
  lengthOf,
  Markup,
  numberIn,
  textIn,
  typeName,
  Undefined,
  type WorkCounter,
} from "./value.ts";

/** The result with the mark of the value. */
const like = (value: JinjaValue, text: string): JinjaValue => (value instanceof Markup ? new Markup(text) : text);

function changed(value: JinjaValue, work: WorkCounter, change: (text: string) => string): JinjaValue {
  const text = pythonStr(value, work);
  work.room(text.length);
  return like(value, change(text));
}

/** A filter without arguments that changes a text. */
const onText =
  (change: (text: string) => string): FilterFunction =>
  (value, args) => {
    read(args);
    return changed(value, args.work, change);
  };

export const capitalize = onText(capitalized);
export const lower = onText((text) => text.toLowerCase());
export const upper = onText((text) => text.toUpperCase());

/** Titles like Jinja's filter, which differs from Python's `str.title`: words begin after spaces, dashes and brackets. */
export const title: FilterFunction = (value, args) => {
  read(args);
  const text = changed(value, args.work, (plain) =>
    plain
      .split(/([-\s({[<]+)/)
      .map((part) => (part === "" ? "" : part[0]!.toUpperCase() + part.slice(1).toLowerCase()))
      .join(""),
  );
  return pythonStr(text, args.work);
};

export const trim: FilterFunction = (value, args) => {
  const { chars } = read(args, "chars");
  return changed(value, args.work, (text) => strip(text, chars));
};

export const center: FilterFunction = (value, args) => {
  const { width = 80 } = read(args, "width");
  const text = textIn(value) === undefined ? pythonStr(value, args.work) : value;
  return methodOf(text, "center", args.work)!([width], new Map());
};

export const replace: FilterFunction = (value, args) => {
  const { old, new: by, count: most = null } = read(args, "old", "new", "count");
  if (old === undefined || by === undefined) throw new Error("replace takes an old and a new text");
  const texts = [value, old, by].map((each) => pythonStr(each, args.work)) as [string, string, string];
  return pythonReplace(texts[0], [texts[1], texts[2], most], args.work);
};

export const indent: FilterFunction = (value, args) => {
  const { width = 4, first = false, blank = false } = read(args, "width", "first", "blank");
  const text = textIn(value);
  if (text === undefined) throw new Error(`indent takes a text, not '${typeName(value)}'`);
  const space = textIn(width) ?? " ".repeat(Math.max(spaces(width, args.work), 0));
  const lines = text.split(LINE_END);
  args.work.room(text.length + lines.length * space.length);
  const [head = "", ...rest] = lines;
  const body = rest.map((line) => (line !== "" || isTrue(blank) ? space + line : line));
  return like(value, (isTrue(first) ? space : "") + [head, ...body].join("\n"));
};

function spaces(width: JinjaValue, work: WorkCounter): number {
  const size = wholeArgument(width, "width");
  work.room(size);
  return size;
}

export const truncate: FilterFunction = (value, args) => {
  const { length = 255, killwords = false, end = "...", leeway } = read(args, "length", "killwords", "end", "leeway");
  const [size, slack] = [
    wholeArgument(length, "length"),
    leeway === undefined || leeway === null ? 5 : wholeArgument(leeway, "leeway"),
  ];
  const text = textIn(value);
  if (text === undefined && lengthOf(value, args.work) <= size + slack) return value;
  if (text === undefined) throw new Error(`truncate takes a text, not '${typeName(value)}'`);
  args.work.room(text.length);
  const [letters, tail] = [[...text], pythonStr(end, args.work)];
  const kept = size - [...tail].length;
  if (kept < 0) throw new Error(`expected length >= ${[...tail].length}, got ${size}`);
  if (slack < 0) throw new Error(`expected leeway >= 0, got ${slack}`);
  if (letters.length <= size + slack) return value;
  const cut = letters.slice(0, kept).join("");
  const space = cut.lastIndexOf(" ");
  const head = isTrue(killwords) || space < 0 ? cut : cut.slice(0, space);
  return value instanceof Markup ? new Markup(head + pythonStr(toMarkup(end, args.work), args.work)) : head + tail;
};

/** Runs of what Python's `\\w` has. */
export const wordcount: FilterFunction = (value, args) => {
  read(args);
  const text = pythonStr(value, args.work);
  args.work.room(text.length);
  return text.match(/[\p{L}\p{N}_]+/gu)?.length ?? 0;
};

const UNITS = "kMGTPEZY";

export const filesizeformat: FilterFunction = (value, args) => {
  const { binary = false } = read(args, "binary");
  const text = textIn(value);
  const bytes = Number(text === undefined ? numberIn(value) : numberInText(text));
  if (Number.isNaN(bytes)) throw new Error("filesizeformat takes a number");
  const base = isTrue(binary) ? 1024 : 1000;
  if (bytes === 1) return "1 Byte";
  if (bytes < base) return `${Math.trunc(bytes)} Bytes`;
  const found = [...UNITS].findIndex((_, i) => bytes < base ** (i + 2));
  const at = found < 0 ? UNITS.length - 1 : found;
  const unit = isTrue(binary) ? `${UNITS[at]!.toUpperCase()}iB` : `${UNITS[at]}B`;
  return `${fixed((base * bytes) / base ** (at + 2), 1)} ${unit}`;
};

/** Quotes like Python's `quote`: a path keeps its slashes, a query has a plus for a space. */
function quoted(value: JinjaValue, work: WorkCounter, isQuery = false): string {
  work.room(textIn(value)?.length ?? 0);
  const text = encodeURIComponent(pythonStr(value, work)).replace(
    /[!'()*]/g,
    (each) => `%${each.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return isQuery ? text.replaceAll("%20", "+") : text.replaceAll("%2F", "/");
}

export const urlencode: FilterFunction = (value, args) => {
  read(args);
  const { work } = args;
  const isOne = textIn(value) !== undefined || numberIn(value) !== undefined || value === null;
  if (isOne) return quoted(value, work);
  const pairs = isDict(value) ? [...value] : itemsOf(value, work).map((pair) => itemsOf(pair, work));
  if (pairs.some(({ length }) => length !== 2)) throw new Error("urlencode takes pairs of a key and a value");
  return pairs.map(([key, item]) => `${quoted(key!, work, true)}=${quoted(item!, work, true)}`).join("&");
};

export const xmlattr: FilterFunction = (value, args) => {
  const { autospace = true } = read(args, "autospace");
  if (!isDict(value)) throw new Error("xmlattr takes a dict");
  const parts = [...value]
    .filter(([, item]) => item !== null && !(item instanceof Undefined))
    .map(([key, item]) => {
      const name = textIn(key);
      if (name === undefined || /[\s/>=]/.test(name)) throw new Error("Invalid character in attribute name");
      return `${toMarkup(key, args.work).text}="${toMarkup(item, args.work).text}"`;
    });
  return (isTrue(autospace) && parts.length > 0 ? " " : "") + parts.join(" ");
};
