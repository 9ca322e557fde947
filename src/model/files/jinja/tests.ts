/** Jinja's tests: `x is NAME`, and the names that `select` and `selectattr` take. */
import { valueAt } from "./methods.ts";
import {
  compare,
  Fields,
  Float,
  isDict,
  isEqual,
  isList,
  itemsOf,
  numberIn,
  Tuple,
  typeName,
  Undefined,
  type Value,
  type Work,
} from "./value.ts";

export type JinjaTest = (value: Value, args: readonly Value[], work: Work) => boolean;

const isSequence: JinjaTest = (value) =>
  typeof value === "string" || isList(value) || value instanceof Tuple || isDict(value) || value instanceof Undefined;

const ordered =
  (accepts: (order: number) => boolean): JinjaTest =>
  (value, [other], work) =>
    accepts(compare(value, other!, work));

const equal: JinjaTest = (value, [other], work) => isEqual(value, other ?? null, work);
const unequal: JinjaTest = (value, args, work) => !equal(value, args, work);

const remainder = (value: Value, by: Value | undefined): number => {
  const [number, divisor] = [numberIn(value), numberIn(by ?? null)];
  if (number === undefined || divisor === undefined) throw new Error(`'${typeName(value)}' has no remainder`);
  return number % divisor;
};

/** Python's `in`. */
export function isIn(value: Value, container: Value, work: Work): boolean {
  if (container instanceof Undefined) return false;
  if (isDict(container)) return valueAt(container, value) !== undefined;
  if (typeof container !== "string") return itemsOf(container, work).some((item) => isEqual(item, value, work));
  if (typeof value === "string") {
    work.room(container.length);
    return container.includes(value);
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
  string: (value) => typeof value === "string",
  number: (value) => numberIn(value) !== undefined,
  integer: (value) => typeof value === "number" || (value instanceof Float && value.isInt),
  float: (value) => value instanceof Float && !value.isInt,
  mapping: (value) => isDict(value),
  sequence: isSequence,
  iterable: isSequence,
  callable: (value) => typeof value === "function" || value instanceof Undefined,
  lower: (value) => typeof value === "string" && value !== value.toUpperCase() && value === value.toLowerCase(),
  upper: (value) => typeof value === "string" && value !== value.toLowerCase() && value === value.toUpperCase(),
  odd: (value) => Math.abs(remainder(value, 2)) === 1,
  even: (value) => remainder(value, 2) === 0,
  divisibleby: (value, [by]) => remainder(value, by) === 0,
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
  sameas: (value, [other]) => value === other || (value instanceof Fields && value === other),
};

/** Tests that compare with a value. The others take no argument. */
const COMPARING = new Set(
  "divisibleby equalto eq == ne != gt greaterthan > ge >= lt lessthan < le <= in sameas".split(" "),
);

/** @throws for a name that is not a test here. The test throws for other arguments than its own. */
export function testNamed(name: string): JinjaTest {
  if (!Object.hasOwn(TESTS, name)) throw new Error(`there is no test ${name}`);
  const count = COMPARING.has(name) ? 1 : 0;
  return (value, args, work) => {
    if (args.length === count) return TESTS[name]!(value, args, work);
    throw new Error(`the test ${name} takes ${count} arguments (${args.length})`);
  };
}
