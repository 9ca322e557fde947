/** Schemas that hold together: the parts of `allOf`, and what stands beside them. */
import { jsonEntries, mergedJson, parseJson, stringifyJson } from "../../json.ts";
import {
  isOfType,
  isSameValue,
  isSilent,
  type SchemaKeywords,
  unsupportedKeyword,
  valueKey,
  valuesOf,
} from "./keywords.ts";

type Join = (one: unknown, other: unknown) => unknown;

const most: Join = (one, other) => Math.max(one as number, other as number);
const least: Join = (one, other) => Math.min(one as number, other as number);
const both: Join = (one, other) => ({ allOf: [one, other] });
const unique: Join = (one, other) => [...new Set([one, other].flat())];

/** How two values of a keyword become one. `undefined`: nothing keeps both. */
const JOINS: Readonly<Record<string, Join>> = {
  minLength: most,
  maxLength: least,
  minItems: most,
  maxItems: least,
  minProperties: most,
  maxProperties: least,
  minimum: most,
  maximum: least,
  exclusiveMinimum: most,
  exclusiveMaximum: least,
  // Both are kept; see stringTexts().
  pattern: unique,
  format: unique,
  required: unique,
  uniqueItems: (one, other) => one === true || other === true,
  nullable: (one, other) => one === true && other === true,
  properties: mergedProperties,
  patternProperties: mergedProperties,
  additionalProperties: both,
  propertyNames: both,
  items: (one, other) => (Array.isArray(one) || Array.isArray(other) ? undefined : both(one, other)),
  type: sharedTypes,
  enum: sharedValues,
  anyOf: pairs,
};

/**
 * A part of `allOf` as it stands alone: its unevaluated properties and items are those that it does not know itself, whatever
 * the other parts name.
 */
export function asPart(fields: SchemaKeywords): SchemaKeywords {
  const { unevaluatedProperties, unevaluatedItems, ...others } = fields;
  const isTuple = Array.isArray(fields.items);
  const items = isTuple ? "additionalItems" : "items";
  return {
    ...(unevaluatedProperties !== undefined && { additionalProperties: unevaluatedProperties }),
    ...(unevaluatedItems !== undefined && { [items]: unevaluatedItems }),
    ...others,
  };
}

/** @throws {ConfigError} naming the keyword of which two parts say what cannot be kept together */
export function merged(first: SchemaKeywords, second: SchemaKeywords, path: string): SchemaKeywords {
  checkClosed(first, second, path);
  checkClosed(second, first, path);
  const [one, other] = [limitedBy(first, second), limitedBy(second, first)];
  const result: Record<string, unknown> = { ...one };
  for (const [key, value] of Object.entries(other)) {
    const own = result[key];
    if (own === undefined || isSilent(key) || isSameIn(key, result, other)) {
      result[key] = value;
      continue;
    }
    const joined = Object.hasOwn(JOINS, key) && isJoinable(key, [own, value]) ? JOINS[key]!(own, value) : undefined;
    if (joined === undefined)
      throw unsupportedKeyword(`${path}.${key}`, "two parts of allOf say different things of it", value);
    result[key] = joined;
  }
  return result;
}

function isSameIn(key: string, one: SchemaKeywords, other: SchemaKeywords): boolean {
  if (key !== "const") return stringifyJson(one[key]) === stringifyJson(other[key]);
  const [a, b] = [one, other].map((it) => [...valuesOf({ const: it.const })!][0]!);
  return isSameValue(a!, b!);
}

/** A part with what the other one takes from it: null, and items that only this one places. */
function limitedBy(fields: SchemaKeywords, other: SchemaKeywords): SchemaKeywords {
  const { nullable, prefixItems, ...others } = fields;
  const isShared = !Array.isArray(prefixItems) || other.prefixItems !== undefined || other.items === undefined;
  return {
    ...others,
    ...(nullable !== undefined && allowsNull(other) && { nullable }),
    ...(prefixItems !== undefined && {
      prefixItems: isShared ? prefixItems : prefixItems.map((item: unknown) => both(item, other.items)),
    }),
  };
}

/** False where that does not show in the schema's own type and values. */
function allowsNull(fields: SchemaKeywords): boolean {
  const { type, nullable, anyOf, oneOf, $ref } = fields;
  if (anyOf !== undefined || oneOf !== undefined || $ref !== undefined) return false;
  const isTyped = type === undefined || nullable === true || [type].flat().includes("null");
  return isTyped && (valuesOf(fields)?.has("null") ?? true);
}

/** Numbers of the wrong type, such as `exclusiveMinimum: true`, are not compared. */
function isJoinable(key: string, values: readonly unknown[]): boolean {
  const isNumber = JOINS[key] === most || JOINS[key] === least;
  const isList = key === "required" || key === "enum" || key === "anyOf";
  if (isNumber) return values.every((value) => typeof value === "number");
  return !isList || values.every(Array.isArray);
}

function mergedProperties(one: unknown, other: unknown): unknown {
  const added = jsonEntries(other as SchemaKeywords).map(([name, schema]) => [
    name,
    Object.hasOwn(one as SchemaKeywords, name) ? both((one as SchemaKeywords)[name], schema) : schema,
  ]);
  return mergedJson(one as SchemaKeywords, ...added.map((entry) => Object.fromEntries([entry]) as SchemaKeywords));
}

function sharedTypes(one: unknown, other: unknown): unknown {
  const narrower = (type: string, types: readonly string[]) => {
    if (types.includes(type)) return [type];
    if (type === "number" && types.includes("integer")) return ["integer"];
    return type === "integer" && types.includes("number") ? ["integer"] : [];
  };
  const others = [other].flat() as string[];
  const shared = [...new Set(([one].flat() as string[]).flatMap((type) => narrower(type, others)))];
  return shared.length > 0 ? shared : undefined;
}

function sharedValues(one: unknown, other: unknown): unknown {
  const others = new Set([...valuesOf({ enum: other })!].map(valueKey));
  const shared = [...valuesOf({ enum: one })!].filter((text) => others.has(valueKey(text)));
  return shared.length > 0 ? parseJson(`[${shared.join(",")}]`) : undefined;
}

const MOST_PAIRS = 64;

/** Each branch of one with each of the other. Pairs that no value keeps are left out where that shows in their types. */
function pairs(one: unknown, other: unknown): unknown {
  const [branches, others] = [one, other] as [SchemaKeywords[], SchemaKeywords[]];
  const all = branches.flatMap((branch) => others.filter((it) => mayShare(branch, it)).map((it) => both(branch, it)));
  return all.length > 0 && all.length <= MOST_PAIRS ? all : undefined;
}

function mayShare(one: unknown, other: unknown): boolean {
  const [a, b] = [one, other].map((it) => (typeof it === "object" && it !== null ? (it as SchemaKeywords) : {}));
  if (a!.type !== undefined && b!.type !== undefined) return sharedTypes(a!.type, b!.type) !== undefined;
  const isOf = (values: SchemaKeywords, type: SchemaKeywords) =>
    !("const" in values) ||
    type.type === undefined ||
    [type.type].flat().some((it) => isOfType(values.const, String(it)));
  return isOf(a!, b!) && isOf(b!, a!);
}

/** A part that limits its additional properties limits those that only the other part names, or has a pattern for. */
function checkClosed(part: SchemaKeywords, other: SchemaKeywords, path: string): void {
  const { additionalProperties: more } = part;
  const isOpen = more === undefined || more === true || JSON.stringify(more) === "{}";
  if (isOpen) return;
  const of = (fields: SchemaKeywords, key: "properties" | "patternProperties") =>
    Object.keys((fields[key] ?? {}) as SchemaKeywords);
  const missing = (key: "properties" | "patternProperties") => {
    const own = new Set(of(part, key));
    return of(other, key).find((name) => !own.has(name));
  };
  const name = missing("properties");
  if (name !== undefined)
    throw unsupportedKeyword(
      `${path}.additionalProperties`,
      `a part of allOf limits a property that another one names, ${name}`,
      more,
    );
  // Where a part names properties, the object has no others, and a pattern adds none.
  const pattern = of(part, "properties").length > 0 ? undefined : missing("patternProperties");
  if (pattern !== undefined)
    throw unsupportedKeyword(
      `${path}.additionalProperties`,
      `a part of allOf limits properties for which another one has a pattern, ${pattern}`,
      more,
    );
}
