/** Type of a filter, and what filters share. */
import { subscript } from "./operators.ts";
import { type JinjaValue, Tuple, textIn, Undefined, type WorkCounter } from "./value.ts";

/** Arguments of a filter after the filtered value, by position or by name. */
export interface FilterArguments {
  readonly args: readonly JinjaValue[];
  readonly named: ReadonlyMap<string, JinjaValue>;
  readonly work: WorkCounter;
}

export type FilterFunction = (value: JinjaValue, args: FilterArguments) => JinjaValue;

/** Arguments by their names. @throws for an argument that the filter does not have. */
export function read<N extends string>(args: FilterArguments, ...names: readonly N[]): Partial<Record<N, JinjaValue>> {
  const out: Partial<Record<N, JinjaValue>> = {};
  if (args.args.length > names.length) throw new Error(`a filter takes at most ${names.length} arguments`);
  args.args.forEach((value, i) => {
    out[names[i]!] = value;
  });
  for (const [name, value] of args.named) {
    if (!names.includes(name as N)) throw new Error(`a filter has no argument ${name}`);
    out[name as N] = value;
  }
  return out;
}

/** An attribute of dotted parts, each a key, an index or an attribute; the item itself for None. */
export function attributeOf(
  item: JinjaValue,
  path: JinjaValue,
  options: { work: WorkCounter; fallback?: JinjaValue | undefined },
): JinjaValue {
  let found = item;
  options.work.room(textIn(path)?.length ?? 0);
  for (const part of partsOf(path)) {
    options.work.spend(1);
    found = subscript(found, part, options.work);
    const { fallback } = options;
    if (found instanceof Undefined && fallback !== undefined && fallback !== null) found = fallback;
  }
  return found;
}

function partsOf(path: JinjaValue): readonly JinjaValue[] {
  const text = textIn(path);
  if (text === undefined) return path === null ? [] : [path];
  return text.split(".").map((part) => (/^\d+$/.test(part) ? Number(part) : part));
}

/** The same of attributes with commas between: a tuple, which orders as Python's list does. */
export function attributesOf(
  item: JinjaValue,
  path: JinjaValue,
  options: { work: WorkCounter; change: (value: JinjaValue) => JinjaValue },
): JinjaValue {
  options.work.room(textIn(path)?.length ?? 0);
  const paths: readonly JinjaValue[] = textIn(path)?.split(",") ?? [path];
  return new Tuple(paths.map((each) => options.change(attributeOf(item, each, options))));
}

/** A whole number among the arguments. */
export function wholeArgument(value: JinjaValue, name: string): number {
  if (typeof value === "number" || typeof value === "boolean") return Number(value);
  throw new Error(`${name} must be a whole number`);
}
