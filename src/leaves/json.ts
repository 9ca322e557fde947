/**
 * JSON without a loss. Parsed values are ordinary ones; what JavaScript would write in another way than their source did (`1.0`,
 * `1e3`, integers above 2^53, the place of a key such as `"10"`) is noted beside the object or list that holds it. A copy,
 * `{...copy}`, has no note: {@link mergedJson} keeps it. A value that was replaced since is not written by the note.
 */

/** Spellings of an object's or a list's values in its source text. */
interface Source {
  /** Keys in the order of the source, where JavaScript has another one. */
  keys?: readonly string[];
  /** Texts of numbers, by key or index. */
  numbers?: Map<string, string>;
}

const sources = new WeakMap<object, Source>();

type Container = Record<string, unknown>;

const QUOTE = 0x22;
const MINUS = 0x2d;
const COLON = 0x3a;
const COMMA = 0x2c;
const CLOSE_LIST = 0x5d;
const CLOSE_OBJECT = 0x7d;

/** The type of `{...first, ...second}`. */
type Merged<T extends readonly object[]> = T extends readonly [infer A, ...infer B extends readonly object[]]
  ? A & Merged<B>
  : unknown;

/**
 * Parses like `JSON.parse`, and keeps what {@link stringifyJson} needs to write the same again. @throws {SyntaxError}
 * for text that is not JSON
 */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (typeof value === "object" && value !== null && mayChange(text)) note(text, value as Container);
  return value;
}

/**
 * An object with one value that is read from JSON: a number keeps its text there. `mergedJson({name}, jsonField("arguments", "1e3"))`
 * @throws {SyntaxError} for text that is not JSON
 */
export function jsonField<const K extends string>(key: K, text: string): { readonly [k in K]: unknown } {
  JSON.parse(text);
  return parseJson(`{${JSON.stringify(key)}:${text}}`) as { readonly [k in K]: unknown };
}

/**
 * Writes like `JSON.stringify`, with numbers and the order of keys as their source has them, and integers of any size.
 * @param indent spaces a level; 0: one line
 * @throws {TypeError} for a value that contains itself
 */
export function stringifyJson(value: unknown, indent = 0): string {
  try {
    return written(value, { step: " ".repeat(indent), depth: 0 })!;
  } catch (error) {
    // A value that contains itself has no end: JSON.stringify names the place.
    if (error instanceof RangeError)
      JSON.stringify(value, (_, each) => (typeof each === "bigint" ? String(each) : each));
    throw error;
  }
}

/** A response of JSON, as `Response.json`, without a loss. */
export function jsonResponse(value: unknown, init: ResponseInit = {}): Response {
  const headers = new Headers(init.headers);
  if (!headers.has("content-type")) headers.set("content-type", "application/json");
  return new Response(stringifyJson(value), { ...init, headers });
}

/** Merges like `{...first, ...second}`, with numbers and keys as their sources have them. */
export function mergedJson<T extends readonly object[]>(...parts: T): Merged<T>;
export function mergedJson(...parts: readonly object[]): Record<string, unknown> {
  const merged: Container = {};
  const keys = parts.flatMap((part) => copy(part, { into: merged, keys: jsonKeys(part) }));
  noteKeys({ value: merged, keys });
  return merged;
}

/** These entries of an object, absent ones as undefined. */
export function pickedJson(object: object, keys: readonly string[]): Record<string, unknown> {
  const picked: Container = {};
  noteKeys({ value: picked, keys: copy(object, { into: picked, keys }) });
  return picked;
}

function copy(from: object, { into, keys }: { into: Container; keys: readonly string[] }): readonly string[] {
  for (const key of keys) {
    define(into, key, (from as Container)[key]);
    sources.get(into)?.numbers?.delete(key);
    const text = numberText(from, key);
    if (text !== undefined) noteText(into, key, text);
  }
  return keys;
}

/** The entries of an object in the order of its source. */
export function jsonEntries(object: object): [string, unknown][] {
  return jsonKeys(object).map((key) => [key, (object as Container)[key]]);
}

/** The keys of an object in the order of its source. Keys that were added since come last. */
export function jsonKeys(object: object): string[] {
  const keys = sources.get(object)?.keys;
  const objectKeys = Object.keys(object);
  if (!keys) return objectKeys;
  const left = new Set(objectKeys);
  return [...keys.filter((key) => left.delete(key)), ...left];
}

/** The text of a number in an object or list, where JavaScript writes it in another way. */
export function numberText(holder: object, key: string | number): string | undefined {
  const value = (holder as Container)[key as string];
  if (typeof value === "bigint") return String(value);
  const text = typeof value === "number" ? sources.get(holder)?.numbers?.get(String(key)) : undefined;
  return text !== undefined && Object.is(Number(text), value) ? text : undefined;
}

/** The value with a bigint for every integer that a number does not hold exactly, for code that reads values alone. */
export function withBigInts<T>(value: T): T {
  if (typeof value !== "object" || value === null) return value;
  const holder = value as unknown as Container;
  for (const [key, each] of Object.entries(holder)) {
    if (typeof each === "object") withBigInts(each);
    else if (typeof each === "number" && Number.isInteger(each) && !Number.isSafeInteger(each)) {
      const text = numberText(holder, key);
      if (text !== undefined && /^-?\d+$/.test(text)) define(holder, key, BigInt(text));
    }
  }
  return value;
}

/** Whether JavaScript writes the number as its text, and Python as well. */
function isPlain(text: string): boolean {
  const value = Number(text);
  if (/^-?\d+$/.test(text)) return Number.isSafeInteger(value) && !Object.is(value, -0);
  return Math.abs(value) >= 1e-4 && String(value) === text && !text.includes("e");
}

function isDigit(code: number): boolean {
  return code >= 0x30 && code <= 0x39;
}

/** Whether valid JSON holds a number or a key that JavaScript would write elsewhere or in another way. */
function mayChange(text: string): boolean {
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) {
      const end = stringEnd(text, at);
      if (isDigit(text.charCodeAt(at + 1)) && isIndex(text.slice(at + 1, end)) && isKey(text, end)) return true;
      at = end;
    } else if (code === MINUS || isDigit(code)) {
      const end = numberEnd(text, at);
      if (!isShort(text, at, end) && !isPlain(text.slice(at, end))) return true;
      at = end - 1;
    }
  }
  return false;
}

/** Returns whether the text has fewer than 16 digits and nothing else: a quick answer for the tokens of a prompt. */
function isShort(text: string, start: number, end: number): boolean {
  if (end - start > 15 || text.charCodeAt(start) === MINUS) return false;
  for (let at = start; at < end; at++) if (!isDigit(text.charCodeAt(at))) return false;
  return true;
}

/** A key that JavaScript puts before others. */
function isIndex(key: string): boolean {
  return key.length <= 10 && /^\d+$/.test(key);
}

function isKey(text: string, end: number): boolean {
  let at = end + 1;
  while (text.charCodeAt(at) <= 0x20) at++;
  return text.charCodeAt(at) === COLON;
}

/** The place of the quote that ends the string which begins at `start`. */
function stringEnd(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); ; end = text.indexOf('"', end + 1)) {
    let backslashes = 0;
    while (text[end - 1 - backslashes] === "\\") backslashes++;
    if (backslashes % 2 === 0) return end;
  }
}

/** Returns where a number ends in valid JSON: at a comma, a bracket or white space. */
function numberEnd(text: string, start: number): number {
  let end = start + 1;
  while (end < text.length && isNumeral(text.charCodeAt(end))) end++;
  return end;
}

function isNumeral(code: number): boolean {
  return code > 0x20 && code !== COMMA && code !== CLOSE_LIST && code !== CLOSE_OBJECT;
}

/** An object or list of the text. Its value is absent where a later entry of the same key replaced it. */
interface Open {
  readonly value: Container | undefined;
  /** Keys of an object. */
  readonly keys: string[] | undefined;
  /** Index of the next value in a list. */
  index: number;
  key: string;
}

/** Walks over valid JSON beside its value. */
function note(text: string, root: Container): void {
  const stack: Open[] = [];
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    const top = stack.at(-1);
    if (code === QUOTE) {
      const end = stringEnd(text, at);
      if (top?.keys && isKey(text, end)) {
        top.key = JSON.parse(text.slice(at, end + 1)) as string;
        top.keys.push(top.key);
      }
      at = end;
    } else if (code === MINUS || isDigit(code)) {
      const end = numberEnd(text, at);
      if (top) noteNumber(top, text.slice(at, end));
      at = end - 1;
    } else if (text[at] === "{" || text[at] === "[") {
      const value = top ? childOf(top) : root;
      stack.push({ value, keys: text[at] === "{" ? [] : undefined, index: 0, key: "" });
    } else if (text[at] === "}" || text[at] === "]") {
      noteKeys(stack.pop()!);
    } else if (text[at] === "," && top) top.index++;
  }
}

function keyOf({ keys, key, index }: Open): string {
  return keys ? key : String(index);
}

function childOf(open: Open): Container | undefined {
  const key = keyOf(open);
  const child = open.value && Object.hasOwn(open.value, key) ? open.value[key] : undefined;
  return typeof child === "object" && child !== null ? (child as Container) : undefined;
}

function noteNumber(open: Open, text: string): void {
  if (!open.value) return;
  const key = keyOf(open);
  if (isPlain(text)) sources.get(open.value)?.numbers?.delete(key);
  else noteText(open.value, key, text);
}

function noteText(value: Container, key: string, text: string): void {
  const source = sourceOf(value);
  source.numbers ??= new Map();
  source.numbers.set(key, text);
}

function noteKeys({ value, keys }: { value: Container | undefined; keys: readonly string[] | undefined }): void {
  if (!value || !keys?.some(isIndex)) return;
  const order = [...new Set(keys)];
  const objectKeys = Object.keys(value);
  if (order.length === objectKeys.length && order.every((key, i) => key === objectKeys[i])) return;
  sourceOf(value).keys = order;
}

function sourceOf(value: Container): Source {
  const source = sources.get(value) ?? {};
  sources.set(value, source);
  return source;
}

/** Whether `JSON.stringify` writes the value without a loss. */
function isOrdinary(value: unknown): boolean {
  if (typeof value === "bigint") return false;
  if (typeof value !== "object" || value === null || hasOwnForm(value)) return true;
  if (sources.has(value)) return false;
  return Array.isArray(value) ? value.every(isOrdinary) : Object.values(value).every(isOrdinary);
}

/** Values that write themselves, and typed arrays. */
function hasOwnForm(value: object): boolean {
  return typeof (value as { toJSON?: unknown }).toJSON === "function" || ArrayBuffer.isView(value);
}

interface Layout {
  /** Indent of one level; empty: one line. */
  readonly step: string;
  readonly depth: number;
}

function written(value: unknown, layout: Layout): string | undefined {
  if (typeof value === "bigint") return String(value);
  if (isOrdinary(value)) return indented(JSON.stringify(value, null, layout.step), layout);
  const holder = value as Container;
  const within = { ...layout, depth: layout.depth + 1 };
  const member = (key: string | number) => numberText(holder, key) ?? written(holder[key as string], within);
  if (Array.isArray(value)) return block("[]", { ...layout, members: value.map((_, i) => member(i) ?? "null") });
  const members = jsonKeys(holder).flatMap((key) => {
    const text = member(key);
    return text === undefined ? [] : [`${JSON.stringify(key)}:${layout.step === "" ? "" : " "}${text}`];
  });
  return block("{}", { ...layout, members });
}

/** A text of several lines within others. */
function indented(text: string | undefined, { step, depth }: Layout): string | undefined {
  return step === "" ? text : text?.replaceAll("\n", `\n${step.repeat(depth)}`);
}

function block(brackets: string, { step, depth, members }: Layout & { readonly members: readonly string[] }): string {
  const [open, close] = brackets;
  if (step === "" || members.length === 0) return `${open}${members.join(",")}${close}`;
  const line = `\n${step.repeat(depth)}`;
  return `${open}${members.map((each) => `${line}${step}${each}`).join(",")}${line}${close}`;
}

/** Also for `__proto__`, which an assignment would not set. */
function define(holder: object, key: string, value: unknown): void {
  if (key !== "__proto__") (holder as Container)[key] = value;
  else Object.defineProperty(holder, key, { value, writable: true, enumerable: true, configurable: true });
}
