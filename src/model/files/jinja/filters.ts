/** Jinja's filters, as transformers has them. */
import { attributeOf, type Filter, read } from "./filter.ts";
import { dictsort, extreme, join, sort, sum, unique } from "./list_filters.ts";
import { capitalized, keyOf, LINE_END, replace, strip } from "./methods.ts";
import { jsonText, textOf } from "./print.ts";
import { testNamed } from "./tests.ts";
import {
  type Dict,
  Float,
  isDict,
  isTrue,
  itemsOf,
  lengthOf,
  numberIn,
  orUndefined,
  Tuple,
  typeName,
  Undefined,
  type Value,
  type Work,
} from "./value.ts";

/** `select("odd")`, `selectattr("role", "equalto", "user")` and their opposites. */
function chosen(keep: boolean, byAttribute: boolean): Filter {
  return (value, { args, work }) => {
    if (byAttribute && args.length === 0) throw new Error("selectattr and rejectattr take the name of an attribute");
    const [attribute, rest] = byAttribute ? [args[0]!, args.slice(1)] : [undefined, args];
    const [name, ...others] = rest;
    const test = name === undefined ? isTrue : testNamed(String(name));
    return itemsOf(value, work).filter((item) => {
      work.spend(1);
      return test(attribute === undefined ? item : attributeOf(item, attribute), others, work) === keep;
    });
  };
}

const map: Filter = (value, given) => {
  const { args, named, work } = given;
  const items = itemsOf(value, work);
  if (args.length > 0 || !named.has("attribute")) {
    const filter = filterOf(String(args[0]));
    return items.map((item) => filter(item, { ...given, args: args.slice(1) }));
  }
  const { attribute, default: fallback } = read(given, "attribute", "default");
  return items.map((item) => {
    work.spend(1);
    const found = attributeOf(item, attribute!);
    return found instanceof Undefined && fallback !== undefined ? fallback : found;
  });
};

const tojson: Filter = (value, given) => {
  const {
    ensure_ascii,
    indent = null,
    separators = null,
    sort_keys,
  } = read(given, "ensure_ascii", "indent", "separators", "sort_keys");
  const pair = separators === null ? [indent === null ? ", " : ",", ": "] : itemsOf(separators, given.work);
  if (indent !== null && typeof indent !== "number" && typeof indent !== "string")
    throw new Error("indent must be a number");
  if (typeof indent === "number") given.work.room(indent);
  return jsonText(
    value,
    {
      indent,
      separators: [textOf(pair[0]!, given.work), textOf(pair[1]!, given.work)],
      ascii: isTrue(ensure_ascii ?? false),
      sortKeys: isTrue(sort_keys ?? false),
    },
    given.work,
  );
};

const fallback: Filter = (value, given) => {
  const { default_value = "", boolean = false } = read(given, "default_value", "boolean");
  return value instanceof Undefined || (isTrue(boolean) && !isTrue(value)) ? default_value : value;
};

const indent: Filter = (value, given) => {
  const { width = 4, first = false, blank = false } = read(given, "width", "first", "blank");
  const text = textOf(value, given.work);
  const lines = text.split(LINE_END);
  given.work.room(text.length + lines.length * (typeof width === "number" ? width : textOf(width, given.work).length));
  const space = typeof width === "number" ? " ".repeat(width) : textOf(width, given.work);
  const [head = "", ...rest] = lines;
  const body = rest.map((line) => (line !== "" || isTrue(blank) ? space + line : line));
  return (isTrue(first) ? space : "") + [head, ...body].join("\n");
};

const int: Filter = (value, given) => {
  const { default: other = 0 } = read(given, "default");
  if (value instanceof Float && value.isInt) return value;
  const number = numberOf(value);
  return number === undefined || !Number.isFinite(number) ? other : Math.trunc(number);
};

const float: Filter = (value, given) => {
  const { default: other = new Float(0) } = read(given, "default");
  const number = numberOf(value);
  return number === undefined ? other : new Float(number);
};

/** @throws for a missing name, for which Jinja takes no default either */
function numberOf(value: Value): number | undefined {
  if (value instanceof Undefined) throw new Error(`'${value.name}' is undefined`);
  return typeof value === "string" ? numberInText(value) : numberIn(value);
}

function numberInText(text: string): number | undefined {
  // No number is longer, and the pattern takes the square of the length.
  if (text.length > 1000) return undefined;
  return /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(text) ? Number(text) : undefined;
}

const round: Filter = (value, given) => {
  const { precision = 0 } = read(given, "precision");
  const number = numberIn(value);
  if (number === undefined || typeof precision !== "number") throw new Error("round takes a number");
  const rounded = precision < 0 ? toEven(number / 10 ** -precision) * 10 ** -precision : decimal(number, precision);
  return value instanceof Float ? new Float(rounded) : rounded;
};

/** Halves go to the even number, as in Python. */
function toEven(value: number): number {
  return Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value);
}

/** The nearest decimal of so many places to the exact value: 0.35 is less than 0.35, and becomes 0.3. */
function decimal(value: number, places: number): number {
  const digits = Math.min(places, 40);
  // The exact value, of which a half has one digit more.
  const rest = Math.abs(value)
    .toFixed(digits + 60)
    .slice(-60);
  return /^50*$/.test(rest) ? toEven(value * 10 ** digits) / 10 ** digits : Number(value.toFixed(digits));
}

/** A filter without arguments. */
const plain =
  (change: (value: Value, work: Work) => Value): Filter =>
  (value, given) => {
    read(given);
    return change(value, given.work);
  };

/** One that changes a text. */
const onText = (change: (text: string) => string): Filter => plain((value, work) => changed(value, { change, work }));

function changed(value: Value, { change, work }: { change: (text: string) => string; work: Work }): string {
  const text = textOf(value, work);
  work.room(text.length);
  return change(text);
}

/** As Jinja's filter, which differs from Python's `str.title`: words begin after spaces, dashes and brackets. */
const title = onText((text) =>
  text
    .split(/([-\s({[<]+)/)
    .map((part) => (part === "" ? "" : part[0]!.toUpperCase() + part.slice(1).toLowerCase()))
    .join(""),
);

const length = plain(lengthOf);
const first = plain((value, work) => orUndefined(itemsOf(value, work)[0], "first"));
const last = plain((value, work) => orUndefined(itemsOf(value, work).at(-1), "last"));

const abs = plain((value) => {
  const number = numberIn(value);
  if (number === undefined) throw new Error(`bad operand type for abs(): '${typeName(value)}'`);
  return value instanceof Float ? new Float(Math.abs(number)) : Math.abs(number);
});

const items = plain((value) => {
  if (value instanceof Undefined) return [];
  if (!isDict(value)) throw new Error("items takes a dict");
  return [...value].map((pair) => new Tuple(pair));
});

const reverse = plain((value, work) => {
  const reversed = [...itemsOf(value, work)].reverse();
  return typeof value === "string" ? reversed.join("") : reversed;
});

const FILTERS: Readonly<Record<string, Filter>> = {
  abs,
  capitalize: onText(capitalized),
  count: length,
  d: fallback,
  default: fallback,
  dictsort,
  first,
  float,
  indent,
  int,
  items,
  join,
  last,
  length,
  list: plain((value, work) => [...itemsOf(value, work)]),
  lower: onText((text) => text.toLowerCase()),
  map,
  max: extreme(1),
  min: extreme(-1),
  reject: chosen(false, false),
  rejectattr: chosen(false, true),
  replace: (value, given) => {
    const { old, new: by, count = null } = read(given, "old", "new", "count");
    if (old === undefined || by === undefined) throw new Error("replace takes an old and a new text");
    const texts = [value, old, by].map((each) => textOf(each, given.work)) as [string, string, string];
    return replace(texts[0], [texts[1], texts[2], count], given.work);
  },
  reverse,
  round,
  safe: plain((value) => value),
  select: chosen(true, false),
  selectattr: chosen(true, true),
  sort,
  string: plain(textOf),
  sum,
  title,
  tojson,
  trim(value, given) {
    const { chars } = read(given, "chars");
    return changed(value, { change: (text) => strip(text, chars), work: given.work });
  },
  unique,
  upper: onText((text) => text.toUpperCase()),
};

/** @throws for a name that is not a filter here. */
export function filterOf(name: string): Filter {
  if (Object.hasOwn(FILTERS, name)) return FILTERS[name]!;
  throw new Error(`there is no filter ${name}`);
}

/** `dict(mapping, key=value)`. */
export function dictOf(args: readonly Value[], named: ReadonlyMap<string, Value>, work: Work): Dict {
  const [from] = args;
  if (args.length > 1) throw new Error(`dict takes at most 1 argument (${args.length})`);
  if (from === undefined) return new Map(named);
  if (isDict(from)) return new Map<string | number, Value>([...from, ...named]);
  const pairs = itemsOf(from, work).map((pair) => itemsOf(pair, work));
  return new Map<string | number, Value>([...pairs.map(([key, value]) => [keyOf(key), value!] as const), ...named]);
}
