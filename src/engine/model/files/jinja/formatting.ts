/** Python's `format` of a value, `str.format` and `%` on texts. */
import { exponential, fixed, floatText, general, intText } from "./numbers.ts";
import { ascii, pythonStr, repr } from "./print.ts";
import {
  type Dict,
  isDict,
  isJinjaList,
  type JinjaValue,
  numberIn,
  PythonFloat,
  Tuple,
  textIn,
  typeName,
  Undefined,
  type WorkCounter,
} from "./value.ts";

interface Spec {
  readonly fill: string;
  /** Empty where none is written. */
  readonly align: string;
  readonly sign: string;
  /** `#` */
  readonly isFull: boolean;
  readonly width: number;
  /** `,` or `_` between groups of digits. */
  readonly group: string;
  readonly precision: number | undefined;
  readonly type: string;
  /** `z`: no sign of a zero. */
  readonly isUnsigned?: boolean;
}

const SPEC = /^(?:([\s\S])?([<>=^]))?([-+ ])?(z)?(#)?(0)?(\d+)?([,_])?(?:\.(\d+))?([\s\S])?$/u;

function specOf(text: string, value: JinjaValue): Spec {
  const match = SPEC.exec(text);
  if (!match) throw new Error(`Invalid format specifier '${text}' for object of type '${typeName(value)}'`);
  const [, fill, align, sign, zeroSign, full, zero, width, group, precision, type] = match;
  return {
    fill: fill ?? (zero ? "0" : " "),
    align: align ?? (zero && textIn(value) === undefined ? "=" : ""),
    sign: sign ?? "-",
    isFull: full !== undefined,
    width: Number(width ?? 0),
    group: group ?? "",
    precision: precision === undefined ? undefined : Number(precision),
    type: type ?? "",
    isUnsigned: zeroSign !== undefined,
  };
}

/** Python's `format(value, spec)`. @throws for a format that the value's type does not have. */
export function formatted(value: JinjaValue, spec: string, work: WorkCounter): string {
  if (spec === "") return pythonStr(value, work);
  const text = textIn(value);
  const isNumber = numberIn(value) !== undefined;
  if (text === undefined && !isNumber)
    throw new Error(`unsupported format string passed to ${typeName(value)}.__format__`);
  const fields = specOf(spec, value);
  work.room(fields.width);
  work.room(text?.length ?? 0);
  return text === undefined ? formattedNumber(value, fields) : formattedText(text, fields);
}

function formattedText(text: string, spec: Spec): string {
  const isNumeric = spec.align === "=" || spec.sign !== "-" || spec.isFull || spec.group !== "";
  if ((spec.type !== "" && spec.type !== "s") || isNumeric) throw new Error("a text has no such format");
  const cut = spec.precision === undefined ? text : [...text].slice(0, spec.precision).join("");
  return aligned(cut, spec, "<");
}

function aligned(text: string, spec: Pick<Spec, "fill" | "align" | "width">, side: string): string {
  const missing = Math.max(spec.width - [...text].length, 0);
  const align = spec.align === "" || spec.align === "=" ? side : spec.align;
  const left = align === "<" ? 0 : align === ">" ? missing : Math.floor(missing / 2);
  return spec.fill.repeat(left) + text + spec.fill.repeat(missing - left);
}

function formattedNumber(value: JinjaValue, spec: Spec): string {
  const number = numberIn(value)!;
  if (spec.type === "c") return aligned(character(number), spec, "<");
  if (spec.isUnsigned && !(value instanceof PythonFloat)) throw new Error("z is not allowed for an int");
  const size = typeof number === "bigint" ? (number < 0n ? -number : number) : Math.abs(number);
  const [prefix, body] = value instanceof PythonFloat ? ["", floatBody(size as number, spec)] : intBody(size, spec);
  const isZero = spec.isUnsigned && !/[1-9]/.test(body);
  const isNegative = !isZero && (number < 0 || Object.is(number, -0));
  const isWord = /[nf]$/i.test(body) && !/^[\da-f]+$/i.test(body) && !/%$/.test(body);
  const sign = isNegative ? "-" : spec.sign === "-" ? "" : spec.sign;
  const digits = spec.group === "" || isWord ? body : grouped(body, spec, sign.length + prefix.length);
  const before = sign + prefix;
  if (spec.align !== "=") return aligned(before + digits, spec, ">");
  return before + aligned(digits, { fill: spec.fill, align: ">", width: spec.width - before.length }, ">");
}

function character(number: number | bigint): string {
  if (typeof number === "bigint" || !Number.isInteger(number) || number < 0 || number > 0x10ffff)
    throw new Error("%c arg not in range(0x110000)");
  return String.fromCodePoint(number);
}

const BASES: Readonly<Record<string, readonly [base: number, prefix: string]>> = {
  b: [2, "0b"],
  o: [8, "0o"],
  x: [16, "0x"],
  X: [16, "0X"],
};

function intBody(size: number | bigint, spec: Spec): readonly [prefix: string, body: string] {
  const base = Object.hasOwn(BASES, spec.type) ? BASES[spec.type] : undefined;
  const isInt = base || ["", "d", "n"].includes(spec.type);
  if (!isInt) return ["", floatBody(typeof size === "bigint" ? size : Number(size), spec)];
  if (spec.precision !== undefined) throw new Error("Precision not allowed in integer format specifier");
  if (!base) return ["", intText(size)];
  const text = BigInt(size).toString(base[0]);
  return [spec.isFull ? base[1] : "", spec.type === "X" ? text.toUpperCase() : text];
}

function floatBody(size: number | bigint, spec: Spec): string {
  const { precision = 6, type } = spec;
  const lower = type.toLowerCase();
  const finish = (text: string) => (type !== lower ? text.toUpperCase() : text);
  switch (lower) {
    case "f":
      return finish(withPoint(fixed(size, precision), spec));
    case "e":
      return finish(withPoint(exponential(size, precision), spec));
    case "g":
      return finish(general(size, precision, { isFull: spec.isFull }));
    case "n":
      return general(size, precision, { isFull: spec.isFull });
    case "%":
      return `${withPoint(fixed(typeof size === "bigint" ? size * 100n : size * 100, precision), spec)}%`;
    case "":
      return plain(Number(size), spec);
    default:
      throw new Error(`Unknown format code '${type}' for object of type 'float'`);
  }
}

/** Formats without a type: as `repr`, or with a precision as `g` with a digit after the point at least. */
function plain(size: number, spec: Spec): string {
  if (spec.precision === undefined) return floatText(size);
  const text = general(size, spec.precision, {
    isFull: spec.isFull,
    least: Math.max(spec.precision, 1) - (spec.isFull ? 0 : 1) || 1,
  });
  return /^\d+$/.test(text) ? `${text}.0` : text;
}

const withPoint = (text: string, spec: Pick<Spec, "isFull">) =>
  spec.isFull && !text.includes(".") ? text.replace(/^\d+/, "$&.") : text;

/** Digits before the point in groups; zeros that fill the width are grouped too. */
function grouped(body: string, spec: Spec, taken: number): string {
  const size = ["b", "o", "x", "X"].includes(spec.type) ? 4 : 3;
  const head = /^[\da-fA-F]+/.exec(body)![0];
  const digits = size === 3 ? /^\d+/.exec(body)![0] : head;
  const rest = body.slice(digits.length);
  const room = spec.fill === "0" && spec.align === "=" ? spec.width - taken - rest.length : 0;
  const join = (text: string) => text.replace(new RegExp(`\\B(?=(?:[\\da-fA-F]{${size}})+$)`, "g"), spec.group);
  let filled = digits;
  while (join(filled).length < room) filled = `0${filled}`;
  return join(filled) + rest;
}

/** Attributes and items of values, which `"{0.a[b]}"` reads. */
export interface AttributeLookup {
  readonly attribute: (object: JinjaValue, name: string) => JinjaValue;
  readonly item: (object: JinjaValue, key: JinjaValue) => JinjaValue;
}

interface Given {
  readonly args: readonly JinjaValue[];
  readonly named: Dict;
  readonly work: WorkCounter;
  readonly lookup: AttributeLookup;
  /** Changes what a field gives: escapes it in a text marked as HTML. */
  readonly finish?: (text: string, value: JinjaValue) => string;
}

/** `"{} {name!r:>8}".format(...)`. @throws as Python does. */
export function formatText(text: string, args: Given): string {
  args.work.room(text.length);
  return new Formatter(args).text(text, 2);
}

class Formatter {
  private readonly given: Given;
  private auto = 0;
  constructor(args: Given) {
    this.given = args;
  }

  text(source: string, depth: number): string {
    if (depth < 0) throw new Error("Max string recursion exceeded");
    let out = "";
    for (let at = 0; at < source.length; ) {
      const letter = source[at]!;
      if (letter !== "{" && letter !== "}") {
        const end = source.slice(at).search(/[{}]/);
        out += end < 0 ? source.slice(at) : source.slice(at, at + end);
        at = end < 0 ? source.length : at + end;
      } else if (source[at + 1] === letter) {
        out += letter;
        at += 2;
      } else if (letter === "}") throw new Error("Single '}' encountered in format string");
      else {
        const end = fieldEnd(source, at);
        out += this.field(source.slice(at + 1, end), depth);
        this.given.work.bound(out.length);
        at = end + 1;
      }
    }
    return out;
  }

  private field(source: string, depth: number): string {
    const { work, finish } = this.given;
    const nameEnd = endOfName(source);
    const converts = source[nameEnd] === "!";
    const specStart = converts ? nameEnd + 2 : nameEnd;
    if (specStart > source.length || (specStart < source.length && source[specStart] !== ":"))
      throw new Error("expected ':' after conversion specifier");
    const value = converted(this.value(source.slice(0, nameEnd)), converts ? source[nameEnd + 1] : undefined, work);
    const text = formatted(value, this.text(source.slice(specStart + 1), depth - 1), work);
    work.room(text.length);
    return finish ? finish(text, value) : text;
  }

  private value(name: string): JinjaValue {
    const { args, named, lookup } = this.given;
    const first = /^[^.[]*/.exec(name)![0];
    let value = first === "" || /^\d+$/.test(first) ? args[this.index(first)] : named.get(first);
    if (value === undefined) throw new Error(`format has no argument '${first}'`);
    for (let rest = name.slice(first.length); rest !== ""; ) {
      const match = /^(?:\.([^.[]+)|\[([^\]]+)\])/.exec(rest);
      if (!match) throw new Error("Empty attribute in format string");
      const [whole, attribute, key] = match;
      if (attribute !== undefined) value = lookup.attribute(value, attribute);
      else value = lookup.item(value, /^\d+$/.test(key!) ? Number(key) : key!);
      rest = rest.slice(whole.length);
    }
    return value;
  }

  private index(name: string): number {
    const isAuto = name === "";
    if (isAuto ? this.auto < 0 : this.auto > 0)
      throw new Error("cannot switch between automatic and manual field numbering");
    if (isAuto) return this.auto++;
    this.auto = -1;
    return Number(name);
  }
}

/** `!r`, `!s` and `!a`. */
function converted(value: JinjaValue, conversion: string | undefined, work: WorkCounter): JinjaValue {
  if (conversion === undefined) return value;
  if (conversion === "s") return pythonStr(value, work);
  if (conversion === "r") return repr(value, work);
  if (conversion === "a") return ascii(repr(value, work));
  throw new Error(`Unknown conversion specifier ${conversion}`);
}

/** Returns where the name of a field ends; the key of an item, in brackets, may hold what ends a name. */
function endOfName(source: string): number {
  let isKey = false;
  for (let at = 0; at < source.length; at++) {
    const letter = source[at]!;
    if (isKey) isKey = letter !== "]";
    else if (letter === "[") isKey = true;
    else if (letter === "!" || letter === ":") return at;
  }
  return source.length;
}

/** Returns where the field that opens at `start` closes. A brace in the key of an item is no field. */
function fieldEnd(source: string, start: number): number {
  let depth = 0;
  let [isKey, isName] = [false, true];
  for (let at = start; at < source.length; at++) {
    const letter = source[at]!;
    if (isKey) isKey = letter !== "]";
    else if (letter === "[" && isName) isKey = true;
    else if (letter === "{") depth++;
    else if (letter === "}" && --depth === 0) return at;
    else if (letter === ":") isName = false;
  }
  throw new Error("expected '}' before end of string");
}

const PERCENT = /%(?:\(((?:[^()]|\([^()]*\))*)\))?([-#0 +]*)(\*|\d+)?(?:\.(\*|\d+)?)?[hlL]?([\s\S])?/g;
const HAS_POINT = /%(?:\((?:[^()]|\([^()]*\))*\))?[-#0 +]*(?:\*|\d+)?\./;

/** Python's `text % value`. `finish` changes what `%s` gives. @throws as Python does. */
export function percent(
  text: string,
  value: JinjaValue,
  options: { work: WorkCounter; finish?: (text: string, value: JinjaValue) => string },
): string {
  options.work.room(text.length);
  const args = value instanceof Tuple ? value.items : [value];
  // What has items by a key may go unread; a missing name has them, to raise an error.
  const isMapping = isDict(value) || isJinjaList(value) || typeName(value) === "range" || value instanceof Undefined;
  let at = 0;
  let isNamed = false;
  const next = (): JinjaValue => {
    if (at >= args.length || isNamed) throw new Error("not enough arguments for format string");
    return args[at++]!;
  };
  const star = (written: string | undefined): number | undefined => {
    if (written !== "*") return written === undefined ? undefined : Number(written);
    const number = next();
    if (typeof number !== "number") throw new Error("* wants int");
    return number;
  };
  let length = 0;
  const out = text.replace(
    PERCENT,
    (whole, key: string | undefined, flags: string, wide?: string, exact?: string, type?: string) => {
      if (type === undefined) throw new Error("incomplete format");
      if (key !== undefined && !isDict(value)) throw new Error("format requires a mapping");
      const width = star(wide);
      const precision = star(exact) ?? (HAS_POINT.test(whole) ? 0 : undefined);
      if (type === "%") return "%";
      isNamed ||= key !== undefined;
      const found = key === undefined ? next() : (value as Dict).get(key);
      if (found === undefined) throw new Error(`format has no argument '${key}'`);
      const result = percentField(found, {
        flags: width !== undefined && width < 0 ? `${flags}-` : flags,
        width: Math.abs(width ?? 0),
        precision,
        type,
        ...options,
      });
      length += result.length;
      options.work.room(length);
      return result;
    },
  );
  if (at < args.length && !isNamed && !isMapping)
    throw new Error("not all arguments converted during string formatting");
  return out;
}

interface Field {
  readonly flags: string;
  readonly width: number;
  readonly precision: number | undefined;
  readonly type: string;
  readonly work: WorkCounter;
  readonly finish?: (text: string, value: JinjaValue) => string;
}

function percentField(value: JinjaValue, field: Field): string {
  const { flags, width, precision, type, work } = field;
  work.room(width);
  const isLeft = flags.includes("-");
  // Its characters are counted.
  work.room(textIn(value)?.length ?? 0);
  if ("sra".includes(type)) {
    const plain = type === "s" ? pythonStr(value, work) : type === "r" ? repr(value, work) : ascii(repr(value, work));
    const text = field.finish ? field.finish(plain, value) : plain;
    const cut = precision === undefined ? text : [...text].slice(0, precision).join("");
    return aligned(cut, { fill: " ", align: isLeft ? "<" : ">", width }, ">");
  }
  if (type === "c") {
    const text = textIn(value);
    if (text !== undefined && [...text].length !== 1) throw new Error("%c requires int or char");
    const letter = text ?? character(numberIn(value) ?? -1);
    return aligned(letter, { fill: " ", align: isLeft ? "<" : ">", width }, ">");
  }
  return percentNumber(value, field);
}

function percentNumber(value: JinjaValue, { flags, width, precision, type, work }: Field): string {
  const isFloat = "eEfFgG".includes(type);
  if (!isFloat && !"diuoxX".includes(type)) throw new Error(`unsupported format character '${type}'`);
  const number = numberIn(value);
  if (number === undefined) throw new Error(`%${type} format: a number is required, not ${typeName(value)}`);
  if (!isFloat && value instanceof PythonFloat && "oxX".includes(type))
    throw new Error(`%${type} format: an integer is required, not float`);
  const isZero = flags.includes("0") && !flags.includes("-");
  const sign = flags.includes("+") ? "+" : flags.includes(" ") ? " " : "-";
  const spec: Spec = {
    fill: isZero ? "0" : " ",
    align: flags.includes("-") ? "<" : isZero ? "=" : ">",
    sign,
    isFull: flags.includes("#"),
    width,
    group: "",
    precision: isFloat ? precision : undefined,
    type: "iu".includes(type) ? "d" : type,
  };
  if (isFloat) return formattedNumber(new PythonFloat(Number(number)), spec);
  if (typeof number === "number" && !Number.isFinite(number)) throw new Error("cannot convert float to an integer");
  const int = typeof number === "number" ? Math.trunc(number) : number;
  const text = formattedNumber(int, { ...spec, width: precision === undefined ? width : 0 });
  if (precision === undefined) return text;
  // A precision is the least number of digits.
  work.room(precision);
  const [, head, body] = /^([-+ ]?(?:0[xXo])?)(.*)$/.exec(text) as unknown as [string, string, string];
  const digits = head + body.padStart(precision, "0");
  return isZero
    ? head + digits.slice(head.length).padStart(width - head.length, "0")
    : aligned(digits, { fill: " ", align: spec.align, width }, ">");
}
