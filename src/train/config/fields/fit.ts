/** Whether a value fits the row of its setting. */

import { nearest } from "../../../leaves/nearest.ts";
import { maskText } from "../mask.ts";
import { hasInterpolation, isTree, MANDATORY, type YamlValue } from "../yaml/tree.ts";
import { describeType, type Field, type FieldType } from "./field.ts";

/** Names that plug-ins registered, by setting. */
export type Registered = Readonly<Record<string, readonly string[] | undefined>>;

export interface Fit {
  /** The value as the field wants it. */
  readonly value: YamlValue;
  readonly problem?: string;
  readonly warning?: string;
}

/**
 * Fits like `fitResolved`, for a value that may still be mandatory or hold interpolations: those fit until they are
 * resolved.
 */
export function fitValue(path: string, field: Field, value: YamlValue, registered: Registered = {}): Fit {
  if (value === MANDATORY || hasInterpolation(value)) return { value };
  return fitResolved(path, field, value, registered);
}

/**
 * Fits a value to a field. A number or boolean becomes text where text is wanted, and one text a list where a list of
 * texts is; nothing else is converted.
 */
export function fitResolved(path: string, field: Field, value: YamlValue, registered: Registered = {}): Fit {
  const bad = (rule: string): Fit => ({
    value,
    problem: `Cannot set ${path}: ${rule} (${showValue(value)}).${adviceOn(field, value)}`,
  });
  if (value === null) {
    const problem = `Cannot set ${path}: it takes ${describeType(field)}, not null.`;
    return field.nullable ? { value } : { value, problem };
  }
  if (field.type === "any") return { value };
  if (field.type === "str" && (typeof value === "number" || typeof value === "boolean")) {
    return fitText(path, field, String(value), registered);
  }
  if (typeof value === "string" && isTextList(field)) return fitResolved(path, field, [value], registered);
  if (!IS_OF_TYPE[field.type](value)) return bad(typeRule(field));
  if (typeof value === "number") {
    const outside = value < (field.min ?? -Infinity) || value > (field.max ?? Infinity) || Number.isNaN(value);
    return outside ? bad(`it takes ${describeType(field)}`) : { value };
  }
  if (typeof value === "string") return fitText(path, field, value, registered);
  if (Array.isArray(value) && field.choices) {
    const allowed = [...field.choices, ...(registered[path] ?? [])];
    const wrong = value.find((item) => !allowed.includes(String(item)));
    if (wrong !== undefined) return { value, problem: refuseChoice(path, field, String(wrong), registered) };
  }
  return { value };
}

/**
 * Returns whether a field is a list of texts, of which one text is a list of one, as verl and rLLM read
 * `trainer.logger=console`.
 */
function isTextList({ type, default: usual, choices }: Field): boolean {
  if (type !== "list") return false;
  const isOfText = Array.isArray(usual) && usual.length > 0 && usual.every((item) => typeof item === "string");
  return choices !== undefined || isOfText;
}

function fitText(path: string, field: Field, value: string, registered: Registered): Fit {
  if (!field.choices || field.choices.includes(value)) return { value };
  const names = registered[path];
  if (!field.open || (names !== undefined && !names.includes(value))) {
    return { value, problem: refuseChoice(path, field, value, registered) };
  }
  if (names?.includes(value)) return { value };
  const close = nearest(value, field.choices);
  const meant = close ? ` (nearest built in: ${close})` : "";
  const warning = `${path}=${value} is not built in${meant}: it must be registered by a module given with --import.`;
  return { value, warning };
}

function refuseChoice(path: string, field: Field, value: string, registered: Registered): string {
  const allowed = [...new Set([...(field.choices ?? []), ...(registered[path] ?? [])])];
  const close = nearest(value, allowed);
  const meant = close ? ` Did you mean ${close}?` : "";
  return `Cannot set ${path}: it takes ${allowed.join(", ")}${field.nullable ? ", or null" : ""} (${JSON.stringify(value)}).${meant}`;
}

const isNumber = (value: YamlValue) => typeof value === "number";

const IS_OF_TYPE: Readonly<Record<Exclude<FieldType, "any">, (value: YamlValue) => boolean>> = {
  int: Number.isInteger,
  number: isNumber,
  float: isNumber,
  bool: (value) => typeof value === "boolean",
  str: (value) => typeof value === "string",
  list: Array.isArray,
  dict: isTree,
};

function typeRule(field: Field): string {
  if (field.type === "dict") return "it takes a mapping";
  const wanted = describeType(field);
  return field.type === "list" ? `it takes a ${wanted}, in brackets` : `it takes ${wanted}`;
}

function adviceOn({ type }: Field, value: YamlValue): string {
  if (typeof value !== "string") return "";
  if (type === "bool" && /^(yes|no|on|off|y|n)$/i.test(value)) return " YAML 1.2 reads only true and false.";
  const isNumber = value !== "" && !Number.isNaN(Number(value));
  return isNumber && ["int", "number", "float"].includes(type) ? " Remove the quotes: this is text." : "";
}

function showValue(value: YamlValue): string {
  const text = typeof value === "number" ? String(value) : maskText(JSON.stringify(value));
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
