/** The functions of Hydra's override grammar that return one value: element-wise casts, and `sort` of a list. */
import {
  BadValue,
  HydraFloat,
  type Parsed,
  pythonFloat,
  QUOTE_IT,
  Quoted,
  readFloat,
  refuseSweep,
} from "./parsed_value.ts";

export interface FunctionCall {
  readonly args: readonly Parsed[];
  readonly named: ReadonlyMap<string, Parsed>;
}

const SWEEPS = ["choice", "range", "interval", "glob", "tag"];
const CASTS: Readonly<Record<string, (value: Scalar) => Parsed>> = {
  int: toInt,
  float: (value) => new HydraFloat(toNumber(value, "float")),
  str: toText,
  bool: toBool,
};

type Scalar = string | number | boolean | null | HydraFloat;

/** @throws {BadValue} for a function that Hydra does not have, or that makes a sweep, and for what cannot be cast. */
export function callFunction(name: string, call: FunctionCall): Parsed {
  if (Object.hasOwn(CASTS, name)) return cast(argumentOf(name, call), name);
  if (name === "sort") return sort(call);
  if (SWEEPS.includes(name)) refuseSweep();
  if (name === "shuffle") throw new BadValue("shuffles, which gives another run each time", "Write the order");
  throw new BadValue(`calls ${name}(), which Hydra does not have`, QUOTE_IT);
}

function argumentOf(name: string, { args, named }: FunctionCall): Parsed {
  const values = [...args, ...named.values()];
  if (values.length > 1 && named.size === 0) refuseSweep();
  const isRight = values.length === 1 && [...named.keys()].every((key) => key === "value");
  if (!isRight) throw new BadValue(`calls ${name}() with other arguments than one value`, QUOTE_IT);
  return values[0]!;
}

function cast(value: Parsed, name: string): Parsed {
  if (value instanceof Quoted) return cast(value.text, name);
  if (value instanceof Map) return new Map([...value].map(([key, item]) => [key, cast(item, name)]));
  if (Array.isArray(value)) return value.map((item) => cast(item, name));
  return CASTS[name]!(value as Scalar);
}

function toInt(value: Scalar): number {
  if (typeof value === "string" && !/^\s*[-+]?\d+(_\d+)*\s*$/.test(value)) refuseCast("int");
  const number = Math.trunc(typeof value === "string" ? Number(value.replaceAll("_", "")) : toNumber(value, "int"));
  if (!Number.isSafeInteger(number)) refuseCast("int");
  return number + 0;
}

const FLOAT = /^[-+]?((\d+(_\d+)*)?\.?\d+(_\d+)*|\d+(_\d+)*\.)(e[-+]?\d+(_\d+)*)?$|^[-+]?(inf|infinity|nan)$/i;

function toNumber(value: Scalar, name: string): number {
  if (value instanceof HydraFloat) return value.value;
  if (typeof value === "string") return FLOAT.test(value.trim()) ? readFloat(value.trim()) : refuseCast(name);
  return value === null ? refuseCast(name) : Number(value);
}

function toText(value: Scalar): string {
  if (value === null) return refuseCast("str");
  return value instanceof HydraFloat ? pythonFloat(value.value) : String(value);
}

function toBool(value: Scalar): boolean {
  if (typeof value !== "string") return value instanceof HydraFloat ? value.value !== 0 : Boolean(value);
  if (!/^(true|false)$/i.test(value)) return refuseCast("bool");
  return value.toLowerCase() === "true";
}

function refuseCast(name: string): never {
  throw new BadValue(`has a value that is no ${name}`, `Write a value that ${name}() can take`);
}

/** Python sorts numbers together with booleans, and texts, but not the two kinds together. */
function sort({ args, named }: FunctionCall): Parsed {
  const list = args[0] ?? named.get("list");
  const others = [...named.keys()].filter((key) => key !== "list" && key !== "reverse");
  if (args.length > 1 || named.has("sweep")) refuseSweep();
  if (list === undefined || others.length > 0)
    throw new BadValue("calls sort() with other arguments than a list", QUOTE_IT);
  if (!Array.isArray(list)) return list;
  const numbers = list.every(
    (item) => typeof item === "number" || typeof item === "boolean" || item instanceof HydraFloat,
  );
  if (!numbers && !list.every((item) => typeof item === "string"))
    throw new BadValue("sorts values that cannot be compared", "Write the order");
  const key = (item: Parsed) =>
    item instanceof HydraFloat ? item.value : typeof item === "boolean" ? Number(item) : item;
  const before = (a: Parsed, b: Parsed) => ((key(a) as number) < (key(b) as number) ? -1 : key(a) === key(b) ? 0 : 1);
  const isReversed = named.get("reverse") === true;
  return [...list].sort((a, b) => (isReversed ? before(b, a) : before(a, b)));
}
