/** Filters that order, join and add up lists and dicts. */
import { attributeOf, type Filter, read } from "./filter.ts";
import { textOf } from "./print.ts";
import {
  compare,
  Float,
  isDict,
  isEqual,
  isTrue,
  itemsOf,
  numberIn,
  Tuple,
  typeName,
  Undefined,
  type Value,
  type Work,
} from "./value.ts";

const folded = (value: Value, isExact: Value | undefined) =>
  typeof value === "string" && !isTrue(isExact ?? false) ? value.toLowerCase() : value;

function sorted(
  items: readonly Value[],
  by: (item: Value) => Value,
  it: { reverse: Value | undefined; work: Work },
): Value[] {
  const sign = isTrue(it.reverse ?? false) ? -1 : 1;
  return items
    .map((item) => [by(item), item] as const)
    .sort(([a], [b]) => sign * compare(a, b, it.work))
    .map(([, item]) => item);
}

export const join: Filter = (value, given) => {
  const { d = "", attribute } = read(given, "d", "attribute");
  const { work } = given;
  const parts = itemsOf(value, work).map((item) =>
    textOf(attribute === undefined ? item : attributeOf(item, attribute), work),
  );
  const between = textOf(d, work);
  work.room(parts.reduce((sum, part) => sum + part.length + between.length, 0));
  return parts.join(between);
};

export const dictsort: Filter = (value, given) => {
  const { case_sensitive, by = "key", reverse } = read(given, "case_sensitive", "by", "reverse");
  if (!isDict(value)) throw new Error(`dictsort takes a dict, not '${typeName(value)}'`);
  const at = by === "value" ? 1 : 0;
  const pairs = [...value].map((pair) => new Tuple(pair));
  const key = (pair: Value) => folded((pair as Tuple).items[at]!, case_sensitive);
  return sorted(pairs, key, { reverse, work: given.work });
};

export const sort: Filter = (value, given) => {
  const { reverse, case_sensitive, attribute = null } = read(given, "reverse", "case_sensitive", "attribute");
  const key = (item: Value) => folded(attribute === null ? item : attributeOf(item, attribute), case_sensitive);
  return sorted(itemsOf(value, given.work), key, { reverse, work: given.work });
};

export const unique: Filter = (value, given) => {
  const { case_sensitive } = read(given, "case_sensitive");
  const seen: Value[] = [];
  return itemsOf(value, given.work).filter((item) => {
    const key = folded(item, case_sensitive);
    if (seen.some((each) => isEqual(each, key, given.work))) return false;
    seen.push(key);
    return true;
  });
};

/** The smallest or largest item, by default ignoring case. */
export function extreme(sign: number): Filter {
  return (value, given) => {
    const { case_sensitive, attribute = null } = read(given, "case_sensitive", "attribute");
    const { work } = given;
    const key = (item: Value) => folded(attribute === null ? item : attributeOf(item, attribute), case_sensitive);
    const items = itemsOf(value, work);
    const [first] = items;
    if (first === undefined) return new Undefined("max");
    return items.reduce((best, item) => (sign * compare(key(item), key(best), work) > 0 ? item : best), first);
  };
}

export const sum: Filter = (value, given) => {
  const { attribute } = read(given, "attribute");
  const items = itemsOf(value, given.work).map((item) =>
    attribute === undefined ? item : attributeOf(item, attribute),
  );
  const total = items.reduce((all: number, item) => all + (numberIn(item) ?? Number.NaN), 0);
  if (Number.isNaN(total)) throw new Error("sum takes numbers");
  return items.some((item) => item instanceof Float) ? new Float(total) : total;
};
