/** Schemas that hold together: the parts of `allOf`, and what stands beside them. */
import { jsonEntries, mergedJson, parseJson, stringifyJson } from "../../leaves/json.ts";
import {
  isOfType,
  isSameValue,
  isSilent,
  type SchemaKeywords,
  unsupportedKeyword,
  valueKey,
  valuesOf,
} from "./keywords.ts";

type Join = (a: unknown, other: unknown) => unknown;

const most: Join = (a, other) => Math.max(a as number, other as number);
const least: Join = (a, other) => Math.min(a as number, other as number);
const both: Join = (a, other) => ({ allOf: [a, other] });
const unique: Join = (a, other) => [...new Set([a, other].flat())];

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
  uniqueItems: (a, other) => a === true || other === true,
  nullable: (a, other) => a === true && other === true,
  properties: mergedProperties,
  patternProperties: mergedProperties,
  additionalProperties: both,
  propertyNames: both,
  items: (a, other) => (Array.isArray(a) || Array.isArray(other) ? undefined : both(a, other)),
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
  const [left, other] = [limitedBy(first, second), limitedBy(second, first)];
  const result: Record<string, unknown> = { ...left };
  for (const [key, value] of Object.entries(other)) {
    const current = result[key];
    if (current === undefined || isSilent(key) || isSameIn(key, result, other)) {
      result[key] = value;
      continue;
    }
    const joined =
      Object.hasOwn(JOINS, key) && isJoinable(key, [current, value]) ? JOINS[key]!(current, value) : undefined;
    if (joined === undefined)
      throw unsupportedKeyword(`${path}.${key}`, "two parts of allOf say different things of it", value);
    result[key] = joined;
  }
  return result;
}

function isSameIn(key: string, left: SchemaKeywords, other: SchemaKeywords): boolean {
  if (key !== "const") return stringifyJson(left[key]) === stringifyJson(other[key]);
  const [a, b] = [left, other].map((value) => [...valuesOf({ const: value.const })!][0]!);
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

function mergedProperties(a: unknown, other: unknown): unknown {
  const added = jsonEntries(other as SchemaKeywords).map(([name, schema]) => [
    name,
    Object.hasOwn(a as SchemaKeywords, name) ? both((a as SchemaKeywords)[name], schema) : schema,
  ]);
  return mergedJson(a as SchemaKeywords, ...added.map((entry) => Object.fromEntries([entry]) as SchemaKeywords));
}

function sharedTypes(a: unknown, other: unknown): unknown {
  const narrower = (type: string, types: readonly string[]) => {
    if (types.includes(type)) return [type];
    if (type === "number" && types.includes("integer")) return ["integer"];
    return type === "integer" && types.includes("number") ? ["integer"] : [];
  };
  const others = [other].flat() as string[];
  const shared = [...new Set(([a].flat() as string[]).flatMap((type) => narrower(type, others)))];
  return shared.length > 0 ? shared : undefined;
}

function sharedValues(a: unknown, other: unknown): unknown {
  const others = new Set([...valuesOf({ enum: other })!].map(valueKey));
  const shared = [...valuesOf({ enum: a })!].filter((text) => others.has(valueKey(text)));
  return shared.length > 0 ? parseJson(`[${shared.join(",")}]`) : undefined;
}

const MOST_PAIRS = 64;

/** Each branch of one with each of the other. Pairs that no value keeps are left out where that shows in their types. */
function pairs(a: unknown, other: unknown): unknown {
  const [branches, others] = [a, other] as [SchemaKeywords[], SchemaKeywords[]];
  const combined = branches.flatMap((branch) =>
    others.filter((alternative) => mayShare(branch, alternative)).map((alternative) => both(branch, alternative)),
  );
  return combined.length > 0 && combined.length <= MOST_PAIRS ? combined : undefined;
}

function mayShare(schema: unknown, other: unknown): boolean {
  const [a, b] = [schema, other].map((schema) =>
    typeof schema === "object" && schema !== null ? (schema as SchemaKeywords) : {},
  );
  if (a!.type !== undefined && b!.type !== undefined) return sharedTypes(a!.type, b!.type) !== undefined;
  const isOf = (values: SchemaKeywords, type: SchemaKeywords) =>
    !("const" in values) ||
    type.type === undefined ||
    [type.type].flat().some((name) => isOfType(values.const, String(name)));
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
    const values = new Set(of(part, key));
    return of(other, key).find((name) => !values.has(name));
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
