/** What a filter is, and what filters share. */
import { type Dict, Fields, isDict, isList, orUndefined, Tuple, type Value, type Work } from "./value.ts";

/** Arguments of a filter after the filtered value, by position or by name. */
export interface Given {
  readonly args: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
  readonly work: Work;
}

export type Filter = (value: Value, given: Given) => Value;

/** Arguments by their names. @throws for an argument that the filter does not have. */
export function read<N extends string>(given: Given, ...names: readonly N[]): Partial<Record<N, Value>> {
  const out: Partial<Record<N, Value>> = {};
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

/** An attribute of dotted parts, each a key, an index or an attribute. */
export function attributeOf(value: Value, path: Value): Value {
  let found = value;
  for (const part of typeof path === "number" ? [path] : String(path).split(".")) {
    const list = found instanceof Tuple ? found.items : isList(found) ? found : undefined;
    const fields: Dict | undefined = isDict(found) ? found : found instanceof Fields ? found.values : undefined;
    found = orUndefined(list ? list.at(Number(part)) : fields?.get(part), String(part));
  }
  return found;
}
