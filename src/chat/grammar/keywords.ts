/** Keywords of JSON schemas, and what they may hold. */
import { ConfigError } from "../../leaves/errors.ts";
import { numberText, stringifyJson } from "../../leaves/json.ts";
import { FORMATS } from "./formats.ts";
import { MOST_DIGITS } from "./numbers.ts";

export type JsonSchema = Readonly<Record<string, unknown>> | boolean;

export type SchemaKeywords = Readonly<Record<string, unknown>>;

/** Annotations: of the standard, of OpenAPI, and OpenAI's own. They say nothing of the value's form. */
const SILENT = new Set([
  ..."$schema $id $anchor $comment $defs definitions title description default example examples deprecated".split(" "),
  ..."readOnly writeOnly contentEncoding contentMediaType contentSchema discriminator externalDocs xml strict".split(
    " ",
  ),
]);

export function isSilent(key: string): boolean {
  return SILENT.has(key) || key.startsWith("x-");
}

const NUMBERS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/** Keywords by the type that they limit. */
const KEYWORDS: Readonly<Record<string, readonly string[]>> = {
  string: ["minLength", "maxLength", "pattern", "format"],
  integer: NUMBERS,
  number: NUMBERS,
  object: [
    ..."properties required additionalProperties unevaluatedProperties patternProperties propertyNames".split(" "),
    ..."minProperties maxProperties".split(" "),
  ],
  array: "items prefixItems additionalItems unevaluatedItems minItems maxItems uniqueItems".split(" "),
  boolean: [],
  null: [],
};

const GENERAL = ["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable"];

const KNOWN = new Set([...GENERAL, ...Object.values(KEYWORDS).flat()]);

/**
 * The types that a value may have; without `type` those that its keywords describe, because any value of another type would be
 * valid as well. Empty for any type.
 * @throws {ConfigError} for a type that does not exist, and for a keyword that no grammar keeps
 */
export function typesOf(fields: SchemaKeywords, path: string): readonly string[] {
  for (const key of Object.keys(fields))
    if (!KNOWN.has(key) && !isSilent(key))
      throw unsupportedKeyword(`${path}.${key}`, "this keyword is not supported", fields[key]);
  if (fields.type !== undefined) {
    const types = [fields.type].flat();
    for (const type of types)
      if (typeof type !== "string" || !Object.hasOwn(KEYWORDS, type))
        throw unsupportedKeyword(`${path}.type`, "there is no such type", type);
    return types as string[];
  }
  const limits = Object.keys(fields).filter((key) => key !== "format" || FORMATS.has(String(fields.format)));
  const guessed = Object.keys(KEYWORDS).filter((type) => limits.some((key) => KEYWORDS[type]!.includes(key)));
  return guessed.includes("integer") ? guessed.filter((type) => type !== "integer") : guessed;
}

/** A constant whose number JavaScript would write in another way. */
class NumberText {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/** Returns the text of `const`, or of a value in `enum`. */
function textIn(holder: object, key: string | number): string {
  const value = (holder as SchemaKeywords)[key];
  return value instanceof NumberText ? value.text : (numberText(holder, key) ?? stringifyJson(value));
}

/**
 * The schema as it is read first, with the text of its constant, which copies of it would lose.
 * @throws {ConfigError} for a limit that a number does not hold, unless no number that is written comes near it
 */
export function withTexts(schema: SchemaKeywords, path: string): SchemaKeywords {
  for (const key of NUMBERS) {
    const text = numberText(schema, key);
    const isNear = Math.abs(Number(schema[key])) < 10 ** MOST_DIGITS;
    if (text !== undefined && isNear && numberKey(text) !== numberKey(String(schema[key])))
      throw unsupportedKeyword(`${path}.${key}`, "it has more digits than a number keeps", new NumberText(text));
  }
  const text = numberText(schema, "const");
  return text === undefined ? schema : { ...schema, const: new NumberText(text) };
}

/** Equal for equal numbers: `1.0`, `1` and `10e-1`. */
function numberKey(text: string): string {
  const [, sign = "", whole = "", decimals = "", exponent = "0"] = NUMBER.exec(text) ?? [];
  const digits = (whole + decimals).replace(/^0+/, "");
  const short = digits.replace(/0+$/, "");
  if (short === "") return "0";
  return `${sign}${short}e${BigInt(exponent) - BigInt(decimals.length) + BigInt(digits.length - short.length)}`;
}

const NUMBER = /^(-?)(\d+)(?:\.(\d+))?(?:e\+?(-?\d+))?$/i;

/** Equal for values whose numbers are equal, however they are written. */
export function valueKey(text: string): string {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?\d[-+.\deE]*/g, (each) => (each[0] === '"' ? each : numberKey(each)));
}

/** Whether a value has a type of JSON schema. */
export function isOfType(tested: unknown, type: string): boolean {
  const value = tested instanceof NumberText ? Number(tested.text) : tested;
  if (type === "integer") return Number.isInteger(value);
  if (type === "null" || value === null) return type === "null" && value === null;
  return type === (Array.isArray(value) ? "array" : typeof value);
}

/** The values that `const` and `enum` leave, as JSON; undefined where neither is given. */
export function valuesOf(fields: SchemaKeywords): ReadonlySet<string> | undefined {
  const listed = fields.enum;
  const values = Array.isArray(listed) ? listed.map((_, i) => textIn(listed, i)) : undefined;
  if (!("const" in fields)) return values && new Set(values);
  const fixed = textIn(fields, "const");
  return new Set(values === undefined || values.some((value) => isSameValue(value, fixed)) ? [fixed] : []);
}

export function isSameValue(value: string, other: string): boolean {
  return valueKey(value) === valueKey(other);
}

/** `false`, and what zod writes for `z.never()`. */
export function isNever(schema: unknown): boolean {
  if (schema === false) return true;
  const not = typeof schema === "object" && schema !== null ? (schema as SchemaKeywords).not : undefined;
  return not === true || (typeof not === "object" && not !== null && Object.keys(not).length === 0);
}

/** OpenAPI's flag as a type, which keeps null to the other keywords. Without a type the flag stands: the value, or null. */
export function withNull({ nullable, ...fields }: SchemaKeywords): SchemaKeywords {
  if (nullable !== true) return fields;
  return fields.type === undefined
    ? { ...fields, nullable }
    : { ...fields, type: [...new Set([fields.type, "null"].flat())] };
}

export function isReference(part: unknown): part is SchemaKeywords {
  if (typeof part !== "object" || part === null) return false;
  return "$ref" in part && Object.keys(part).every((key) => key === "$ref" || isSilent(key));
}

/** The values of a pair of keywords such as `minItems` and `maxItems`. @throws {ConfigError} unless they are whole numbers */
export function limitsOf(fields: SchemaKeywords, path: string): { least?: number; most?: number } {
  const [least, most] = Object.entries(fields).map(([key, value]) => {
    if (value === undefined || (Number.isInteger(value) && (value as number) >= 0)) return value as number | undefined;
    throw unsupportedKeyword(`${path}.${key}`, "it must be a whole number", value);
  });
  if (least !== undefined && most !== undefined && least > most)
    throw unsupportedKeyword(path, "no length lies within its limits", most);
  return { ...(least !== undefined && { least }), ...(most !== undefined && { most }) };
}

export function keywordList(value: unknown, path: string): readonly unknown[] {
  if (Array.isArray(value)) return value;
  throw unsupportedKeyword(path, "it must be a list", value);
}

export function fieldsOf(value: unknown, path: string): SchemaKeywords {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as SchemaKeywords;
  throw unsupportedKeyword(path, "it must be an object", value);
}

/** Returns the schema that a JSON pointer such as `#/$defs/item` leads to. */
export function pointed(root: unknown, ref: string): unknown {
  const keys = ref.slice(1).split("/").slice(1);
  return keys.reduce((at: unknown, key) => {
    const name = unescaped(key);
    return typeof at === "object" && at !== null && Object.hasOwn(at, name) ? (at as SchemaKeywords)[name] : undefined;
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

export function unsupportedKeyword(path: string, rule: string, value: unknown): ConfigError {
  const shown = (value instanceof NumberText ? value.text : (stringifyJson(value) ?? "undefined")).slice(0, 80);
  return new ConfigError(`Cannot constrain the reply by its schema: ${rule} (${shown}).`, { path });
}
