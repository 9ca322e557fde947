/** Type of a filter, and what filters share. */
import { subscript } from "./operators.ts";
import { type JinjaValue, Tuple, textIn, Undefined, type WorkCounter } from "./value.ts";

/** Arguments of a filter after the filtered value, by position or by name. */
export interface FilterArguments {
  readonly args: readonly JinjaValue[];
  readonly named: ReadonlyMap<string, JinjaValue>;
  readonly work: WorkCounter;
}

export type FilterFunction = (value: JinjaValue, given: FilterArguments) => JinjaValue;

/** Arguments by their names. @throws for an argument that the filter does not have. */
export function read<N extends string>(given: FilterArguments, ...names: readonly N[]): Partial<Record<N, JinjaValue>> {
  const out: Partial<Record<N, JinjaValue>> = {};
  if (given.args.length > names.length) throw new Error(`a filter takes at most ${names.length} arguments`);
  given.args.forEach((value, i) => {
    out[names[i]!] = value;
  });
  for (const [name, value] of given.named) {
    if (!names.includes(name as N)) throw new Error(`a filter has no argument ${name}`);
    out[name as N] = value;
  }
  return out;
}

/** An attribute of dotted parts, each a key, an index or an attribute; the item itself for None. */
export function attributeOf(
  item: JinjaValue,
  path: JinjaValue,
  it: { work: WorkCounter; fallback?: JinjaValue | undefined },
): JinjaValue {
  let found = item;
  it.work.room(textIn(path)?.length ?? 0);
  for (const part of partsOf(path)) {
    it.work.spend(1);
    found = subscript(found, part, it.work);
    const { fallback } = it;
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
  it: { work: WorkCounter; change: (value: JinjaValue) => JinjaValue },
): JinjaValue {
  it.work.room(textIn(path)?.length ?? 0);
  const paths: readonly JinjaValue[] = textIn(path)?.split(",") ?? [path];
  return new Tuple(paths.map((each) => it.change(attributeOf(item, each, it))));
}

/** A whole number among the arguments. */
export function wholeArgument(value: JinjaValue, name: string): number {
  if (typeof value === "number" || typeof value === "boolean") return Number(value);
  throw new Error(`${name} must be a whole number`);
}
