/** Objects and arrays of a schema. */
import { jsonEntries } from "../../leaves/json.ts";
import { Automaton, type ParseState } from "./automaton.ts";
import type { StateBudget } from "./intersection.ts";
import { ANY_OBJECT, ANY_VALUE, arrayOf, bracketed, mapOf, member, SPACE, stringOf } from "./json.ts";
import {
  fieldsOf,
  isNever,
  isSilent,
  keywordList,
  limitsOf,
  type SchemaKeywords,
  unsupportedKeyword,
} from "./keywords.ts";
import { inOrder, type Member } from "./members.ts";
import { patternRule } from "./pattern.ts";
import { choiceRule, type GrammarRule, literal, repeat, type SymbolSequence } from "./rules.ts";

/** Reader of the schemas within. */
export interface Schemas {
  readonly budget: StateBudget;
  rule(schema: unknown, path: string): GrammarRule;
  /** The values of a schema that fixes them, as JSON. */
  values(schema: unknown, path: string): ReadonlySet<string> | undefined;
  /** Notes the rules that every text of a rule holds. */
  needs(rule: GrammarRule, of: readonly GrammarRule[]): GrammarRule;
}

interface Named {
  readonly name: string;
  readonly schema: unknown;
  readonly isRequired: boolean;
}

export function objectRule(fields: SchemaKeywords, { path, schemas }: { path: string; schemas: Schemas }): GrammarRule {
  const { additionalProperties, unevaluatedProperties, minProperties, maxProperties } = fields;
  const more = additionalProperties ?? unevaluatedProperties;
  const limits = limitsOf({ minProperties, maxProperties }, path);
  const names = new Names(fields, { path, schemas, more });
  if (names.named.length === 0) return mapRule(names, { more, limits, path, schemas });
  const read = names.usable().map(({ name, schema, isRequired }) => ({
    isRequired,
    value: schemas.rule(schema, `${path}.properties.${name}`),
    name,
  }));
  const members = read.map(({ name, value, isRequired }) => ({
    isRequired,
    symbols: member(literal(JSON.stringify(name)), value),
  }));
  const rule = inOrder(["{", "}"], { members, ...limits });
  if (!rule)
    throw unsupportedKeyword(
      path,
      "no number of its properties lies within its limits",
      minProperties ?? maxProperties,
    );
  const required = read.filter(({ isRequired }) => isRequired).map(({ value }) => value);
  return schemas.needs(rule, required);
}

/** The properties that a schema names, and the form of all names. */
class Names {
  readonly named: readonly Named[];
  /** Texts of any name, in quotes. `undefined` for every string. */
  readonly key: GrammarRule | undefined;
  readonly patterns: readonly (readonly [source: string, schema: unknown])[];
  private readonly path: string;
  private readonly schemas: Schemas;

  constructor(fields: SchemaKeywords, context: { path: string; schemas: Schemas; more: unknown }) {
    const { path, schemas, more = true } = context;
    this.path = path;
    this.schemas = schemas;
    const { properties = {}, required = [], patternProperties = {}, propertyNames } = fields;
    const declared = fieldsOf(properties, `${path}.properties`);
    const needed = new Set(keywordList(required, `${path}.required`).map(String));
    this.patterns = Object.entries(fieldsOf(patternProperties, `${path}.patternProperties`));
    const listed = propertyNames === undefined ? undefined : schemas.values(propertyNames, `${path}.propertyNames`);
    const texts = [...(listed ?? [])].map((text): unknown => JSON.parse(text)).filter((key) => typeof key === "string");
    const unknown = isNever(more) && this.patterns.length === 0 ? [] : texts;
    const merged = new Map<string, unknown>();
    for (const name of [...needed, ...unknown]) merged.set(name, more);
    // Properties keep the schema's order, behind those that are only required.
    for (const name of Object.keys(declared)) merged.delete(name);
    for (const [name, schema] of jsonEntries(declared)) merged.set(name, schema);
    this.named = [...merged].map(([name, schema]) => ({ name, schema, isRequired: needed.has(name) }));
    this.key = isAnyName(propertyNames)
      ? undefined
      : schemas.rule({ allOf: [{ type: "string" }, propertyNames] }, `${path}.propertyNames`);
  }

  /** Returns the named members with what patterns of names demand of each; without those that no value or name fits. */
  usable(): Named[] {
    const named = this.named.map((property) => ({ ...property, schema: this.schemaOf(property) }));
    const isUsable = ({ name, schema }: Named) =>
      !isNever(schema) && (!this.key || accepts(this.key, JSON.stringify(name)));
    const missing = named.find((property) => property.isRequired && !isUsable(property));
    if (missing)
      throw unsupportedKeyword(`${this.path}.properties.${missing.name}`, "no value is valid", missing.schema);
    return named.filter(isUsable);
  }

  private schemaOf({ name, schema }: Named): unknown {
    const { path, schemas } = this;
    const parts = this.patterns.filter(([source]) => {
      if (!/^[\x20-\x7e]*$/.test(name) || /["\\]/.test(name))
        throw unsupportedKeyword(
          `${path}.patternProperties`,
          `only names of plain characters are supported beside it, not ${name}`,
          source,
        );
      const at = { path: `${path}.patternProperties.${source}`, budget: schemas.budget };
      return accepts(patternRule(source, at), name);
    });
    return parts.length === 0 ? schema : { allOf: [schema, ...parts.map(([, part]) => part)] };
  }
}

/** `{type: "string"}`, as zod writes for the keys of a record, says nothing more. */
function isAnyName(schema: unknown): boolean {
  if (schema === undefined || schema === true) return true;
  const keys = typeof schema === "object" && schema !== null ? Object.entries(schema) : undefined;
  return keys?.every(([key, value]) => isSilent(key) || (key === "type" && value === "string")) ?? false;
}

function mapRule(
  { key, patterns }: Names,
  context: { more: unknown; limits: { least?: number; most?: number }; path: string; schemas: Schemas },
): GrammarRule {
  const { more, limits, path, schemas } = context;
  // Names may repeat, and count once then.
  if ((limits.least ?? 0) > 1)
    throw unsupportedKeyword(`${path}.minProperties`, "more than 1 needs properties with names", limits.least);
  const [pattern, ...others] = patterns;
  if (others.length > 0 || (pattern && key))
    throw unsupportedKeyword(
      `${path}.patternProperties`,
      "only one pattern of names is supported",
      others[0]?.[0] ?? pattern?.[0],
    );
  const isEmpty = pattern ? isNever(pattern[1]) : isNever(more);
  if (isEmpty) {
    if (limits.least) throw unsupportedKeyword(`${path}.minProperties`, "no property is allowed", limits.least);
    return choiceRule(literal("{}"));
  }
  const isAny = more === undefined || more === true;
  if (isAny && !pattern && !key && Object.keys(limits).length === 0) return ANY_OBJECT;
  const place = pattern ? `${path}.patternProperties.${pattern[0]}` : `${path}.additionalProperties`;
  const value = schemas.rule(pattern ? pattern[1] : (more ?? true), place);
  const name = pattern ? quoted(patternRule(pattern[0], { path: place, budget: schemas.budget })) : key && [key];
  const rule = mapOf(value, { name: name ?? stringOf(), ...limits });
  return schemas.needs(rule, limits.least ? [value] : []);
}

function quoted(rule: GrammarRule): SymbolSequence {
  return [...literal('"'), rule, ...literal('"')];
}

/** Whether a text is one of a rule's. */
export function accepts(rule: GrammarRule, text: string): boolean {
  const automaton = new Automaton(rule);
  let state: ParseState | null = automaton.start;
  for (const byte of new TextEncoder().encode(text)) state = state && automaton.step(state, byte);
  return state?.isComplete ?? false;
}

export function arrayRule(fields: SchemaKeywords, at: { path: string; schemas: Schemas }): GrammarRule {
  const { path, schemas } = at;
  const { items, prefixItems, additionalItems, unevaluatedItems, minItems, maxItems, uniqueItems } = fields;
  const { least = 0, most = Number.POSITIVE_INFINITY } = limitsOf({ minItems, maxItems }, path);
  // Before 2020-12 a list of items was what prefixItems is now.
  const isOld = Array.isArray(items);
  if (isOld && prefixItems !== undefined)
    throw unsupportedKeyword(`${path}.prefixItems`, "it is not supported beside a list of items", prefixItems);
  const first = isOld ? items : prefixItems === undefined ? [] : keywordList(prefixItems, `${path}.prefixItems`);
  const rest = (isOld ? additionalItems : items) ?? unevaluatedItems;
  if (uniqueItems === true && most > 1) return setRule(rest, { least, most, isTuple: first.length > 0, ...at });
  const begin = first.slice(0, most).map((each, i) => schemas.rule(each, `${path}.prefixItems.${i}`));
  const isClosed = isNever(rest) || (rest === undefined && begin.length > 0 && least <= begin.length);
  if (isNever(rest) && least > begin.length)
    throw unsupportedKeyword(`${path}.minItems`, "items: false allows none", minItems);
  const further = isClosed ? undefined : rest === undefined ? ANY_VALUE : schemas.rule(rest, `${path}.items`);
  const limits = { least: least - begin.length, most: most - begin.length };
  return tupleRule(begin, further && { item: further, ...limits }, schemas);
}

/** Returns the rule of as many items as are named, and further ones of one form. */
function tupleRule(
  begin: readonly GrammarRule[],
  further: { item: GrammarRule; least: number; most: number } | undefined,
  schemas: Schemas,
): GrammarRule {
  const needed = further && further.least > 0 ? [...begin, further.item] : begin;
  if (begin.length === 0) {
    const array = further ? arrayOf(further.item, further) : choiceRule(literal("[]"));
    return schemas.needs(array, needed);
  }
  const named = begin.flatMap((item, i): SymbolSequence => (i === 0 ? [item] : [...literal(","), SPACE, item]));
  const more = further && further.most > 0 ? moreItems(further) : [];
  return schemas.needs(choiceRule(bracketed("[", choiceRule([...named, ...more]), "]")), needed);
}

function moreItems({ item, least, most }: { item: GrammarRule; least: number; most: number }): SymbolSequence {
  return [repeat(choiceRule([...literal(","), SPACE, item]), { least: Math.max(0, least), most })];
}

/** Items that do not repeat: only those of a list of values, in its order. */
function setRule(
  items: unknown,
  context: { least: number; most: number; isTuple: boolean; path: string; schemas: Schemas },
): GrammarRule {
  const { least, most, isTuple, path, schemas } = context;
  const values = isTuple || items === undefined ? undefined : schemas.values(items, `${path}.items`);
  if (!values)
    throw unsupportedKeyword(
      `${path}.uniqueItems`,
      "this keyword is not supported unless the items are of an enum",
      true,
    );
  const members = [...values].map((value): Member => ({ symbols: literal(value), isRequired: false }));
  const rule = inOrder(["[", "]"], { members, least, most });
  if (rule) return rule;
  throw unsupportedKeyword(`${path}.minItems`, "its enum has fewer values", least);
}
