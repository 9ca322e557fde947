/** Jinja's tests: `x is NAME`, and the names that `select` and `selectattr` take. */
import { percent } from "./formatting.ts";
import { arithmetic } from "./numbers.ts";
import { pythonStr } from "./print.ts";
import {
  AttributeObject,
  compare,
  hashed,
  isDict,
  isEqual,
  isJinjaList,
  iterate,
  type JinjaValue,
  Lazy,
  Markup,
  numberIn,
  PythonFloat,
  rest,
  Tuple,
  textIn,
  typeName,
  Undefined,
  View,
  type WorkCounter,
} from "./value.ts";

export type JinjaTest = (value: JinjaValue, args: readonly JinjaValue[], work: WorkCounter) => boolean;

const isSequence: JinjaTest = (value) =>
  textIn(value) !== undefined ||
  isJinjaList(value) ||
  value instanceof Tuple ||
  (value instanceof View && value.kind === "range") ||
  isDict(value) ||
  value instanceof Undefined;

const isIterable: JinjaTest = (value, args, work) =>
  isSequence(value, args, work) ||
  value instanceof View ||
  value instanceof Lazy ||
  (value instanceof AttributeObject && value.kind === "LoopContext");

const ordered =
  (accepts: (order: number) => boolean): JinjaTest =>
  (value, [other], work) =>
    accepts(compare(value, other!, work));

const equal: JinjaTest = (value, [other], work) => isEqual(value, other ?? null, work);
const unequal: JinjaTest = (value, args, work) => !equal(value, args, work);

/** Python's `is`, which holds for equal texts and numbers of one type here. */
const isSame: JinjaTest = (value, [other], work) => {
  if (typeof value === "object" && value !== null && !(value instanceof PythonFloat)) return value === other;
  return typeName(value) === typeName(other ?? null) && isEqual(value, other!, work);
};

/** Whether the remainder of a division is this. `%` formats a text, as in Python. */
const remains =
  (by: (args: readonly JinjaValue[]) => JinjaValue, expected: number): JinjaTest =>
  (value, args, work) => {
    const text = textIn(value);
    const result = text === undefined ? arithmetic("%", value, by(args)) : percent(text, by(args), { work });
    if (result === undefined) throw new Error(`'${typeName(value)}' has no remainder`);
    return isEqual(result, expected, work);
  };

const isLower = (text: string) => text !== text.toUpperCase() && text === text.toLowerCase();
const isUpper = (text: string) => text !== text.toLowerCase() && text === text.toUpperCase();

/** Python's `in`. */
export function isIn(value: JinjaValue, container: JinjaValue, work: WorkCounter): boolean {
  if (container instanceof Undefined) return false;
  if (isDict(container)) return container.has(value);
  if (container instanceof View && container.kind === "dict_keys") hashed(value);
  const [text, part] = [textIn(container), textIn(value)];
  if (text === undefined) {
    for (const item of rest(iterate(container, work), work)) if (isEqual(item, value, work)) return true;
    return false;
  }
  if (part !== undefined) {
    work.room(text.length);
    return text.includes(part);
  }
  throw new Error(`'in <string>' requires string as left operand, not ${typeName(value)}`);
}

const TESTS: Readonly<Record<string, JinjaTest>> = {
  defined: (value) => !(value instanceof Undefined),
  undefined: (value) => value instanceof Undefined,
  none: (value) => value === null,
  boolean: (value) => typeof value === "boolean",
  true: (value) => value === true,
  false: (value) => value === false,
  string: (value) => textIn(value) !== undefined,
  number: (value) => numberIn(value) !== undefined,
  integer: (value) => typeof value === "number" || typeof value === "bigint",
  float: (value) => value instanceof PythonFloat,
  mapping: (value) => isDict(value),
  sequence: isSequence,
  iterable: isIterable,
  callable: (value) =>
    typeof value === "function" ||
    value instanceof Undefined ||
    (value instanceof AttributeObject && value.kind === "LoopContext"),
  escaped: (value) => value instanceof Markup,
  lower: (value, _, work) => isLower(pythonStr(value, work)),
  upper: (value, _, work) => isUpper(pythonStr(value, work)),
  odd: remains(() => 2, 1),
  even: remains(() => 2, 0),
  divisibleby: remains(([by]) => by!, 0),
  equalto: equal,
  eq: equal,
  "==": equal,
  ne: unequal,
  "!=": unequal,
  gt: ordered((order) => order > 0),
  greaterthan: ordered((order) => order > 0),
  ">": ordered((order) => order > 0),
  ge: ordered((order) => order >= 0),
  ">=": ordered((order) => order >= 0),
  lt: ordered((order) => order < 0),
  lessthan: ordered((order) => order < 0),
  "<": ordered((order) => order < 0),
  le: ordered((order) => order <= 0),
  "<=": ordered((order) => order <= 0),
  in: (value, [container], work) => isIn(value, container ?? null, work),
  sameas: isSame,
};

/** Tests that compare with a value, and the names of their arguments. The others take none. */
const COMPARING: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    "equalto eq == ne != gt greaterthan > ge >= lt lessthan < le <=".split(" ").map((name) => [name, ""]),
  ),
  divisibleby: "num",
  sameas: "other",
  in: "seq",
};

/** Whether there is a test of that name. */
export const isTest = (name: string) => Object.hasOwn(TESTS, name) || name === "filter" || name === "test";

/** @throws for a name that is not a test here. The test throws for other arguments than its own. */
export function testNamed(name: string, named: ReadonlyMap<string, JinjaValue> = new Map()): JinjaTest {
  if (!Object.hasOwn(TESTS, name)) throw new Error(`there is no test ${name}`);
  const argument = Object.hasOwn(COMPARING, name) ? COMPARING[name] : undefined;
  const count = argument === undefined ? 0 : 1;
  return (value, args, work) => {
    const positional = [...args];
    for (const [key, other] of named) {
      if (key !== argument) throw new Error(`the test ${name} has no argument ${key}`);
      positional.push(other);
    }
    if (positional.length === count) return TESTS[name]!(value, positional, work);
    throw new Error(`the test ${name} takes ${count} arguments (${positional.length})`);
  };
}
