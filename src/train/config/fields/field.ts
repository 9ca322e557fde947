/**
 * One row says everything about a setting: type, default, allowed values, meaning, whether the loop reads it, its names in
 * other systems, and what each of them does with it. The tables of rows are the schema; the packaged YAML, the loop's typed
 * settings, the synchronisation and `config explain` follow from them.
 */
import type { YamlValue } from "../yaml/tree.ts";

export const TARGETS = ["local", "tinker", "verl", "trinity"] as const;
export type FieldTarget = (typeof TARGETS)[number];

/**
 * `acts`: the loop or the backend here reads the setting. `forwarded`: another setting or system gets the value and reads
 * it. `logging`: only printed and stored. `refused`: a value other than the default is an error. `dropped`: `config convert`
 * leaves it out and reports that. `-`: there is no such setting.
 */
export type FieldStatus = "acts" | "forwarded" | "logging" | "refused" | "dropped" | "-";
/** One status for each of `TARGETS`. */
export type Statuses = `${FieldStatus} ${FieldStatus} ${FieldStatus} ${FieldStatus}`;
export type Reasons = Readonly<Partial<Record<FieldTarget, string>>>;

/** `number` is a native setting whose default does not show whether it may have a fraction. */
export type FieldType = "int" | "number" | "float" | "bool" | "str" | "list" | "dict" | "any";

/** One setting. `T` is the type of its value. */
export interface Field<T = unknown> {
  readonly type: FieldType;
  /** `???` is mandatory; a text with `${...}` is an interpolation. */
  readonly default: YamlValue;
  readonly describe: string;
  readonly nullable: boolean;
  /** Allowed values. With `open`, a name that a plug-in registered is allowed too. */
  readonly choices?: readonly string[];
  readonly open?: boolean;
  readonly min?: number;
  readonly max?: number;
  readonly secret?: boolean;
  /** Note about published sources that differ, or what a newcomer would get wrong. Printed by `config explain`. */
  readonly note?: string;
  /** The packaged YAML leaves the setting out, so a composed configuration has it only when somebody sets it. */
  readonly optional?: boolean;
  /**
   * The loop reads it: `rllm.rollout.n` is `rollout.n` in `LoopSettings`, `training.seed` is `training.seed`. `default`
   * stands in for an interpolated default where there is no configuration.
   */
  readonly loop?: true | { readonly default: YamlValue };
  /** verl's name of a portable setting. The two are held equal (config/sync). */
  readonly verl?: string;
  /** The portable setting that a backend's own setting is another name of. The two are held equal. */
  readonly same?: string;
  /** Whether, with `same`, the backend's default is no opinion; only a value that the user set reaches the portable side. */
  readonly onlyExplicit?: boolean;
  /** Status on each target; one status alone is that of the table's own backend. support.ts has the defaults. */
  readonly on?: FieldStatus | Statuses;
  /** Reasons or explanations that `describe` does not give, for all targets or for some. */
  readonly why?: string | Reasons;
  /** Read when the setting has this type; never present at run time. */
  readonly _type?: T;
}

/** A table of settings by dotted path. A path that ends in `.*` lets any further key of that section pass. */
export type FieldTable = Readonly<Record<string, Field>>;

/** The value type of a setting of table `F`. */
export type ValueOf<F extends FieldTable, K extends keyof F> = F[K] extends Field<infer T> ? T : never;

type More = Partial<Omit<Field, "type" | "default" | "describe" | "_type">>;
type OrNull<D, M> = D extends null ? null : M extends { nullable: true } ? null : never;
/** Keeps in the type that the loop reads a row: `LoopSettings` is made of these. */
type Row<T, M> = Field<T> & (M extends { loop: infer L } ? { readonly loop: L } : unknown);

function define<T, M>(type: FieldType, value: YamlValue, describe: string, more: More = {}): Row<T, M> {
  const field: Field<T> = {
    type,
    default: value,
    describe,
    ...more,
    nullable: more.nullable ?? value === null,
  };
  return field as Row<T, M>;
}

export function int<D extends number | string | null, M extends More>(value: D, describe: string, more?: M) {
  return define<number | OrNull<D, M>, M>("int", value, describe, more);
}
export function float<D extends number | string | null, M extends More>(value: D, describe: string, more?: M) {
  return define<number | OrNull<D, M>, M>("float", value, describe, more);
}
export function bool<D extends boolean | null, M extends More>(value: D, describe: string, more?: M) {
  return define<boolean | OrNull<D, M>, M>("bool", value, describe, more);
}
export function str<D extends string | null, M extends More>(value: D, describe: string, more?: M) {
  return define<string | OrNull<D, M>, M>("str", value, describe, more);
}
/** A string out of a fixed list. */
export function oneOf<const C extends readonly string[], D extends string | null, M extends More>(
  choices: C,
  value: D,
  describe: string,
  more?: M,
) {
  type Name = M extends { open: true } ? string : C[number];
  return define<Name | OrNull<D, M>, M>("str", value, describe, { ...more, choices });
}
export function list<M extends More>(value: readonly string[] | null, describe: string, more?: M) {
  return define<readonly string[], M>("list", value, describe, more);
}
export function dict<M extends More>(describe: string, more?: M) {
  return define<Readonly<Record<string, unknown>>, M>("dict", {}, describe, more);
}
/** One text or a list of texts (file names, addresses). */
export function texts(describe: string, more?: More) {
  return define<string | readonly string[] | null, unknown>("any", null, describe, more);
}
export function any<M extends More>(value: YamlValue, describe: string, more?: M) {
  return define<unknown, M>("any", value, describe, { nullable: true, ...more });
}
/** Marks a section that passes further keys unchanged. */
export function open(describe: string, more?: More) {
  return define<unknown, unknown>("any", null, describe, more);
}
/** Gives rows the columns that all of them have alike; a row's own column wins. */
export function each<const F extends FieldTable>(more: More, rows: F): F {
  return Object.fromEntries(Object.entries(rows).map(([path, row]) => [path, { ...more, ...row }])) as F;
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
