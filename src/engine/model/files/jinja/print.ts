/** Values as text: Python's `str`, `repr` and `json.dumps`. */
import { floatText, intText } from "./numbers.ts";
import {
  AttributeObject,
  compare,
  isDict,
  isJinjaList,
  type JinjaValue,
  Lazy,
  Markup,
  PythonFloat,
  sequenceIn,
  Tuple,
  textIn,
  typeName,
  Undefined,
  View,
  type WorkCounter,
} from "./value.ts";

/** Text in parts, of a bounded length. */
export class TextWriter {
  private readonly parts: string[] = [];
  private readonly work: WorkCounter;
  private written = 0;

  constructor(work: WorkCounter) {
    this.work = work;
  }

  get length(): number {
    return this.written;
  }

  /** @throws above the limit of the template's work. */
  write(text: string): void {
    this.written += text.length;
    this.work.bound(this.written);
    this.work.spend(1 + text.length / 32);
    this.parts.push(text);
  }

  text(): string {
    return this.parts.join("");
  }
}

/** Python's `str`. */
export function pythonStr(value: JinjaValue, work: WorkCounter): string {
  return textIn(value) ?? (value instanceof Undefined ? "" : repr(value, work));
}

/** Python's `repr`. */
export function repr(value: JinjaValue, work: WorkCounter): string {
  const out = new TextWriter(work);
  writeRepr(value, out);
  return out.text();
}

function writeRepr(value: JinjaValue, out: TextWriter): void {
  if (value instanceof View && value.kind === "range") {
    const [start, stop, step] = value.bounds;
    out.write(`range(${start}, ${stop}${step === 1 ? "" : `, ${step}`})`);
    return;
  }
  const items = sequenceIn(value);
  if (items) {
    const [open, close] = brackets(value, items.length);
    writeItems(items, { out, open, close, each: (item) => writeRepr(item, out) });
    return;
  }
  const isNamespace = value instanceof AttributeObject && value.kind === "Namespace";
  const entries = isDict(value) ? value : isNamespace ? value.values : undefined;
  if (!entries) {
    out.write(scalar(value));
    return;
  }
  writeItems([...(entries as Iterable<readonly [JinjaValue, JinjaValue]>)], {
    out,
    open: isNamespace ? "<Namespace {" : "{",
    close: isNamespace ? "}>" : "}",
    each([key, item]) {
      writeRepr(key, out);
      out.write(": ");
      writeRepr(item, out);
    },
  });
}

function brackets(value: JinjaValue, length: number): readonly [string, string] {
  if (value instanceof Tuple) return ["(", length === 1 ? ",)" : ")"];
  return value instanceof View ? [`${value.kind}([`, "])"] : ["[", "]"];
}

function writeItems<T>(
  items: readonly T[],
  options: { out: TextWriter; open: string; close: string; each: (item: T) => void },
): void {
  options.out.write(options.open);
  for (const [i, item] of items.entries()) {
    if (i > 0) options.out.write(", ");
    options.each(item);
  }
  options.out.write(options.close);
}

/** @throws for what Python prints with its address in memory. */
function scalar(value: JinjaValue): string {
  if (typeof value === "string") return quoted(value);
  if (value instanceof Markup) return `Markup(${quoted(value.text)})`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value instanceof PythonFloat) return value.text ?? floatText(value.value);
  if (typeof value === "number" || typeof value === "bigint") return intText(value);
  if (value instanceof Undefined) return "Undefined";
  if (value instanceof AttributeObject && value.kind === "LoopContext")
    return `<LoopContext ${textOfInt(value, "index")}/${textOfInt(value, "length")}>`;
  const hint = value instanceof Lazy ? "; add '| list'" : "";
  throw new Error(`a ${typeName(value)} has no text${hint}`);
}

const textOfInt = (loop: AttributeObject, name: string) => intText(loop.find(name) as number);

const NAMED_ESCAPES: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\" };
/** Characters that Python's `str.isprintable` rejects, the backslash, and nothing else. */
const ESCAPED = /[\\\p{C}]|(?! )\p{Z}/gu;

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const body = text.replace(ESCAPED, (each) => {
    const code = each.codePointAt(0)!;
    const hex = code.toString(16);
    if (NAMED_ESCAPES[each]) return NAMED_ESCAPES[each];
    if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  });
  return quote + (quote === "'" ? body.replaceAll("'", "\\'") : body) + quote;
}

/** Python's `ascii` of a `repr`: what is outside ASCII as escapes. */
export function ascii(text: string): string {
  return text.replace(/[^\0-\x7f]/gu, (each) => {
    const code = each.codePointAt(0)!;
    const [letter, width] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(width as number, "0")}`;
  });
}

/** Options of {@link jsonText}, as those of `json.dumps`. */
export interface JsonOptions {
  /** Spaces per level, or a text. Null: one line. */
  readonly indent: number | string | null;
  readonly separators: readonly [item: string, key: string];
  readonly ascii: boolean;
  readonly sortKeys: boolean;
}

/** Python's `json.dumps`. @throws for values that are not JSON's. */
export function jsonText(value: JinjaValue, options: JsonOptions, work: WorkCounter): string {
  const out = new TextWriter(work);
  new JsonWriter(out, options, work).write(value, 0);
  return out.text();
}

class JsonWriter {
  private readonly out: TextWriter;
  private readonly options: JsonOptions;
  private readonly work: WorkCounter;

  constructor(out: TextWriter, options: JsonOptions, work: WorkCounter) {
    this.out = out;
    this.options = options;
    this.work = work;
  }

  write(value: JinjaValue, depth: number): void {
    const items = value instanceof Tuple ? value.items : isJinjaList(value) ? value : undefined;
    if (items) this.block(items, { depth, open: "[", close: "]", each: (item) => this.write(item, depth + 1) });
    else if (isDict(value)) this.dict([...value], depth);
    else this.out.write(jsonScalar(value, this.options));
  }

  private dict(entries: (readonly [JinjaValue, JinjaValue])[], depth: number): void {
    if (this.options.sortKeys) entries.sort(([a], [b]) => compare(a, b, this.work));
    const each = ([key, item]: readonly [JinjaValue, JinjaValue]) => {
      this.out.write(jsonScalar(jsonKey(key, this.options), this.options) + this.options.separators[1]);
      this.write(item, depth + 1);
    };
    this.block(entries, { depth, open: "{", close: "}", each });
  }

  private block<T>(
    items: readonly T[],
    options: { depth: number; open: string; close: string; each: (item: T) => void },
  ): void {
    this.out.write(options.open);
    for (const [i, item] of items.entries()) {
      if (i > 0) this.out.write(this.options.separators[0]);
      this.newLine(options.depth + 1);
      options.each(item);
    }
    if (items.length > 0) this.newLine(options.depth);
    this.out.write(options.close);
  }

  private newLine(depth: number): void {
    const { indent } = this.options;
    if (indent === null) return;
    const step = typeof indent === "number" ? " ".repeat(indent) : indent;
    this.work.bound(step.length * depth);
    this.out.write(`\n${step.repeat(depth)}`);
  }
}

/** Returns a key as Python writes it: true for True. @throws for what cannot be a key. */
function jsonKey(key: JinjaValue, options: JsonOptions): string {
  const text = textIn(key);
  if (text !== undefined) return text;
  if (key === null || typeof key !== "object" || key instanceof PythonFloat) return jsonScalar(key, options);
  throw new Error(`keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

function jsonScalar(value: JinjaValue, { ascii }: JsonOptions): string {
  if (value instanceof PythonFloat)
    return value.text ?? floatText(value.value).replace("inf", "Infinity").replace("nan", "NaN");
  if (typeof value === "number" || typeof value === "bigint") return intText(value);
  const plain = value instanceof Markup ? value.text : value;
  if (typeof plain === "function" || (plain !== null && typeof plain === "object"))
    throw new Error(`Object of type ${typeName(plain)} is not JSON serializable`);
  const text = JSON.stringify(plain);
  if (!ascii) return text;
  return text.replace(/[\x7f-\uffff]/g, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
