/** Python's arithmetic, and its numbers as text. */
import { type JinjaValue, LONGEST_INT, numberIn, PythonFloat, whole } from "./value.ts";

/** The result of an operator on two numbers; undefined where one is none. @throws as Python does. */
export function arithmetic(operator: string, a: JinjaValue, b: JinjaValue): JinjaValue | undefined {
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x === undefined || y === undefined) return undefined;
  if (Number(y) === 0 && ["/", "//", "%"].includes(operator)) throw new Error("division by zero");
  if (Number(x) === 0 && y < 0 && operator === "**") throw new Error("0.0 cannot be raised to a negative power");
  const isFloat =
    a instanceof PythonFloat || b instanceof PythonFloat || operator === "/" || (operator === "**" && y < 0);
  if (isFloat) return new PythonFloat(real(operator, floatOf(x), floatOf(y)));
  if (typeof x === "number" && typeof y === "number") {
    const result = integer(operator, x, y);
    if (Number.isSafeInteger(result)) return result;
  }
  return whole(bounded(operator, BigInt(x), BigInt(y)));
}

function floatOf(value: number | bigint): number {
  const number = Number(value);
  if (typeof value === "number" || Number.isFinite(number)) return number;
  throw new Error("int too large to convert to float");
}

function real(operator: string, x: number, y: number): number {
  switch (operator) {
    case "+":
      return x + y;
    case "-":
      return x - y;
    case "*":
      return x * y;
    case "/":
      return x / y;
    case "//":
      return floored(x, y);
    case "%":
      return remainder(x, y);
    default: {
      const power = x ** y;
      if (Number.isNaN(power) && !Number.isNaN(x) && !Number.isNaN(y))
        throw new Error("the result is a complex number");
      if (!Number.isFinite(power) && Number.isFinite(x) && Number.isFinite(y))
        throw new Error("the result is too large");
      return power;
    }
  }
}

/** Returns the remainder with the sign of the divisor, as in Python. */
function remainder(x: number, y: number): number {
  const rest = x % y;
  if (rest === 0) return y < 0 ? -0 : 0;
  return rest < 0 === y < 0 ? rest : rest + y;
}

function floored(x: number, y: number): number {
  const quotient = (x - remainder(x, y)) / y;
  if (quotient === 0) return x / y < 0 || Object.is(x / y, -0) ? -0 : 0;
  const floor = Math.floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

/** May be past 2^53, where the result is not exact. */
function integer(operator: string, x: number, y: number): number {
  if (operator === "**") return x ** y;
  // Their division is exact in steps: the quotient of two numbers below 2^53 may round up to the next int.
  const rest = remainder(x, y) + 0;
  if (operator === "%") return rest;
  const result = operator === "//" ? (x - rest) / y : real(operator, x, y);
  // An int has no -0.
  return result + 0;
}

function bounded(operator: string, x: bigint, y: bigint): bigint {
  const [a, b] = [digits(x), digits(y)];
  const size = operator === "**" ? (x * x <= 1n ? 1 : a * Number(y)) : operator === "*" ? a + b : Math.max(a, b) + 1;
  if (size > 2 * LONGEST_INT) throw new Error(`the result has more than ${LONGEST_INT} digits`);
  switch (operator) {
    case "+":
      return x + y;
    case "-":
      return x - y;
    case "*":
      return x * y;
    case "**":
      return x ** y;
    default: {
      const rest = ((x % y) + y) % y;
      return operator === "%" ? rest : (x - rest) / y;
    }
  }
}

const digits = (value: bigint) => value.toString(16).length * 1.21;

/** @throws for more digits than Python prints. */
export function intText(value: number | bigint): string {
  const text = `${BigInt(value)}`;
  if (text.length > LONGEST_INT + (text.startsWith("-") ? 1 : 0))
    throw new Error(`an int of more than ${LONGEST_INT} digits cannot be printed`);
  return text;
}

/** Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16. */
export function floatText(value: number): string {
  if (!Number.isFinite(value)) return notFinite(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) return withExponent(value.toExponential());
  if (!Number.isInteger(value)) return String(value);
  return Object.is(value, -0) ? "-0.0" : `${value}.0`;
}

const notFinite = (value: number) => (Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf");

/** An exponent of two digits at least. */
function withExponent(text: string): string {
  const [number, exponent] = text.split("e");
  return `${number}e${exponent![0]}${exponent!.slice(1).padStart(2, "0")}`;
}

/** A fraction of ints. */
type Ratio = readonly [above: bigint, below: bigint];

/** The exact value of a positive number. */
function ratio(value: number | bigint): Ratio {
  if (typeof value === "bigint") return [value, 1n];
  let [above, below] = [value, 0];
  while (!Number.isInteger(above)) {
    above *= 2;
    below++;
  }
  return [BigInt(above), 1n << BigInt(below)];
}

/** The int next to a fraction times a power of ten; halves go to the even one, as in Python. */
function scaled([above, below]: Ratio, places: number): bigint {
  const [a, b] = places >= 0 ? [above * 10n ** BigInt(places), below] : [above, below * 10n ** BigInt(-places)];
  const [quotient, rest] = [a / b, (a % b) * 2n];
  return rest > b || (rest === b && quotient % 2n === 1n) ? quotient + 1n : quotient;
}

/** Digits after the point that a format may ask for. */
const MOST_PLACES = 1000;

function checked(places: number): number {
  if (places > MOST_PLACES) throw new Error(`a format has more than ${MOST_PLACES} digits (${places})`);
  return places;
}

/** The nearest decimal of a positive number with so many places, as `%.2f`. */
export function fixed(value: number | bigint, places: number): string {
  if (typeof value === "number" && !Number.isFinite(value)) return notFinite(value);
  const text = String(scaled(ratio(value), checked(places))).padStart(places + 1, "0");
  return places > 0 ? `${text.slice(0, -places)}.${text.slice(-places)}` : text;
}

/** One digit before the point and so many after, of a positive number, and the exponent. */
function significant(value: number | bigint, places: number): [digits: string, exponent: number] {
  if (Number(value) === 0) return ["0".repeat(places + 1), 0];
  const exact = ratio(value);
  let exponent = typeof value === "bigint" ? String(value).length - 1 : Number(value.toExponential().split("e")[1]);
  // The shortest digits may be those of the next power of ten.
  if (scaled(exact, 20 - exponent) < 10n ** 20n) exponent--;
  const text = String(scaled(exact, places - exponent));
  return text.length > places + 1 ? [text.slice(0, -1), exponent + 1] : [text, exponent];
}

/** Formats a positive number like `%.2e`. */
export function exponential(value: number | bigint, places: number): string {
  if (typeof value === "number" && !Number.isFinite(value)) return notFinite(value);
  const [text, exponent] = significant(value, checked(places));
  const number = places > 0 ? `${text[0]}.${text.slice(1)}` : text;
  return withExponent(`${number}e${exponent < 0 ? "-" : "+"}${Math.abs(exponent)}`);
}

/**
 * Formats a positive number like `%g`: the shorter of both, without zeros at the end unless `isFull`. `least`: the
 * exponent from which it has one.
 */
export function general(
  value: number | bigint,
  precision: number,
  options: { isFull?: boolean; least?: number } = {},
): string {
  if (typeof value === "number" && !Number.isFinite(value)) return notFinite(value);
  const places = Math.max(checked(precision), 1);
  const [text, exponent] = significant(value, places - 1);
  const isShort = exponent >= -4 && exponent < (options.least ?? places);
  const number = isShort ? fixed(value, Math.max(places - 1 - exponent, 0)) : exponentialOf(text);
  const short = options.isFull || !number.includes(".") ? number : number.replace(/\.?0+$/, "");
  return isShort ? short : withExponent(`${short}e${exponent < 0 ? "-" : "+"}${Math.abs(exponent)}`);
}

const exponentialOf = (text: string) => (text.length > 1 ? `${text[0]}.${text.slice(1)}` : text);

/** The nearest float with so many places; fewer than none are zeros before the point. */
export function rounded(value: number, places: number): number {
  if (!Number.isFinite(value) || places > 400) return value;
  const size = scaled(ratio(Math.abs(value)), Math.max(places, -400));
  return (value < 0 || Object.is(value, -0) ? -1 : 1) * Number(`${size}e${-places}`);
}

/** The same of an int. */
export function roundedInt(value: number | bigint, places: number): number | bigint {
  if (places >= 0) return value;
  const size = value < 0 ? -BigInt(value) : BigInt(value);
  const tens = 10n ** BigInt(Math.min(-places, LONGEST_INT));
  const result = scaled([size, 1n], Math.max(places, -LONGEST_INT)) * tens;
  return whole(value < 0 ? -result : result);
}

/** Reads like Python's `float(text)`; undefined where it raises a ValueError. */
export function numberInText(text: string): number | undefined {
  // No number is longer, and the pattern takes the square of the length.
  if (text.length > 1000) return undefined;
  const plain = text.trim().replace(/(?<=\d)_(?=\d)/g, "");
  const word = /^([-+]?)(inf|infinity|nan)$/i.exec(plain);
  if (word) return (word[1] === "-" ? -1 : 1) * (/^nan$/i.test(word[2]!) ? Number.NaN : Number.POSITIVE_INFINITY);
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : undefined;
}

const PREFIXES: Readonly<Record<string, number>> = { "0b": 2, "0o": 8, "0x": 16 };
/** Digits of a text in a base that JavaScript does not read. */
const LONGEST_ODD = 100;

/** Reads like Python's `int(text, base)`; undefined where it raises a ValueError. */
export function intInText(text: string, base: JinjaValue): number | bigint | undefined {
  if (typeof base !== "number" || base === 1 || base < 0 || base > 36) throw new Error("base must be between 2 and 36");
  // No number is longer, and the pattern takes the square of the length.
  if (text.length > LONGEST_INT) return undefined;
  const match = /^([-+]?)(0[box])?_?([\da-z]+(?:_[\da-z]+)*)$/i.exec(text.trim());
  if (!match) return undefined;
  const [, sign, prefix = "", body = ""] = match;
  const stated = PREFIXES[prefix.toLowerCase()];
  const isPrefixed = stated !== undefined && (base === 0 || base === stated);
  const digits = (isPrefixed ? body : prefix + body).replaceAll("_", "").toLowerCase();
  const radix = isPrefixed ? stated : base || 10;
  if ([...digits].some((digit) => Number.parseInt(digit, 36) >= radix)) return undefined;
  const size = sizeOf(digits, radix);
  return whole(sign === "-" ? -size : size);
}

function sizeOf(digits: string, radix: number): bigint {
  const prefix = Object.keys(PREFIXES).find((each) => PREFIXES[each] === radix);
  if (radix === 10 || prefix) return BigInt((prefix ?? "") + digits);
  if (digits.length > LONGEST_ODD) throw new Error(`a number in base ${radix} has more than ${LONGEST_ODD} digits`);
  return [...digits].reduce((sum, digit) => sum * BigInt(radix) + BigInt(Number.parseInt(digit, 36)), 0n);
}
