/** What a setting is: its type, default, allowed values and meaning. Tables of fields are the schema. */
import type { Value } from "../yaml/tree.ts";

/** `number` is a native setting whose default does not tell whether fractions make sense. */
export type FieldType = "int" | "number" | "float" | "bool" | "str" | "list" | "dict" | "any";

/** One setting. `T` is the type that reading it gives. */
export interface Field<T = unknown> {
  readonly type: FieldType;
  /** `???` is mandatory; a text with `${...}` is an interpolation. */
  readonly default: Value;
  readonly describe: string;
  readonly nullable: boolean;
  /** Allowed values. With `open`, a name that a plug-in registered is allowed too. */
  readonly choices?: readonly string[];
  readonly open?: boolean;
  readonly min?: number;
  readonly max?: number;
  readonly secret?: boolean;
  /** Where published sources differ, or what a newcomer would get wrong. Printed by `config explain`. */
  readonly note?: string;
  /** Read when the setting has this type; never present at run time. */
  readonly _type?: T;
}

/** A table of settings by dotted path. A path that ends in `.*` lets any further key of that section pass. */
export type Fields = Readonly<Record<string, Field>>;

/** The value type of a setting of table `F`. */
export type ValueOf<F extends Fields, K extends keyof F> = F[K] extends Field<infer T> ? T : never;

type More = Partial<Omit<Field, "type" | "default" | "describe" | "_type">>;
type OrNull<D, M> = D extends null ? null : M extends { nullable: true } ? null : never;

function define<T>(type: FieldType, value: Value, describe: string, more: More = {}): Field<T> {
  return { type, default: value, describe, ...more, nullable: more.nullable ?? value === null };
}

export const MANDATORY = "???";

export function int<D extends number | string | null, M extends More>(value: D, describe: string, more?: M) {
  return define<number | OrNull<D, M>>("int", value, describe, more);
}
export function float<D extends number | string | null, M extends More>(
  value: D,
  describe: string,
  more?: M,
) {
  return define<number | OrNull<D, M>>("float", value, describe, more);
}
export function bool<D extends boolean | null, M extends More>(value: D, describe: string, more?: M) {
  return define<boolean | OrNull<D, M>>("bool", value, describe, more);
}
export function str<D extends string | null, M extends More>(value: D, describe: string, more?: M) {
  return define<string | OrNull<D, M>>("str", value, describe, more);
}
/** A string out of a fixed list. */
export function oneOf<const C extends readonly string[], D extends string | null, M extends More>(
  choices: C,
  value: D,
  describe: string,
  more?: M,
) {
  type Name = M extends { open: true } ? string : C[number];
  return define<Name | OrNull<D, M>>("str", value, describe, { ...more, choices });
}
export function list(value: readonly string[] | null, describe: string, more?: More) {
  return define<readonly string[]>("list", value, describe, more);
}
export function dict(describe: string, more?: More) {
  return define<Readonly<Record<string, unknown>>>("dict", {}, describe, more);
}
/** One text or a list of texts (file names). */
export function texts(describe: string) {
  return define<string | readonly string[] | null>("any", null, describe);
}
export function any(value: Value, describe: string, more?: More) {
  return define<unknown>("any", value, describe, { nullable: true, ...more });
}
/** Marks a section whose further keys pass as they are. */
export function open(describe: string) {
  return define<unknown>("any", null, describe);
}

/** `int >= 1 or null`, `one of grpo, rloo`. */
export function describeType(field: Field): string {
  let text: string = field.type === "any" ? "any value" : field.type;
  if (field.choices) text = `one of ${field.choices.join(", ")}${field.open ? ", or a registered name" : ""}`;
  if (field.type === "list" && field.choices) text = `list of ${field.choices.join(", ")}`;
  if (field.min !== undefined && field.max !== undefined) text += ` in [${field.min}, ${field.max}]`;
  else if (field.min !== undefined) text += ` >= ${field.min}`;
  else if (field.max !== undefined) text += ` <= ${field.max}`;
  return field.nullable && field.type !== "any" ? `${text}, or null` : text;
}
