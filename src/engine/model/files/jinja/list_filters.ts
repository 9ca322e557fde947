/** Filters that choose, order, group, join and add up items. */
import { attributeOf, attributesOf, type FilterFunction, read, wholeArgument } from "./filter.ts";
import { pairsOf } from "./methods.ts";
import { binary } from "./operators.ts";
import { pythonStr } from "./print.ts";
import {
  compare,
  hashed,
  ItemGroup,
  isDict,
  isEqual,
  isTrue,
  itemsOf,
  iterate,
  type JinjaValue,
  Lazy,
  Markup,
  rest,
  sequenceIn,
  type Tuple,
  textIn,
  typeName,
  Undefined,
  type WorkCounter,
} from "./value.ts";

/** A text in small letters, unless its case counts. */
const folded =
  (isExact: JinjaValue | undefined) =>
  (value: JinjaValue): JinjaValue => {
    const text = textIn(value);
    return text === undefined || isTrue(isExact ?? false) ? value : text.toLowerCase();
  };

function sorted(
  items: readonly JinjaValue[],
  by: (item: JinjaValue) => JinjaValue,
  options: { reverse?: JinjaValue | undefined; work: WorkCounter },
): JinjaValue[] {
  const sign = isTrue(options.reverse ?? false) ? -1 : 1;
  return items
    .map((item) => [by(item), item] as const)
    .sort(([a], [b]) => sign * compare(a, b, options.work))
    .map(([, item]) => item);
}

export const join: FilterFunction = (value, args) => {
  const { d = "", attribute = null } = read(args, "d", "attribute");
  const { work } = args;
  const parts = itemsOf(value, work).map((item) => pythonStr(attributeOf(item, attribute, { work }), work));
  const between = pythonStr(d, work);
  work.room(parts.reduce((sum, part) => sum + part.length + between.length, 0));
  return parts.join(between);
};

export const dictsort: FilterFunction = (value, args) => {
  const { case_sensitive, by = "key", reverse } = read(args, "case_sensitive", "by", "reverse");
  if (!isDict(value)) throw new Error(`dictsort takes a dict, not '${typeName(value)}'`);
  if (by !== "key" && by !== "value") throw new Error("dictsort sorts by key or value");
  const change = folded(case_sensitive);
  const key = (pair: JinjaValue) => change((pair as Tuple).items[by === "value" ? 1 : 0]!);
  return sorted(pairsOf(value), key, { reverse, work: args.work });
};

export const sort: FilterFunction = (value, args) => {
  const { reverse, case_sensitive, attribute = null } = read(args, "reverse", "case_sensitive", "attribute");
  const { work } = args;
  const change = folded(case_sensitive);
  return sorted(itemsOf(value, work), (item) => attributesOf(item, attribute, { work, change }), { reverse, work });
};

export const unique: FilterFunction = (value, args) => {
  const { case_sensitive, attribute = null } = read(args, "case_sensitive", "attribute");
  return lazily(value, args.work, function* (items) {
    const seen = new Set<unknown>();
    for (const item of items) {
      const key = hashed(folded(case_sensitive)(attributeOf(item, attribute, args)));
      if (!seen.has(key)) yield item;
      seen.add(key);
    }
  });
};

/** Items that are made when they are read. */
export function lazily(
  value: JinjaValue,
  work: WorkCounter,
  make: (items: Generator<JinjaValue>) => Generator<JinjaValue>,
): Lazy {
  const whole = function* () {
    yield* make(rest(iterate(value, work), work));
  };
  return new Lazy(whole());
}

/** The smallest or largest item, by default ignoring case. */
export function extreme(sign: number): FilterFunction {
  return (value, args) => {
    const { case_sensitive, attribute = null } = read(args, "case_sensitive", "attribute");
    const { work } = args;
    const change = folded(case_sensitive);
    const [first, ...others] = itemsOf(value, work).map(
      (item) => [item, change(attributeOf(item, attribute, { work }))] as const,
    );
    if (first === undefined) return new Undefined("the largest or smallest item");
    return others.reduce((best, item) => (sign * compare(item[1], best[1], work) > 0 ? item : best), first)[0];
  };
}

export const sum: FilterFunction = (value, args) => {
  const { attribute = null, start = 0 } = read(args, "attribute", "start");
  const { work } = args;
  if (textIn(start) !== undefined) throw new Error("sum() can't sum strings [use ''.join(seq) instead]");
  return itemsOf(value, work).reduce<JinjaValue>(
    (total, item) => binary("+", [total, attributeOf(item, attribute, { work })], work),
    start,
  );
};

/** Pairs of a value and the items that have it, by its order. */
export const groupby: FilterFunction = (value, args) => {
  const { attribute = null, default: fallback, case_sensitive } = read(args, "attribute", "default", "case_sensitive");
  const { work } = args;
  const change = folded(case_sensitive);
  const keyOf = (item: JinjaValue) => attributeOf(item, attribute, { work, fallback });
  const groups: [key: JinjaValue, items: JinjaValue[]][] = [];
  for (const item of sorted(itemsOf(value, work), (each) => change(keyOf(each)), { work })) {
    const last = groups.at(-1);
    if (last && isEqual(change(keyOf(last[1][0]!)), change(keyOf(item)), work)) last[1].push(item);
    else groups.push([keyOf(item), [item]]);
  }
  return groups.map(([key, items]) => new ItemGroup([key, items]));
};

export const batch: FilterFunction = (value, args) => {
  const { linecount = null, fill_with = null } = read(args, "linecount", "fill_with");
  const size = wholeArgument(linecount, "linecount");
  return lazily(value, args.work, function* (items) {
    let row: JinjaValue[] = [];
    for (const item of items) {
      if (row.length === size) {
        yield row;
        row = [];
      }
      row.push(item);
    }
    if (row.length === 0) return;
    if (fill_with !== null) {
      args.work.room(size);
      while (row.length < size) row.push(fill_with);
    }
    yield row;
  });
};

/** So many lists, of which the first are one longer where the items do not divide. */
export const slice: FilterFunction = (value, args) => {
  const { slices = null, fill_with = null } = read(args, "slices", "fill_with");
  const parts = wholeArgument(slices, "slices");
  args.work.room(parts);
  return lazily(value, args.work, function* (items) {
    const list = [...items];
    if (parts <= 0) throw new Error("integer division or modulo by zero");
    const [least, longer] = [Math.floor(list.length / parts), list.length % parts];
    for (let i = 0, at = 0; i < parts; i++) {
      const length = least + (i < longer ? 1 : 0);
      const row = list.slice(at, at + length);
      at += length;
      yield fill_with !== null && i >= longer ? [...row, fill_with] : row;
    }
  });
};

export const first: FilterFunction = (value, args) => {
  read(args);
  const next = iterate(value, args.work).next();
  return next.done ? new Undefined("the first item") : next.value;
};

/** @throws for a generator, which has no end that is known. */
export const last: FilterFunction = (value, args) => {
  read(args);
  if (value instanceof Lazy) throw new Error(`'${value.kind}' object is not reversible`);
  return itemsOf(value, args.work).at(-1) ?? lastOf(itemsOf(value, args.work));
};

const lastOf = (items: readonly JinjaValue[]) => (items.length > 0 ? null : new Undefined("the last item"));

export const reverse: FilterFunction = (value, args) => {
  read(args);
  const text = textIn(value);
  const items = [...itemsOf(value, args.work)].reverse();
  if (text !== undefined) {
    const backwards = items.map((letter) => textIn(letter)).join("");
    return value instanceof Markup ? new Markup(backwards) : backwards;
  }
  // Python gives a list for what it cannot read backwards.
  return sequenceIn(value) || isDict(value) ? new Lazy(items[Symbol.iterator](), "iterator") : items;
};
