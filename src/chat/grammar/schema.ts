/**
 * JSON schemas as grammars. Every text of the grammar is valid by its schema; not every valid text is in the grammar: properties
 * come in the schema's order, and an object that names its properties has no others. A keyword that this cannot promise is
 * refused.
 */
import { accepts, arrayRule, objectRule, type Schemas } from "./collections.ts";
import { checkDisjoint } from "./disjoint.ts";
import { Needs } from "./finite.ts";
import { intersection, MOST_STATES, type SchemaPlace, type StateBudget } from "./intersection.ts";
import { ANY_VALUE, BOOLEAN_VALUE, INTEGER_VALUE, NULL_VALUE, NUMBER_VALUE } from "./json.ts";
import {
  isNever,
  isOfType,
  isReference,
  isSilent,
  type JsonSchema,
  keywordList,
  pointed,
  type SchemaKeywords,
  typesOf,
  unsupportedKeyword,
  valuesOf,
  withNull,
  withTexts,
} from "./keywords.ts";
import { asPart, merged } from "./merge.ts";
import { multiplesOf } from "./multiples.ts";
import { numberWithin } from "./numbers.ts";
import { choiceRule, GrammarRule, literal, type SymbolSequence } from "./rules.ts";
import { stringTexts } from "./strings.ts";

export type { JsonSchema } from "./keywords.ts";

/** Schemas within schemas, and references to them: deeper ones need stack without end. */
const MOST_DEPTH = 100;
/** Schemas that are read, each as often as parts of allOf repeat it. */
const MOST_SCHEMAS = 5000;
/** Most values of one enum. */
const MOST_VALUES = 32_768;

/**
 * The grammar of a schema.
 * @param place where the request has it, for errors, and the states that its schemas may have together
 * @throws {ConfigError} naming the place of a keyword that cannot be kept, or of a reference without a finite value
 */
export function schemaRule(schema: JsonSchema, { path = "schema", budget }: Partial<SchemaPlace> = {}): GrammarRule {
  return new SchemaReader(schema, budget).read(path);
}

interface Reference {
  readonly rule: GrammarRule;
  /** Path of the first schema that has it. */
  readonly path: string;
}

class SchemaReader implements Schemas {
  readonly budget: StateBudget;
  private readonly root: JsonSchema;
  private readonly references = new Map<string, Reference>();
  /** Rules by the schema's own object: one that stands in several places is read once. */
  private readonly rules = new Map<object, GrammarRule>();
  /** Strings by their limits: many properties have the same ones. */
  private readonly strings = new Map<string, SymbolSequence>();
  private readonly finite = new Needs();
  private depth = 0;
  private schemas = 0;

  constructor(root: JsonSchema, budget: StateBudget = { left: MOST_STATES }) {
    this.root = root;
    this.budget = budget;
  }

  read(root: string): GrammarRule {
    const rule = this.rule(this.root, root);
    const endless = this.finite.endless();
    for (const [ref, { rule: referencedRule, path }] of this.references)
      if (endless.has(referencedRule))
        throw unsupportedKeyword(`${path}.$ref`, "no finite value is valid, because each contains another one", ref);
    return rule;
  }

  /** @param path of the schema within the root, for errors */
  rule(schema: unknown, path: string): GrammarRule {
    if (schema === true) return ANY_VALUE;
    if (schema === false) throw unsupportedKeyword(path, "no value is valid", schema);
    if (typeof schema !== "object" || schema === null || Array.isArray(schema))
      throw unsupportedKeyword(path, "a schema must be an object or true", schema);
    const cached = this.rules.get(schema);
    if (cached) return cached;
    return this.within(path, () => {
      const alternatives = this.alternatives(this.flattened(withTexts(schema as SchemaKeywords, path), path), path);
      const rule = choiceRule(...alternatives);
      this.finite.set(
        rule,
        alternatives.map((symbols) => symbols.filter((symbol) => symbol instanceof GrammarRule)),
      );
      this.rules.set(schema, rule);
      return rule;
    });
  }

  needs(rule: GrammarRule, of: readonly GrammarRule[]): GrammarRule {
    this.finite.set(rule, [of]);
    return rule;
  }

  values(schema: unknown, path: string): ReadonlySet<string> | undefined {
    if (typeof schema !== "object" || schema === null) return undefined;
    const fields = this.resolved(schema, path);
    if (fields.type === "boolean" && !valuesOf(fields)) return new Set(["true", "false"]);
    const others = Object.keys(fields).filter((key) => !isSilent(key) && !["type", "enum", "const"].includes(key));
    return others.length > 0 || !valuesOf(fields) ? undefined : new Set(this.constants(fields, path));
  }

  /** Reads one schema within the limits of all. */
  private within<T>(path: string, read: () => T): T {
    if (++this.schemas > MOST_SCHEMAS)
      throw unsupportedKeyword(path, "it has too many schemas, or repeats them", MOST_SCHEMAS);
    if (++this.depth > MOST_DEPTH)
      throw unsupportedKeyword(path, "it is nested too deep, or contains itself", MOST_DEPTH);
    try {
      return read();
    } finally {
      this.depth--;
    }
  }

  private alternatives({ nullable, ...fields }: SchemaKeywords, path: string): SymbolSequence[] {
    const isAlso = nullable === true && !valuesOf(fields);
    return [...this.withoutNull(fields, path), ...(isAlso ? [[NULL_VALUE]] : [])];
  }

  private withoutNull(fields: SchemaKeywords, path: string): SymbolSequence[] {
    if (fields.$ref !== undefined) return [[this.reference(fields.$ref, path)]];
    if (valuesOf(fields)) return this.constants(fields, path).map((text) => literal(text));
    if (fields.enum !== undefined) keywordList(fields.enum, `${path}.enum`);
    if (fields.anyOf !== undefined || fields.oneOf !== undefined) return this.branches(fields, path);
    const types = typesOf(fields, path);
    return types.length === 0 ? [[ANY_VALUE]] : types.map((type) => this.typed(type, fields, path));
  }

  /** The values of `const` and `enum`, as JSON: those that keep what stands beside. */
  private constants(fields: SchemaKeywords, path: string): string[] {
    const { const: _, enum: listed, ...others } = fields;
    const values = [...valuesOf(fields)!];
    if (values.length > MOST_VALUES)
      throw unsupportedKeyword(`${path}.enum`, `it may have up to ${MOST_VALUES} values`, values.length);
    if (values.length === 0 && "const" in fields)
      throw unsupportedKeyword(`${path}.enum`, "it allows no value together with const", listed);
    const { type, ...limits } = others;
    const types = type === undefined ? undefined : typesOf({ type }, path);
    const isTyped = (text: string) => types?.some((each) => isOfType(JSON.parse(text), each)) ?? true;
    const isFree = Object.keys(limits).every(isSilent);
    const rule = isFree ? undefined : this.rule(others, path);
    const valid = values.filter((text) => isTyped(text) && (!rule || accepts(rule, text)));
    if (valid.length === 0) throw unsupportedKeyword(path, "no value is valid", listed ?? fields.const);
    return valid;
  }

  private branches(fields: SchemaKeywords, path: string): SymbolSequence[] {
    const { anyOf, oneOf, ...others } = fields;
    if (anyOf !== undefined && oneOf !== undefined)
      throw unsupportedKeyword(`${path}.oneOf`, "it is not supported together with anyOf", oneOf);
    const place = `${path}.${anyOf === undefined ? "oneOf" : "anyOf"}`;
    const each = keywordList(anyOf ?? oneOf, path);
    if (oneOf !== undefined) checkDisjoint(each, { path, resolve: (schema) => this.resolved(schema, "oneOf") });
    const valid = each.map((branch, i) => [branch, `${place}.${i}`] as const).filter(([branch]) => !isNever(branch));
    if (valid.length === 0) throw unsupportedKeyword(place, "no value is valid", anyOf ?? oneOf);
    const isAlone = Object.keys(others).every(isSilent);
    // What stands beside the branches holds in each.
    return valid.map(([branch, at]) => [this.rule(isAlone ? branch : { ...others, allOf: [branch] }, at)]);
  }

  private typed(type: string, fields: SchemaKeywords, path: string): SymbolSequence {
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
        return [arrayRule(fields, { path, schemas: this })];
      default:
        return [objectRule(fields, { path, schemas: this })];
    }
  }

  private string(fields: SchemaKeywords, path: string): SymbolSequence {
    const { minLength, maxLength, pattern, format } = fields;
    const key = JSON.stringify([minLength, maxLength, pattern, format]);
    const texts = this.strings.get(key) ?? stringTexts(fields, { path, budget: this.budget });
    this.strings.set(key, texts);
    return texts;
  }

  private number(fields: SchemaKeywords, { isInteger, path }: { isInteger: boolean; path: string }): GrammarRule {
    const { multipleOf } = fields;
    if (multipleOf === undefined || multipleOf === 1)
      return numberRule(fields, { isInteger: isInteger || multipleOf === 1, path });
    const multiples = typeof multipleOf === "number" ? multiplesOf(multipleOf) : undefined;
    if (!multiples)
      throw unsupportedKeyword(
        `${path}.multipleOf`,
        "only decimal numbers of up to two digits beside zeros are supported",
        multipleOf,
      );
    const within = numberRule(fields, { isInteger, path });
    // Without an exponent, as the multiples are written.
    const both = intersection({ all: [within, multiples] }, { path: `${path}.multipleOf`, budget: this.budget });
    if (both) return both;
    throw unsupportedKeyword(`${path}.multipleOf`, "no multiple lies within its limits", multipleOf);
  }

  private reference(ref: unknown, path: string): GrammarRule {
    const reference = this.references.get(String(ref));
    if (reference) return reference.rule;
    const target = this.target(ref, path);
    let made: GrammarRule | undefined;
    const rule: GrammarRule = new GrammarRule(() => (made ? [[made]] : []));
    this.references.set(String(ref), { rule, path });
    made = this.rule(target, String(ref));
    return this.needs(rule, [made]);
  }

  private target(ref: unknown, path: string): unknown {
    if (typeof ref !== "string" || !/^#($|\/)/.test(ref))
      throw unsupportedKeyword(
        `${path}.$ref`,
        "only references within the schema are supported, such as #/$defs/item",
        ref,
      );
    const target = pointed(this.root, ref);
    if (target === undefined) throw unsupportedKeyword(`${path}.$ref`, "it leads nowhere", ref);
    return target;
  }

  /** `allOf` merged into what stands beside it. */
  private flattened(schema: SchemaKeywords, path: string): SchemaKeywords {
    const { nullable, ...fields } = withNull(schema);
    const flat = this.withoutParts(fields, path);
    return nullable === true ? { ...flat, nullable } : flat;
  }

  private withoutParts(fields: SchemaKeywords, path: string): SchemaKeywords {
    const { allOf, ...others } = fields;
    const { $ref, ...beside } = others;
    const isLimited = Object.keys(beside).some((key) => !isSilent(key));
    const parts = [
      ...(allOf === undefined ? [] : keywordList(allOf, `${path}.allOf`)),
      ...($ref !== undefined && (isLimited || allOf !== undefined) ? [{ $ref }] : []),
    ];
    if (parts.length === 0) return fields;
    const [only] = parts;
    // So that a reference is read once, however often allOf wraps it.
    if (parts.length === 1 && !isLimited && isReference(only)) return only;
    return parts.reduce((sum: SchemaKeywords, part, i) => {
      const resolved = this.resolved(part, `${path}.allOf.${i}`);
      return merged(sum, asPart(resolved), path);
    }, beside);
  }

  private resolved(part: unknown, path: string): SchemaKeywords {
    if (part === true) return {};
    if (part === false) throw unsupportedKeyword(path, "no value is valid", part);
    if (typeof part !== "object" || part === null)
      throw unsupportedKeyword(path, "a schema must be an object or true", part);
    const { $ref, ...others } = withTexts(part as SchemaKeywords, path);
    return this.within(path, () => {
      const flattened = this.flattened(others, path);
      return $ref === undefined
        ? flattened
        : merged(flattened, asPart(this.resolved(this.target($ref, path), path)), path);
    });
  }
}

/** Numbers within the limits of a schema. */
function numberRule(fields: SchemaKeywords, { isInteger, path }: { isInteger: boolean; path: string }): GrammarRule {
  const { minimum, maximum } = fields;
  const [above, below] = [exclusive(fields.exclusiveMinimum, minimum), exclusive(fields.exclusiveMaximum, maximum)];
  const bounds = { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below };
  for (const [key, value] of Object.entries(bounds))
    if (value !== undefined && typeof value !== "number")
      throw unsupportedKeyword(`${path}.${key}`, "it must be a number", value);
  if (Object.values(bounds).every((value) => value === undefined)) return isInteger ? INTEGER_VALUE : NUMBER_VALUE;
  const limit = (value: unknown, without: number) => (value as number | undefined) ?? without;
  const [low, open, high, closed] = [
    limit(minimum, -Infinity),
    limit(above, -Infinity),
    limit(maximum, Infinity),
    limit(below, Infinity),
  ];
  const rule = numberWithin({
    isInteger,
    least: Math.max(low, open),
    most: Math.min(high, closed),
    excludesLeast: open >= low && open > -Infinity,
    excludesMost: closed <= high && closed < Infinity,
  });
  if (rule.alternatives().length === 0) throw unsupportedKeyword(path, "no number lies within its limits", fields.type);
  return rule;
}

/** Before draft 6 these were flags of `minimum` and `maximum`. */
function exclusive(value: unknown, limit: unknown): unknown {
  if (typeof value !== "boolean") return value;
  return value ? limit : undefined;
}
