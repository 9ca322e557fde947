/** Reads JSON in a shape of zod's. What does not fit is said in this package's words, with its place and value. */

import { z } from "zod";
import { stringifyJson } from "./json.ts";

/** Any object, as it is: zod would copy it without what json.ts notes on it. */
export function anyObject() {
  return z.custom<Readonly<Record<string, unknown>>>(isObject, "it must be an object");
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The first value that does not fit its shape. */
export interface Misfit {
  /** Dotted; empty for the whole input. */
  readonly path: string;
  /** `it must be a whole number of at least 1`, or the words that the schema gives. */
  readonly rule: string;
  /** The value as JSON, shortened; `undefined` where it is missing. */
  readonly value: string;
}

/** The input in the shape, or what does not fit it. */
export function readAs<S extends z.ZodType>(
  shape: S,
  input: unknown,
): { readonly data: z.output<S> } | { readonly misfit: Misfit } {
  const read = shape.safeParse(input, { error: ruleOf });
  return read.success ? { data: read.data } : { misfit: misfitOf(read.error.issues[0]!, input) };
}

function misfitOf({ path, message, ...issue }: z.core.$ZodIssue, input: unknown): Misfit {
  const keys = issue.code === "unrecognized_keys" ? [...path, issue.keys[0]!] : path;
  return { path: keys.join("."), rule: message, value: shown(valueAt(input, keys)) };
}

function valueAt(input: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>((at, key) => (at as Record<PropertyKey, unknown> | undefined)?.[key], input);
}

const LONGEST_VALUE = 60;

/** Cut before it is written: the value may be as large as the request. */
function shown(value: unknown): string {
  const cut = (_: string, each: unknown) =>
    typeof each === "string" || Array.isArray(each) ? each.slice(0, LONGEST_VALUE + 1) : each;
  const text = (typeof value === "object" ? JSON.stringify(value, cut) : stringifyJson(cut("", value))) ?? "undefined";
  return text.length > LONGEST_VALUE ? `${text.slice(0, LONGEST_VALUE)}...` : text;
}

const KINDS: Readonly<Record<string, string>> = {
  array: "a list",
  boolean: "true or false",
  int: "a whole number",
  number: "a number",
  object: "an object",
  record: "an object",
  string: "a text",
};

function ruleOf(issue: z.core.$ZodRawIssue): string {
  if (issue.code === "unrecognized_keys") return "there is no such parameter";
  if (issue.code === "invalid_type") return `it must be ${KINDS[issue.expected] ?? issue.expected}`;
  if (issue.code === "invalid_value") return `it must be ${issue.values.map(shown).join(" or ")}`;
  if (issue.code === "too_small") return bound(issue.inclusive ? "at least" : "above", issue.minimum, issue.origin);
  if (issue.code === "too_big") return bound(issue.inclusive ? "at most" : "below", issue.maximum, issue.origin);
  return "it has none of the known forms";
}

function bound(relation: string, limit: number | bigint, origin: string): string {
  if (origin === "string") return `it must have ${relation} ${limit} characters`;
  if (origin === "array") return `it must have ${relation} ${limit} entries`;
  return `it must be ${relation} ${limit}`;
}
