/**
 * JSON schemas as grammars. Every text of the grammar is valid by its schema; not every valid text is in the grammar: properties
 * come in the schema's order, and an object that names its properties has no others. A keyword that this cannot promise is
 * refused.
 */
import { ConfigError } from "../../errors.ts";
import {
  ANY_OBJECT,
  ANY_VALUE,
  arrayOf,
  BOOLEAN_VALUE,
  bracketed,
  INTEGER_VALUE,
  mapOf,
  member,
  NULL_VALUE,
  NUMBER_VALUE,
  SPACE,
  stringOf,
} from "./json.ts";
import { numberWithin } from "./numbers.ts";
import { patternOf } from "./pattern.ts";
import { choice, literal, Rule, type Sequence } from "./rules.ts";

export type Schema = Readonly<Record<string, unknown>> | boolean;

/** Keywords that say nothing of the value's form, and those that are annotations by the standard. */
const SILENT = [
  ..."$schema $id $comment $defs definitions title description default examples deprecated readOnly writeOnly format".split(
    " ",
  ),
  // OpenAI's own, and those of a discriminated union in OpenAPI.
  "strict",
  "discriminator",
];

/** Keywords by the type that they limit. */
const KEYWORDS: Readonly<Record<string, readonly string[]>> = {
  string: ["minLength", "maxLength", "pattern"],
  integer: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
  object: ["properties", "required", "additionalProperties", "propertyNames"],
  array: ["items", "prefixItems", "minItems", "maxItems", "additionalItems"],
  boolean: [],
  null: [],
};

/** Schemas within schemas, and references to them: deeper ones need stack without end. */
const MOST_DEPTH = 100;
/** Schemas that are read, each as often as parts of allOf repeat it. */
const MOST_SCHEMAS = 5000;

const GENERAL = ["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"];

/**
 * The grammar of a schema.
 * @throws {ConfigError} naming the place of a keyword that cannot be kept
 */
export function schemaRule(schema: Schema): Rule {
  return new SchemaReader(schema).rule(schema, "schema");
}

type Fields = Readonly<Record<string, unknown>>;

class SchemaReader {
  private readonly root: Schema;
  private readonly references = new Map<string, Rule>();
  /** By the schema's own object: one that stands in several places is read once. */
  private readonly rules = new Map<object, Rule>();
  private depth = 0;
  private schemas = 0;

  constructor(root: Schema) {
    this.root = root;
  }

  /** @param path of the schema within the root, for errors */
  rule(schema: unknown, path: string): Rule {
    if (schema === true) return ANY_VALUE;
    if (typeof schema !== "object" || schema === null || Array.isArray(schema))
      throw refused(path, "a schema must be an object or true", schema);
    const known = this.rules.get(schema);
    if (known) return known;
    return this.within(path, () => {
      const rule = choice(...this.alternatives(this.flattened(schema as Fields, path), path));
      this.rules.set(schema, rule);
      return rule;
    });
  }

  /** Reads one schema within the limits of all. */
  private within<T>(path: string, read: () => T): T {
    if (++this.schemas > MOST_SCHEMAS) throw refused(path, "it has too many schemas, or repeats them", MOST_SCHEMAS);
    if (++this.depth > MOST_DEPTH) throw refused(path, "it is nested too deep, or contains itself", MOST_DEPTH);
    try {
      return read();
    } finally {
      this.depth--;
    }
  }

  private alternatives(fields: Fields, path: string): Sequence[] {
    const { $ref, anyOf, oneOf, enum: values } = fields;
    if ($ref !== undefined) return [[this.reference($ref, path)]];
    if ("const" in fields || values !== undefined) return this.constants(fields, path);
    if (anyOf !== undefined && oneOf !== undefined)
      throw refused(`${path}.oneOf`, "it is not supported together with anyOf", oneOf);
    const branches = anyOf ?? oneOf;
    if (branches !== undefined) {
      const each = list(branches, path) as Schema[];
      if (oneOf !== undefined) this.checkDisjoint(each, path);
      return each.map((branch, i) => [this.branch(fields, branch, `${path}.${anyOf ? "anyOf" : "oneOf"}.${i}`)]);
    }
    return this.types(fields, path).map((type) => this.typed(type, fields, path));
  }

  private constants(fields: Fields, path: string): Sequence[] {
    if ("const" in fields && fields.enum !== undefined)
      throw refused(`${path}.enum`, "it is not supported together with const", fields.enum);
    const beside = Object.keys(fields).find((key) => !["const", "enum", "type", ...SILENT].includes(key));
    if (beside !== undefined)
      throw refused(`${path}.${beside}`, "it is not supported together with const or enum", fields[beside]);
    const values = "const" in fields ? [fields.const] : list(fields.enum, `${path}.enum`);
    const types = fields.type === undefined ? undefined : this.types({ type: fields.type }, path);
    const valid = values.filter((value) => types?.some((type) => isOfType(value, type)) ?? true);
    if (valid.length === 0) throw refused(path, "no value is valid", values);
    return valid.map(constant);
  }

  /** What stands beside `anyOf` holds in each branch too. */
  private branch({ anyOf, oneOf, ...others }: Fields, branch: Schema, path: string): Rule {
    const limits = Object.keys(others).filter((key) => !SILENT.includes(key));
    if (limits.length === 0) return this.rule(branch, path);
    return this.rule({ allOf: [others, branch] }, path);
  }

  private types(fields: Fields, path: string): string[] {
    if (fields.type !== undefined) {
      const types = [fields.type].flat();
      for (const type of types)
        if (typeof type !== "string" || !Object.hasOwn(KEYWORDS, type))
          throw refused(`${path}.type`, "there is no such type", type);
      this.checkKeywords(fields, { types: types as string[], path });
      return types as string[];
    }
    const limiting = Object.keys(fields).filter((key) => !SILENT.includes(key));
    const guessed = Object.keys(KEYWORDS).filter((type) => limiting.some((key) => KEYWORDS[type]!.includes(key)));
    // Without a type any value of another type is valid as well: the one that is described is meant.
    const types = guessed.includes("integer") ? ["number"] : guessed;
    this.checkKeywords(fields, { types, path });
    return types.length > 0 ? types : ["any"];
  }

  private checkKeywords(fields: Fields, { types, path }: { types: readonly string[]; path: string }): void {
    const known = new Set([...SILENT, ...GENERAL, ...Object.values(KEYWORDS).flat()]);
    for (const key of Object.keys(fields)) {
      if (!known.has(key)) throw refused(`${path}.${key}`, "this keyword is not supported", fields[key]);
      const isOthers =
        !SILENT.includes(key) && !GENERAL.includes(key) && !types.some((type) => KEYWORDS[type]!.includes(key));
      if (isOthers && types.length === 0) throw refused(`${path}.${key}`, "this keyword is not supported", fields[key]);
    }
  }

  private typed(type: string, fields: Fields, path: string): Sequence {
    switch (type) {
      case "string":
        return this.string(fields, path);
      case "integer":
      case "number":
        return [this.number(fields, { isInteger: type === "integer", path })];
      case "boolean":
        return [BOOLEAN_VALUE];
      case "null":
        return [NULL_VALUE];
      case "array":
        return [this.array(fields, path)];
      case "object":
        return [this.object(fields, path)];
      default:
        return [ANY_VALUE];
    }
  }

  private string({ minLength, maxLength, pattern }: Fields, path: string): Sequence {
    if (pattern === undefined) return stringOf(limits({ minLength, maxLength }, path));
    if (minLength !== undefined || maxLength !== undefined)
      throw refused(`${path}.pattern`, "it is not supported together with minLength and maxLength", pattern);
    return [...literal('"'), patternOf(String(pattern), `${path}.pattern`), ...literal('"')];
  }

  private number(fields: Fields, { isInteger, path }: { isInteger: boolean; path: string }): Rule {
    const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = fields;
    const isWhole = isInteger || multipleOf === 1;
    if (multipleOf !== undefined && multipleOf !== 1)
      throw refused(`${path}.multipleOf`, "only 1 is supported", multipleOf);
    const given = { minimum, maximum, exclusiveMinimum, exclusiveMaximum };
    for (const [key, value] of Object.entries(given))
      if (value !== undefined && typeof value !== "number")
        throw refused(`${path}.${key}`, "it must be a number", value);
    if (Object.values(given).every((value) => value === undefined)) return isWhole ? INTEGER_VALUE : NUMBER_VALUE;
    const [low, above, high, below] = [
      (minimum as number) ?? -Infinity,
      (exclusiveMinimum as number) ?? -Infinity,
      (maximum as number) ?? Infinity,
      (exclusiveMaximum as number) ?? Infinity,
    ];
    const rule = numberWithin({
      isInteger: isWhole,
      least: Math.max(low, above),
      most: Math.min(high, below),
      excludesLeast: above >= low && above > -Infinity,
      excludesMost: below <= high && below < Infinity,
    });
    if (rule.alternatives().length === 0) throw refused(path, "no number lies within its limits", fields.type);
    return rule;
  }

  private array(fields: Fields, path: string): Rule {
    const { items, prefixItems, minItems, maxItems } = fields;
    const { least = 0, most } = limits({ minItems, maxItems }, path);
    if (prefixItems === undefined) {
      const item = items === undefined ? ANY_VALUE : items === false ? undefined : this.rule(items, `${path}.items`);
      if (!item && least > 0) throw refused(`${path}.minItems`, "items: false allows none", minItems);
      return item ? arrayOf(item, { least, ...(most !== undefined && { most }) }) : arrayOf(ANY_VALUE, { most: 0 });
    }
    const first = list(prefixItems, `${path}.prefixItems`).map((each, i) =>
      this.rule(each, `${path}.prefixItems.${i}`),
    );
    // As many as are named: further ones would be valid, but are not meant.
    if (least > first.length || (most !== undefined && most < first.length))
      throw refused(
        `${path}.minItems`,
        "an array with prefixItems has as many items as they are",
        minItems ?? maxItems,
      );
    return choice(
      bracketed("[", choice(first.flatMap((item, i) => (i === 0 ? [item] : [...literal(","), SPACE, item]))), "]"),
    );
  }

  private object(fields: Fields, path: string): Rule {
    const { properties = {}, required = [], additionalProperties: more, propertyNames } = fields;
    if (propertyNames !== undefined && !isPlainNames(propertyNames))
      throw refused(`${path}.propertyNames`, "only strings without limits are supported", propertyNames);
    if (typeof properties !== "object" || properties === null)
      throw refused(`${path}.properties`, "it must be an object", properties);
    const names = new Set(list(required, `${path}.required`).map(String));
    const known = { ...Object.fromEntries([...names].map((name) => [name, more ?? true])), ...(properties as Fields) };
    const members = Object.entries(known).map(([name, schema]) => ({ name, schema, isRequired: names.has(name) }));
    if (members.length === 0) return this.map(more, path);
    const rules = members.map(({ name, schema, isRequired }) => ({
      isRequired,
      symbols: member(literal(JSON.stringify(name)), this.property(schema, `${path}.properties.${name}`)),
    }));
    return choice(...objectTexts(rules));
  }

  private property(schema: unknown, path: string): Rule {
    if (schema === false) throw refused(path, "no value is valid", schema);
    return this.rule(schema, path);
  }

  private map(more: unknown, path: string): Rule {
    if (more === false) return choice(literal("{}"));
    if (more === undefined || more === true) return ANY_OBJECT;
    return mapOf(this.rule(more, `${path}.additionalProperties`));
  }

  private reference(ref: unknown, path: string): Rule {
    const known = this.references.get(String(ref));
    if (known) return known;
    const target = this.target(ref, path);
    let made: Rule | undefined;
    const rule: Rule = new Rule(() => (made ? [[made]] : []));
    this.references.set(String(ref), rule);
    made = this.property(target, String(ref));
    return rule;
  }

  private target(ref: unknown, path: string): unknown {
    if (typeof ref !== "string" || !/^#($|\/)/.test(ref))
      throw refused(`${path}.$ref`, "only references within the schema are supported, such as #/$defs/item", ref);
    const target = resolve(this.root, ref);
    if (target === undefined) throw refused(`${path}.$ref`, "it leads nowhere", ref);
    return target;
  }

  /** `allOf` merged into what stands beside it. */
  private flattened(fields: Fields, path: string): Fields {
    const { allOf, ...others } = fields;
    const { $ref, ...beside } = others;
    const isLimited = Object.keys(beside).some((key) => !SILENT.includes(key));
    const parts = [
      ...(allOf === undefined ? [] : list(allOf, `${path}.allOf`)),
      ...($ref !== undefined && (isLimited || allOf !== undefined) ? [{ $ref }] : []),
    ];
    if (parts.length === 0) return fields;
    return parts.reduce((sum: Fields, part, i) => merged(sum, this.resolved(part, `${path}.allOf.${i}`), path), beside);
  }

  private resolved(part: unknown, path: string): Fields {
    if (part === true) return {};
    if (typeof part !== "object" || part === null) throw refused(path, "a schema must be an object or true", part);
    const { $ref, ...others } = part as Fields;
    return this.within(path, () => {
      if ($ref === undefined) return this.flattened(others, path);
      return merged(others, this.resolved(this.target($ref, path), path), path);
    });
  }

  /** A value must be valid by one branch alone: they differ in type, or in the constant of a property. */
  private checkDisjoint(branches: readonly Schema[], path: string): void {
    const marks = branches.map((branch) => this.marks(branch));
    for (const [i, one] of marks.entries())
      for (const other of marks.slice(i + 1))
        if (![...one].some(([key, values]) => isDisjoint(values, other.get(key))))
          throw refused(
            `${path}.oneOf`,
            "its branches must differ in type, or in the constant of a required property; use anyOf",
            i,
          );
  }

  /** What a branch fixes: its type (at ""), its value, and constants of required properties. */
  private marks(branch: Schema): Map<string, ReadonlySet<string>> {
    const fields = typeof branch === "object" ? this.resolved(branch, "oneOf") : {};
    const marks = new Map<string, ReadonlySet<string>>();
    const values = valuesOf(fields);
    if (values) marks.set("=", values);
    if (fields.type !== undefined)
      marks.set("", new Set([fields.type].flat().map((type) => (type === "integer" ? "number" : String(type)))));
    for (const name of (fields.required as string[] | undefined) ?? []) {
      const own = (fields.properties as Fields | undefined)?.[name];
      const fixed = typeof own === "object" && own !== null ? valuesOf(own as Fields) : undefined;
      if (fixed) marks.set(`.${name}`, fixed);
    }
    return marks;
  }
}

function isOfType(value: unknown, type: string): boolean {
  if (type === "integer") return Number.isInteger(value);
  if (type === "null" || value === null) return type === "null" && value === null;
  return type === (Array.isArray(value) ? "array" : typeof value);
}

function valuesOf(fields: Fields): ReadonlySet<string> | undefined {
  if ("const" in fields) return new Set([JSON.stringify(fields.const)]);
  return Array.isArray(fields.enum) ? new Set(fields.enum.map((value) => JSON.stringify(value))) : undefined;
}

function isDisjoint(one: ReadonlySet<string>, other: ReadonlySet<string> | undefined): boolean {
  return other !== undefined && [...one].every((value) => !other.has(value));
}

interface Member {
  readonly symbols: Sequence;
  readonly isRequired: boolean;
}

/** Members in order, each that is not required with or without. */
function objectTexts(members: readonly Member[]): Sequence[] {
  const SEPARATOR: Sequence = [...literal(","), SPACE];
  const CLOSE: Sequence = [SPACE, ...literal("}")];
  /** From member i on, where none came before. */
  const before: Rule[] = members.map((_, i) => new Rule(() => rest(i, [], before)));
  /** From member i on, after an earlier one. */
  const after: Rule[] = members.map((_, i) => new Rule(() => rest(i, SEPARATOR, after)));
  const end = choice(CLOSE);
  function rest(i: number, separator: Sequence, without: readonly Rule[]): Sequence[] {
    const it = members[i]!;
    const taken = [...separator, ...it.symbols, after[i + 1] ?? end];
    if (it.isRequired) return [taken];
    const last = without === after ? [[end]] : [];
    const next = without[i + 1];
    return [taken, ...(next ? [[next]] : last)];
  }
  const isEmptyValid = members.every(({ isRequired }) => !isRequired);
  const open: Sequence = [...literal("{"), SPACE, before[0]!];
  return isEmptyValid ? [literal("{}"), open] : [open];
}

function merged(one: Fields, other: Fields, path: string): Fields {
  checkClosed(one, other, path);
  checkClosed(other, one, path);
  const result: Record<string, unknown> = { ...one };
  for (const [key, value] of Object.entries(other)) {
    const own = result[key];
    if (own === undefined || SILENT.includes(key) || JSON.stringify(own) === JSON.stringify(value)) result[key] = value;
    else if (key === "required") result[key] = [...new Set([...(own as unknown[]), ...(value as unknown[])])];
    else if (key === "properties") result[key] = mergedProperties(own as Fields, value as Fields);
    else throw refused(`${path}.${key}`, "two parts of allOf say different things of it", value);
  }
  return result;
}

/** A part that limits its additional properties limits those that only the other part names. */
function checkClosed({ additionalProperties: more, properties }: Fields, other: Fields, path: string): void {
  if (more === undefined || more === true) return;
  const name = Object.keys((other.properties as Fields | undefined) ?? {}).find(
    (key) => !Object.hasOwn((properties as Fields | undefined) ?? {}, key),
  );
  if (name !== undefined)
    throw refused(
      `${path}.additionalProperties`,
      `a part of allOf limits a property that another one names, ${name}`,
      more,
    );
}

function mergedProperties(one: Fields, other: Fields): Fields {
  const added = Object.entries(other).map(([name, schema]) => [
    name,
    Object.hasOwn(one, name) ? { allOf: [one[name], schema] } : schema,
  ]);
  return { ...one, ...(Object.fromEntries(added) as Fields) };
}

function limits(given: Fields, path: string): { least?: number; most?: number } {
  const [least, most] = Object.entries(given).map(([key, value]) => {
    if (value === undefined || (Number.isInteger(value) && (value as number) >= 0)) return value as number | undefined;
    throw refused(`${path}.${key}`, "it must be a whole number", value);
  });
  if (least !== undefined && most !== undefined && least > most)
    throw refused(path, "no length lies within its limits", most);
  return { ...(least !== undefined && { least }), ...(most !== undefined && { most }) };
}

/** `{type: "string"}`, as zod writes for the keys of a record. */
function isPlainNames(schema: unknown): boolean {
  const keys = typeof schema === "object" && schema !== null ? Object.entries(schema) : [];
  return (
    schema === true || keys.every(([key, value]) => SILENT.includes(key) || (key === "type" && value === "string"))
  );
}

function constant(value: unknown): Sequence {
  return literal(JSON.stringify(value));
}

function list(value: unknown, path: string): readonly unknown[] {
  if (Array.isArray(value)) return value;
  throw refused(path, "it must be a list", value);
}

/** A JSON pointer: `#/$defs/item`. */
function resolve(root: Schema, ref: string): unknown {
  const keys = ref.slice(1).split("/").slice(1);
  return keys.reduce((at: unknown, key) => {
    const name = unescaped(key);
    return typeof at === "object" && at !== null && Object.hasOwn(at, name) ? (at as Fields)[name] : undefined;
  }, root);
}

/** A part of a JSON pointer. One with a broken escape names nothing. */
function unescaped(key: string): string {
  try {
    return decodeURIComponent(key).replaceAll("~1", "/").replaceAll("~0", "~");
  } catch {
    return key;
  }
}

function refused(path: string, rule: string, value: unknown): ConfigError {
  const shown = (JSON.stringify(value) ?? "undefined").slice(0, 80);
  return new ConfigError(`Cannot constrain the reply by its schema: ${rule} (${shown}).`, { path });
}
