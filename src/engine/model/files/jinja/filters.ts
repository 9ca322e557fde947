/** Jinja's filters, as transformers has them. */
import { attributeOf, type FilterArguments, type FilterFunction, read } from "./filter.ts";
import {
  batch,
  dictsort,
  extreme,
  first,
  groupby,
  join,
  last,
  lazily,
  reverse,
  slice,
  sort,
  sum,
  unique,
} from "./list_filters.ts";
import { safe, toMarkup } from "./markup.ts";
import { pairsOf } from "./methods.ts";
import { intInText, numberInText, rounded, roundedInt } from "./numbers.ts";
import { attribute, binary, method } from "./operators.ts";
import { jsonText, pythonStr } from "./print.ts";
import { isTest, type JinjaTest, testNamed } from "./tests.ts";
import {
  capitalize,
  center,
  filesizeformat,
  indent,
  lower,
  replace,
  title,
  trim,
  truncate,
  upper,
  urlencode,
  wordcount,
  xmlattr,
} from "./text_filters.ts";
import {
  Dict,
  isDict,
  isTrue,
  itemsOf,
  type JinjaValue,
  Lazy,
  lengthOf,
  numberIn,
  orUndefined,
  PythonFloat,
  Tuple,
  textIn,
  typeName,
  Undefined,
  type WorkCounter,
  whole,
} from "./value.ts";

/** A test by its name, of which two ask for names. @throws for a name that is none. */
export function testOf(name: string, named?: ReadonlyMap<string, JinjaValue>): JinjaTest {
  if (name === "filter") return (value) => Object.hasOwn(FILTERS, textIn(value) ?? "");
  if (name === "test") return (value) => isTest(textIn(value) ?? "");
  return testNamed(name, named);
}

/** `select("odd")`, `selectattr("role", "equalto", "user")` and their opposites. */
function chosen(keep: boolean, byAttribute: boolean): FilterFunction {
  return (value, { args, named, work }) =>
    lazily(value, work, function* (items) {
      if (byAttribute && args.length === 0) throw new Error("selectattr and rejectattr take the name of an attribute");
      const [path, testArgs] = byAttribute ? [args[0]!, args.slice(1)] : [null, args];
      const [name, ...others] = testArgs;
      const test = name === undefined ? isTrue : testOf(pythonStr(name, work), named);
      for (const item of items) {
        if (test(byAttribute ? attributeOf(item, path, { work }) : item, others, work) === keep) yield item;
      }
    });
}

/** Jinja2 takes what is false, None too, for no items. */
const orNothing =
  (filter: FilterFunction): FilterFunction =>
  (value, args) =>
    isTrue(value) ? filter(value, args) : new Lazy([][Symbol.iterator]());

const map: FilterFunction = (value, args) =>
  lazily(value, args.work, function* (items) {
    const change = changeOf(args);
    for (const item of items) yield change(item);
  });

/** Returns the function that `map` applies to an item: `map("upper")`, `map(attribute="role")`. */
function changeOf(filterArgs: FilterArguments): (item: JinjaValue) => JinjaValue {
  const { args, named, work } = filterArgs;
  const [name, ...others] = args;
  if (name !== undefined) {
    const filter = filterOf(pythonStr(name, work));
    return (item) => filter(item, { args: others, named, work });
  }
  const { attribute: path, default: fallback } = read(filterArgs, "attribute", "default");
  if (path === undefined) throw new Error("map requires a filter argument");
  return (item) => attributeOf(item, path, { work, fallback });
}

const tojson: FilterFunction = (value, args) => {
  const {
    ensure_ascii,
    indent = null,
    separators = null,
    sort_keys,
  } = read(args, "ensure_ascii", "indent", "separators", "sort_keys");
  const pair = separators === null ? [indent === null ? ", " : ",", ": "] : itemsOf(separators, args.work);
  if (indent !== null && typeof indent !== "number" && typeof indent !== "string")
    throw new Error("indent must be a number");
  if (typeof indent === "number") args.work.room(indent);
  return jsonText(
    value,
    {
      indent,
      separators: [pythonStr(pair[0]!, args.work), pythonStr(pair[1]!, args.work)],
      ascii: isTrue(ensure_ascii ?? false),
      sortKeys: isTrue(sort_keys ?? false),
    },
    args.work,
  );
};

const fallback: FilterFunction = (value, args) => {
  const { default_value = "", boolean = false } = read(args, "default_value", "boolean");
  return value instanceof Undefined || (isTrue(boolean) && !isTrue(value)) ? default_value : value;
};

const int: FilterFunction = (value, args) => {
  const { default: other = 0, base = 10 } = read(args, "default", "base");
  const text = textIn(value);
  args.work.room(text?.length ?? 0);
  const exact = text === undefined ? undefined : intInText(text, base);
  if (exact !== undefined) return exact;
  const number = numberOf(value);
  if (typeof number === "bigint") return number;
  return number === undefined || !Number.isFinite(number) ? other : whole(BigInt(Math.trunc(number)));
};

const float: FilterFunction = (value, args) => {
  const { default: other = new PythonFloat(0) } = read(args, "default");
  const number = numberOf(value);
  return number === undefined ? other : new PythonFloat(Number(number));
};

/** @throws for a missing name, for which Jinja takes no default either */
function numberOf(value: JinjaValue): number | bigint | undefined {
  if (value instanceof Undefined) throw new Error(`'${value.name}' is undefined`);
  const text = textIn(value);
  return text === undefined ? numberIn(value) : numberInText(text);
}

const round: FilterFunction = (value, args) => {
  const { precision = 0, method = "common" } = read(args, "precision", "method");
  const number = numberIn(value);
  if (number === undefined || typeof precision !== "number") throw new Error("round takes a number");
  if (method === "ceil" || method === "floor") {
    const scale = 10 ** precision;
    return new PythonFloat(Math[method](Number(number) * scale) / scale);
  }
  if (method !== "common") throw new Error("method must be common, ceil or floor");
  return value instanceof PythonFloat
    ? new PythonFloat(rounded(value.value, precision))
    : roundedInt(number, precision);
};

/** A filter without arguments. */
const plain =
  (change: (value: JinjaValue, work: WorkCounter) => JinjaValue): FilterFunction =>
  (value, args) => {
    read(args);
    return change(value, args.work);
  };

const length = plain(lengthOf);

const abs = plain((value) => {
  const number = numberIn(value);
  if (number === undefined) throw new Error(`bad operand type for abs(): '${typeName(value)}'`);
  if (value instanceof PythonFloat) return new PythonFloat(Math.abs(value.value));
  return typeof number === "bigint" ? (number < 0n ? -number : number) : Math.abs(number);
});

const items = plain((value) => {
  const pairs = function* () {
    if (isDict(value)) yield* pairsOf(value);
    else if (!(value instanceof Undefined)) throw new Error("items takes a dict");
  };
  return new Lazy(pairs());
});

/** `"%s-%d" | format(a, b)` */
const format: FilterFunction = (value, { args, named, work }) => {
  if (args.length > 0 && named.size > 0) throw new Error("format takes arguments by place or by name, not both");
  const text = textIn(value) === undefined ? pythonStr(value, work) : value;
  return binary("%", [text, named.size > 0 ? new Dict(named) : new Tuple(args)], work);
};

const attr: FilterFunction = (value, args) => {
  const { name } = read(args, "name");
  const text = pythonStr(name ?? null, args.work);
  // The key of a dict is no attribute.
  return isDict(value) ? orUndefined(method(value, text, args.work), text) : attribute(value, text, args.work);
};

/** A filter of Jinja2 that no template needs, or whose result is by chance. */
const refused =
  (name: string): FilterFunction =>
  () => {
    throw new Error(`the filter ${name} is not supported`);
  };

const FILTERS: Readonly<Record<string, FilterFunction>> = {
  abs,
  attr,
  batch,
  capitalize,
  center,
  count: length,
  d: fallback,
  default: fallback,
  dictsort,
  e: plain((value, work) => toMarkup(value, work)),
  escape: plain((value, work) => toMarkup(value, work)),
  filesizeformat,
  first,
  float,
  forceescape: plain((value, work) => toMarkup(value, work, true)),
  format,
  groupby,
  indent,
  int,
  items,
  join,
  last,
  length,
  list: plain((value, work) => [...itemsOf(value, work)]),
  lower,
  map: orNothing(map),
  max: extreme(1),
  min: extreme(-1),
  pprint: refused("pprint"),
  random: refused("random"),
  reject: orNothing(chosen(false, false)),
  rejectattr: orNothing(chosen(false, true)),
  replace,
  reverse,
  round,
  safe: plain(safe),
  select: orNothing(chosen(true, false)),
  selectattr: orNothing(chosen(true, true)),
  slice,
  sort,
  string: plain((value, work) => (textIn(value) === undefined ? pythonStr(value, work) : value)),
  striptags: refused("striptags"),
  sum,
  title,
  tojson,
  trim,
  truncate,
  unique,
  upper,
  urlencode,
  urlize: refused("urlize"),
  wordcount,
  wordwrap: refused("wordwrap"),
  xmlattr,
};

/** @throws for a name that is not a filter here. */
export function filterOf(name: string): FilterFunction {
  if (Object.hasOwn(FILTERS, name)) return FILTERS[name]!;
  throw new Error(`there is no filter ${name}`);
}
