/** Python's operators and subscripts. */
import { methodOf, valueAt } from "./methods.ts";
import { textOf } from "./print.ts";
import { isIn } from "./tests.ts";
import {
  compare,
  Fields,
  Float,
  isDict,
  isEqual,
  isList,
  isWhole,
  numberIn,
  orUndefined,
  Tuple,
  typeName,
  Undefined,
  type Value,
  type Work,
} from "./value.ts";

/** The result of a binary operator other than `and` and `or`. @throws where Python raises a TypeError. */
export function binary(operator: string, [a, b]: readonly [Value, Value], work: Work): Value {
  if (operator === "==") return isEqual(a, b, work);
  if (operator === "!=") return !isEqual(a, b, work);
  if (operator === "in") return isIn(a, b, work);
  if (operator === "not in") return !isIn(a, b, work);
  for (const each of operator === "~" ? [] : [a, b])
    if (each instanceof Undefined) throw new Error(`'${each.name}' is undefined`);
  if (operator === "<") return compare(a, b, work) < 0;
  if (operator === "<=") return compare(a, b, work) <= 0;
  if (operator === ">") return compare(a, b, work) > 0;
  if (operator === ">=") return compare(a, b, work) >= 0;
  if (operator === "~") return joined(textOf(a, work), textOf(b, work), work);
  const result = arithmetic(operator, a, b) ?? sequences(operator, [a, b], work);
  if (result !== undefined) return result;
  throw new Error(`unsupported operand types for ${operator}: '${typeName(a)}' and '${typeName(b)}'`);
}

function joined(a: string, b: string, work: Work): string {
  work.room(a.length + b.length);
  return a + b;
}

function arithmetic(operator: string, a: Value, b: Value): Value | undefined {
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x === undefined || y === undefined) return undefined;
  for (const each of [a, b])
    if (each instanceof Float && each.isInt && !Number.isSafeInteger(each.value))
      throw new Error(`it computes with a number above 2^53 (${each.text})`);
  const isFloat = a instanceof Float || b instanceof Float || operator === "/" || (operator === "**" && y < 0);
  if (y === 0 && ["/", "//", "%"].includes(operator)) throw new Error("division by zero");
  const result = calculate(operator, x, y);
  if (result === undefined) return undefined;
  if (!isFloat && !Number.isSafeInteger(result)) throw new Error(`the result is above 2^53 (${result})`);
  return isFloat ? new Float(result) : result;
}

function calculate(operator: string, x: number, y: number): number | undefined {
  switch (operator) {
    case "+":
      return x + y;
    case "-":
      return x - y;
    case "*":
      return x * y;
    case "/":
      return x / y;
    case "//":
      return Math.floor(x / y);
    case "%":
      // The sign is the divisor's, as in Python.
      return x - y * Math.floor(x / y);
    case "**":
      if (x === 0 && y < 0) throw new Error("0 cannot be raised to a negative power");
      return x ** y;
    default:
      return undefined;
  }
}

function sequences(operator: string, [a, b]: readonly [Value, Value], work: Work): Value | undefined {
  if (operator === "*")
    return isWhole(b) ? repeated(a, Number(b), work) : isWhole(a) ? repeated(b, Number(a), work) : undefined;
  if (operator !== "+") return undefined;
  if (typeof a === "string" && typeof b === "string") return joined(a, b, work);
  if (isList(a) && isList(b)) {
    work.room(a.length + b.length);
    return [...a, ...b];
  }
  if (!(a instanceof Tuple && b instanceof Tuple)) return undefined;
  work.room(a.items.length + b.items.length);
  return new Tuple([...a.items, ...b.items]);
}

function repeated(value: Value, times: number, work: Work): Value | undefined {
  const count = Math.max(times, 0);
  if (typeof value === "string") {
    work.room(value.length * count);
    return value.repeat(count);
  }
  if (!isList(value)) return undefined;
  work.room(value.length * count);
  return Array.from({ length: count }, () => value).flat(1);
}

/** `a.name`: a method, or the value under that key. */
export function attribute(object: Value, name: string, work: Work): Value {
  if (object instanceof Undefined) throw new Error(`'${object.name}' is undefined`);
  if (object instanceof Fields) return orUndefined(object.values.get(name), name);
  return methodOf(object, name, work) ?? orUndefined(isDict(object) ? object.get(name) : undefined, name);
}

/** `a[key]`: the value under that key or index, or a method. */
export function subscript(object: Value, key: Value, work: Work): Value {
  if (object instanceof Undefined) throw new Error(`'${object.name}' is undefined`);
  // A list or a dict is no key of any dict: Jinja2 finds nothing there.
  const own = isDict(object) && !isList(key) && !isDict(key) ? valueAt(object, key) : undefined;
  if (own !== undefined) return own;
  if (typeof key === "string") return attribute(object, key, work);
  const items = isWhole(key) ? indexed(object, work) : undefined;
  return orUndefined(items?.at(Number(key)), textOf(key, work));
}

/** Items by index, with characters as Python counts them. */
function indexed(value: Value, work: Work): readonly Value[] | undefined {
  if (typeof value === "string") {
    work.room(value.length);
    return [...value];
  }
  return value instanceof Tuple ? value.items : isList(value) ? value : undefined;
}

/** `a[start:stop:step]`. */
export function sliced(object: Value, bounds: readonly Value[], work: Work): Value {
  const items = indexed(object, work);
  work.room(items?.length ?? 0);
  if (!items) throw new Error(`'${typeName(object)}' object cannot be sliced`);
  const [from, to, by] = bounds.map((bound) => {
    if (bound === null) return undefined;
    if (isWhole(bound)) return Number(bound);
    throw new Error("slice indices must be integers or None");
  });
  const picked = pick(items, { from, to, step: by ?? 1 });
  if (typeof object === "string") return picked.join("");
  return object instanceof Tuple ? new Tuple(picked) : picked;
}

function pick<T>(items: readonly T[], it: { from: number | undefined; to: number | undefined; step: number }): T[] {
  const { step } = it;
  if (step === 0) throw new Error("slice step cannot be zero");
  const [least, most] = step > 0 ? [0, items.length] : [-1, items.length - 1];
  const place = (at: number | undefined, fallback: number) => {
    if (at === undefined) return fallback;
    return Math.min(Math.max(at < 0 ? at + items.length : at, least), most);
  };
  const [start, stop] = [place(it.from, step > 0 ? least : most), place(it.to, step > 0 ? most : least)];
  const count = Math.max(Math.ceil((stop - start) / step), 0);
  return Array.from({ length: count }, (_, i) => items[start + i * step]!);
}
