/** Renders a table of fields as the commented YAML file that ships with the package. */

import { isTree, splitPath, type YamlValue } from "../yaml/tree.ts";
import { describeType, type Field, type FieldTable } from "./field.ts";

export interface RenderOptions {
  /** Comment at the head of the file. */
  readonly head: string;
  /** One line above a section, by path. */
  readonly sections?: Readonly<Record<string, string>>;
  /** YAML between the head and the settings. */
  readonly preamble?: string;
  /** Path under which the file's root is mounted; it is left out of the file. */
  readonly mount?: string;
}

/** Sections in table order, every setting with its meaning and type above it. */
export function renderFields(fields: FieldTable, { head, preamble, sections = {}, mount = "" }: RenderOptions): string {
  const lines = head.split("\n").map((line) => `# ${line}`.trimEnd());
  if (preamble) lines.push(preamble);
  const skip = mount === "" ? 0 : splitPath(mount).length;
  let openSections: string[] = [];
  for (const [path, field] of Object.entries(fields)) {
    if (field.optional) continue;
    const keys = splitPath(path);
    const parents = keys.slice(0, -1);
    let shared = 0;
    while (shared < parents.length && parents[shared] === openSections[shared]) shared++;
    for (let depth = shared; depth < parents.length; depth++) {
      if (depth < skip) continue;
      const indent = "  ".repeat(depth - skip);
      if (depth === skip) lines.push("");
      const note = sections[parents.slice(0, depth + 1).join(".")];
      if (note) lines.push(`${indent}# ${note}`);
      lines.push(`${indent}${parents[depth]}:`);
    }
    if (parents.length === skip && openSections.length !== skip) lines.push("");
    openSections = parents;
    const indent = "  ".repeat(keys.length - 1 - skip);
    if (field.describe !== "") lines.push(...wrap(commentOf(path, field), `${indent}# `));
    if (!path.endsWith(".*")) lines.push(`${indent}${keys[keys.length - 1]}: ${defaultText(field)}`);
  }
  return `${lines.join("\n")}\n`;
}

const WIDEST_LINE = 110;

function wrap(text: string, prefix: string): string[] {
  const lines = [prefix];
  for (const word of text.split(" ")) {
    const line = lines[lines.length - 1]!;
    if (line !== prefix && line.length + word.length + 1 > WIDEST_LINE) lines.push(prefix + word);
    else lines[lines.length - 1] += line === prefix ? word : ` ${word}`;
  }
  return lines;
}

function defaultText({ type, default: value }: Field): string {
  const isWhole = type === "float" && Number.isInteger(value) && Math.abs(value as number) < 1e6;
  return isWhole ? `${value}.0` : inline(value);
}

function commentOf(path: string, field: Field): string {
  const meaning = field.describe.charAt(0).toUpperCase() + field.describe.slice(1);
  if (path.endsWith(".*")) return `${meaning}.`;
  const note = field.note ? ` ${field.note}` : "";
  return `${meaning} (${describeType(field)}).${note}`;
}

/** A value on one line, in YAML that every YAML 1.1 and 1.2 reader reads the same way. */
export function inline(value: YamlValue): string {
  return write(value, false);
}

function write(value: YamlValue, inFlow: boolean): string {
  if (Array.isArray(value)) return `[${value.map((item) => write(item, true)).join(", ")}]`;
  if (isTree(value)) {
    const items = Object.entries(value).map(([key, item]) => `${inlineText(key, true)}: ${write(item, true)}`);
    return `{${items.join(", ")}}`;
  }
  if (typeof value === "number") return inlineNumber(value);
  return typeof value === "string" ? inlineText(value, inFlow) : String(value);
}

/** Exponents get a decimal point: PyYAML reads `1e-6` as text, and `1.0e-06` as a number. */
export function inlineNumber(value: number): string {
  if (Number.isNaN(value)) return ".nan";
  if (!Number.isFinite(value)) return value > 0 ? ".inf" : "-.inf";
  const isSmall = value !== 0 && Math.abs(value) < 1e-3;
  const text = Object.is(value, -0) ? "-0.0" : isSmall ? value.toExponential() : String(value);
  if (!text.includes("e")) return text;
  const [mantissa, exponent] = text.split("e");
  const sign = exponent!.startsWith("-") ? "-" : "+";
  const digits = exponent!.replace(/^[-+]/, "").padStart(2, "0");
  return `${mantissa!.includes(".") ? mantissa : `${mantissa}.0`}e${sign}${digits}`;
}

const PLAIN_TEXT = /^[A-Za-z_./~$][-\w ./~$@+=%^]*$/;
const READS_AS_OTHER = /^(true|false|null|yes|no|on|off|y|n|~|\.nan|[-+]?\.inf|\.[\d_]*(e[-+]?\d+)?)$/i;

const UNPRINTED = /[\u007f-\u009f\u2028\u2029\ufeff\ufffe\uffff]/g;

/** A text, quoted when a reader could take it for something else. */
export function inlineText(text: string, inFlow = false): string {
  const isPlain = PLAIN_TEXT.test(text) && !READS_AS_OTHER.test(text) && !/ $/.test(text);
  const interpolation = !inFlow && /^[\w./~-]*(\$\{[\w.:/~-]+\}[\w./~-]*)+$/.test(text);
  return isPlain || interpolation ? text : quoted(text);
}

/** JSON's quotes, with everything escaped that YAML 1.1 takes for a line break or does not print. */
function quoted(text: string): string {
  return JSON.stringify(text).replace(UNPRINTED, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
