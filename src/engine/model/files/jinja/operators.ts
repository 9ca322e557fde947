/** Python's operators, attributes and subscripts. */
import { type AttributeLookup, formatText, percent } from "./formatting.ts";
import { escaped } from "./markup.ts";
import { methodOf } from "./methods.ts";
import { arithmetic } from "./numbers.ts";
import { pythonStr } from "./print.ts";
import { isIn } from "./tests.ts";
import {
  AttributeObject,
  compare,
  Dict,
  ItemGroup,
  isDict,
  isEqual,
  isJinjaList,
  isPythonInt,
  type JinjaValue,
  Markup,
  orUndefined,
  type PythonCallable,
  sequenceIn,
  Tuple,
  textIn,
  typeName,
  Undefined,
  View,
  type WorkCounter,
} from "./value.ts";

/** One of the comparisons. @throws where Python raises a TypeError. */
export function compared(operator: string, [a, b]: readonly [JinjaValue, JinjaValue], work: WorkCounter): boolean {
  if (operator === "==") return isEqual(a, b, work);
  if (operator === "!=") return !isEqual(a, b, work);
  if (operator === "in") return isIn(a, b, work);
  if (operator === "not in") return !isIn(a, b, work);
  defined(a, b);
  if (operator === "<") return compare(a, b, work) < 0;
  if (operator === "<=") return compare(a, b, work) <= 0;
  return operator === ">" ? compare(a, b, work) > 0 : compare(a, b, work) >= 0;
}

function defined(...values: readonly JinjaValue[]): void {
  for (const each of values) if (each instanceof Undefined) throw new Error(`'${each.name}' is undefined`);
}

/** The result of an operator of arithmetic, of which some join and repeat sequences. @throws where Python raises a TypeError. */
export function binary(operator: string, [a, b]: readonly [JinjaValue, JinjaValue], work: WorkCounter): JinjaValue {
  const text = textIn(a);
  if (operator === "%" && text !== undefined) {
    if (!(a instanceof Markup)) return percent(text, b, { work });
    return new Markup(percent(text, b, { work, finish: (field, value) => escaped(value, field) }));
  }
  defined(a, b);
  const result = arithmetic(operator, a, b) ?? sequences(operator, [a, b], work);
  if (result !== undefined) return result;
  throw new Error(`unsupported operand types for ${operator}: '${typeName(a)}' and '${typeName(b)}'`);
}

/** `a ~ b` */
export function concatenated(values: readonly JinjaValue[], work: WorkCounter): string {
  const parts = values.map((value) => pythonStr(value, work));
  work.room(parts.reduce((sum, part) => sum + part.length, 0));
  return parts.join("");
}

function joined(a: string, b: string, work: WorkCounter): string {
  work.room(a.length + b.length);
  return a + b;
}

function sequences(
  operator: string,
  [a, b]: readonly [JinjaValue, JinjaValue],
  work: WorkCounter,
): JinjaValue | undefined {
  if (operator === "*")
    return isPythonInt(b) ? repeated(a, Number(b), work) : isPythonInt(a) ? repeated(b, Number(a), work) : undefined;
  if (operator !== "+") return undefined;
  const [left, other] = [textIn(a), textIn(b)];
  if (left !== undefined && other !== undefined) {
    if (!(a instanceof Markup || b instanceof Markup)) return joined(left, other, work);
    return new Markup(joined(escaped(a, left), escaped(b, other), work));
  }
  if (isJinjaList(a) && isJinjaList(b)) {
    work.room(a.length + b.length);
    return [...a, ...b];
  }
  if (!(a instanceof Tuple && b instanceof Tuple)) return undefined;
  work.room(a.items.length + b.items.length);
  return new Tuple([...a.items, ...b.items]);
}

function repeated(value: JinjaValue, times: number, work: WorkCounter): JinjaValue | undefined {
  const count = Math.max(times, 0);
  const text = textIn(value);
  if (text !== undefined) {
    work.room(text.length * count);
    return value instanceof Markup ? new Markup(text.repeat(count)) : text.repeat(count);
  }
  const items = value instanceof View ? undefined : sequenceIn(value);
  if (!items) return undefined;
  work.room(items.length * count);
  const copies = Array.from({ length: count }, () => items).flat(1);
  return value instanceof Tuple ? new Tuple(copies) : copies;
}

/** `a.name`: a method, or the value under that key. */
export function attribute(object: JinjaValue, name: string, work: WorkCounter): JinjaValue {
  defined(object);
  if (object instanceof AttributeObject) return orUndefined(object.find(name), name);
  if (object instanceof ItemGroup && GROUP.includes(name)) return object.items[GROUP.indexOf(name)]!;
  return method(object, name, work) ?? orUndefined(isDict(object) ? object.get(name) : undefined, name);
}

/** Names of the two parts of a group. */
const GROUP = ["grouper", "list"];

export function method(object: JinjaValue, name: string, work: WorkCounter): JinjaValue | undefined {
  const text = textIn(object);
  if (text === undefined || (name !== "format" && name !== "format_map")) return methodOf(object, name, work);
  const lookup: AttributeLookup = {
    attribute: (of, key) => attribute(of, key, work),
    item: (of, key) => subscript(of, key, work),
  };
  const format = (args: readonly JinjaValue[], named: Dict) => {
    if (!(object instanceof Markup)) return formatText(text, { args, named, work, lookup });
    const finish = (field: string, value: JinjaValue) => escaped(value, field);
    return new Markup(formatText(text, { args, named, work, lookup, finish }));
  };
  const byName: PythonCallable = (args, named) => format(args, new Dict(named));
  const byMapping: PythonCallable = ([mapping], named) => {
    if (mapping === undefined || !isDict(mapping) || named.size > 0) throw new Error("format_map() takes a dict");
    return format([], mapping);
  };
  return name === "format" ? byName : byMapping;
}

/** `a[key]`: the value under that key or index, or a method. */
export function subscript(object: JinjaValue, key: JinjaValue, work: WorkCounter): JinjaValue {
  defined(object);
  // A list or a dict is no key of any dict: Jinja2 finds nothing there.
  const item = isDict(object) && !isJinjaList(key) && !isDict(key) ? object.get(key) : undefined;
  if (item !== undefined) return item;
  const name = textIn(key);
  if (name !== undefined) return attribute(object, name, work);
  const items = isPythonInt(key) ? indexed(object, work) : undefined;
  return orUndefined(items?.at(Number(key)), isPythonInt(key) ? String(key) : "the key");
}

/** Items by index, with characters as Python counts them. */
function indexed(value: JinjaValue, work: WorkCounter): readonly JinjaValue[] | undefined {
  const text = textIn(value);
  if (text !== undefined) {
    work.room(text.length);
    return [...text].map((letter) => (value instanceof Markup ? new Markup(letter) : letter));
  }
  // The views of a dict have no places.
  return value instanceof View && value.kind !== "range" ? undefined : sequenceIn(value);
}

/** `a[start:stop:step]`. */
export function sliced(object: JinjaValue, bounds: readonly JinjaValue[], work: WorkCounter): JinjaValue {
  const items = indexed(object, work);
  work.room(items?.length ?? 0);
  if (!items) throw new Error(`'${typeName(object)}' object cannot be sliced`);
  const [from, to, by] = bounds.map((bound) => {
    if (bound === null) return undefined;
    if (isPythonInt(bound)) return Number(bound);
    if (typeof bound === "bigint") return bound < 0 ? -(2 ** 53) : 2 ** 53;
    throw new Error("slice indices must be integers or None");
  });
  const { start, stop, step, count } = places(items.length, { from, to, step: by ?? 1 });
  const picked = Array.from({ length: count }, (_, i) => items[start + i * step]!);
  if (typeof object === "string") return picked.join("");
  if (object instanceof Markup) return new Markup(picked.map((letter) => textIn(letter)).join(""));
  if (object instanceof Tuple) return new Tuple(picked);
  if (!(object instanceof View)) return picked;
  const [first, , by1] = object.bounds as [number, number, number];
  return new View("range", picked, [first + start * by1, first + stop * by1, step * by1]);
}

/** Returns where a slice starts and stops in so many items. */
function places(length: number, bounds: { from: number | undefined; to: number | undefined; step: number }) {
  const { step } = bounds;
  if (step === 0) throw new Error("slice step cannot be zero");
  const [least, most] = step > 0 ? [0, length] : [-1, length - 1];
  const place = (at: number | undefined, fallback: number) => {
    if (at === undefined) return fallback;
    return Math.min(Math.max(at < 0 ? at + length : at, least), most);
  };
  const [start, stop] = [place(bounds.from, step > 0 ? least : most), place(bounds.to, step > 0 ? most : least)];
  return { start, stop, step, count: Math.max(Math.ceil((stop - start) / step), 0) };
}
