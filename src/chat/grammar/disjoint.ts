/** Branches of `oneOf`: a value must be valid by one of them alone, so they must differ in what they fix. */
import { isNever, type SchemaKeywords, unsupportedKeyword, valueKey, valuesOf } from "./keywords.ts";

/** Marks that a schema fixes: its types (at ""), its values (at "="), and those of required properties (at ".name"). */
type Marks = ReadonlyMap<string, ReadonlySet<string>>;

/** The fields of a schema, references and `allOf` included. */
export type Resolve = (schema: unknown) => SchemaKeywords;

/** Schemas within schemas that are looked at. */
const MOST_DEPTH = 5;

/** @throws {ConfigError} for branches that do not show that they differ */
export function checkDisjoint(
  branches: readonly unknown[],
  { path, resolve }: { path: string; resolve: Resolve },
): void {
  const marks = branches.filter((branch) => !isNever(branch)).map((branch) => marksOf(branch, { resolve, depth: 0 }));
  for (const [i, mark] of marks.entries())
    for (const other of marks.slice(i + 1))
      if (![...mark].some(([key, values]) => isDisjoint(values, other.get(key))))
        throw unsupportedKeyword(
          `${path}.oneOf`,
          "its branches must differ in type, or in the constant of a required property; use anyOf",
          i,
        );
}

function marksOf(schema: unknown, context: { resolve: Resolve; depth: number }): Marks {
  const { resolve, depth } = context;
  if (typeof schema !== "object" || schema === null || depth > MOST_DEPTH) return new Map();
  const fields = resolve(schema);
  const marks = new Map<string, ReadonlySet<string>>();
  const listed = valuesOf(fields);
  const values = listed && new Set([...listed].map(valueKey));
  // Null beside what the other keywords fix.
  if (fields.nullable === true && !values) return marks;
  if (values) marks.set("=", values);
  if (fields.type !== undefined)
    marks.set("", new Set([fields.type].flat().map((type) => (type === "integer" ? "number" : String(type)))));
  for (const name of Array.isArray(fields.required) ? (fields.required as unknown[]).map(String) : []) {
    const property = (fields.properties as SchemaKeywords | undefined)?.[name];
    const fixed = marksOf(property, { resolve, depth: depth + 1 }).get("=");
    if (fixed) marks.set(`.${name}`, fixed);
  }
  const branches = fields.anyOf ?? fields.oneOf;
  if (!Array.isArray(branches)) return marks;
  const each = branches.map((branch: unknown) => marksOf(branch, { resolve, depth: depth + 1 }));
  return new Map([...shared(each), ...marks]);
}

/** Returns the marks that one of several branches fixes, where all of them do. */
function shared([first = new Map(), ...others]: readonly Marks[]): [string, ReadonlySet<string>][] {
  return [...first].flatMap(([key, values]): [string, ReadonlySet<string>][] => {
    const counterparts = others.map((other) => other.get(key));
    return counterparts.some((counterpart) => !counterpart)
      ? []
      : [[key, new Set([...values, ...counterparts.flatMap((counterpart) => [...counterpart!])])]];
  });
}

function isDisjoint(values: ReadonlySet<string>, other: ReadonlySet<string> | undefined): boolean {
  return other !== undefined && [...values].every((value) => !other.has(value));
}
