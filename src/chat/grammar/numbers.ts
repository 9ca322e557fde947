/** Numbers within limits, digit by digit: a digit is allowed while some number within the limits begins with it. */
import { byteRanges, choiceRule, GrammarRule, literal, type SymbolSequence } from "./rules.ts";

export interface NumberLimits {
  readonly isInteger: boolean;
  /** Inclusive. */
  readonly least: number;
  readonly most: number;
  readonly excludesLeast: boolean;
  readonly excludesMost: boolean;
}

/** Digits before the point, of which a double keeps every one. */
export const MOST_DIGITS = 15;
/** Numbers that can be written lie 1e-12 apart. */
const MOST_DECIMALS = 12;

/** Decimal numbers within the limits, without exponents. Without alternatives where there are none. */
export function numberWithin(limits: NumberLimits): GrammarRule {
  return hasNumber(limits) ? new GrammarRule(() => continuations("", limits)) : choiceRule();
}

/** Whether one of the numbers that can be written lies within limits that are close to each other. */
function hasNumber(limits: NumberLimits): boolean {
  const { isInteger, least, most } = limits;
  const apart = 10 ** -MOST_DECIMALS;
  if (isInteger || !(most - least < 4 * apart)) return true;
  return [-2, -1, 0, 1, 2].some((steps) => isWithin((least + steps * apart).toFixed(MOST_DECIMALS), limits));
}

/** The texts that may follow `prefix`. */
function continuations(prefix: string, limits: NumberLimits): SymbolSequence[] {
  const parts = PREFIX.exec(prefix)!;
  const [, , whole = "", point, decimals = ""] = parts;
  if (isFree(parts, limits)) {
    if (point) return [[freeDecimals(MOST_DECIMALS - decimals.length, decimals === "")]];
    return [[freeDigits(whole === "0" ? 0 : MOST_DIGITS - whole.length, limits.isInteger)]];
  }
  const next = [..."-.0123456789"].filter((character) => mayBegin(prefix + character, limits));
  const sequences = next.map((character): SymbolSequence => {
    const longer = prefix + character;
    return [...literal(character), new GrammarRule(() => continuations(longer, limits))];
  });
  return isWithin(prefix, limits) ? [[], ...sequences] : sequences;
}

const DIGIT = byteRanges([0x30, 0x39]);

/** Continuations that no limit touches are the same for all prefixes, so that numbers share their rules. */
const shared = new Map<string, GrammarRule>();

function sharing(key: string, make: () => readonly SymbolSequence[]): GrammarRule {
  const rule = shared.get(key) ?? new GrammarRule(make);
  shared.set(key, rule);
  return rule;
}

/** After a digit of the whole part. */
function freeDigits(left: number, isInteger: boolean): GrammarRule {
  return sharing(`${isInteger} ${left}`, () => [
    [],
    ...(left > 0 ? [[DIGIT, freeDigits(left - 1, isInteger)]] : []),
    ...(isInteger ? [] : [[...literal("."), freeDecimals(MOST_DECIMALS, true)]]),
  ]);
}

/** After the point: a number does not end in it. */
function freeDecimals(left: number, isFirst: boolean): GrammarRule {
  return sharing(`.${isFirst} ${left}`, () => [
    ...(isFirst ? [] : [[]]),
    ...(left > 0 ? [[DIGIT, freeDecimals(left - 1, false)]] : []),
  ]);
}

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?$/;
const PREFIX = /^(-?)(0|[1-9]\d*)?(?:(\.)(\d*))?$/;

function isWithin(text: string, limits: NumberLimits): boolean {
  return NUMBER.test(text) && keeps(Number(text), limits);
}

function keeps(value: number, { least, most, excludesLeast, excludesMost }: NumberLimits): boolean {
  return (excludesLeast ? value > least : value >= least) && (excludesMost ? value < most : value <= most);
}

/** Whether every number that begins with this text is within the limits. */
function isFree(parts: RegExpExecArray, limits: NumberLimits): boolean {
  if (parts[2] === undefined) return false;
  return valuesOf(parts, limits).every(([from, to]) => keeps(from, limits) && keeps(to, limits));
}

/** Whether a number within the limits begins with this text. */
function mayBegin(prefix: string, limits: NumberLimits): boolean {
  const parts = PREFIX.exec(prefix);
  if (!parts) return false;
  const [, , whole = "", point, decimals = ""] = parts;
  if (point && (limits.isInteger || whole === "")) return false;
  if (whole.length > MOST_DIGITS || decimals.length > MOST_DECIMALS) return false;
  return isWithin(prefix, limits) || valuesOf(parts, limits).some(([from, to]) => overlaps(from, to, limits));
}

/** The values, least and most, of the numbers that begin with these parts of a text. */
function valuesOf(parts: RegExpExecArray, limits: NumberLimits): [number, number][] {
  const [, sign, whole = "", point, decimals = ""] = parts;
  const ranges = spans({ whole, decimals, hasPoint: point !== undefined, limits });
  return sign ? ranges.map(([low, high]) => [-high, -low]) : ranges;
}

/** The values, first and last, of the numbers that begin with these digits. */
function spans(number: {
  whole: string;
  decimals: string;
  hasPoint: boolean;
  limits: NumberLimits;
}): [number, number][] {
  const { whole, decimals, hasPoint, limits } = number;
  if (whole === "") return [[0, 10 ** MOST_DIGITS - 1]];
  const nines = (count: number) => "9".repeat(count);
  if (hasPoint)
    return [
      [Number(`${whole}.${decimals || "0"}`), Number(`${whole}.${decimals}${nines(MOST_DECIMALS - decimals.length)}`)],
    ];
  const fraction = limits.isInteger ? "" : `.${nines(MOST_DECIMALS)}`;
  // A number does not go on after a zero.
  const longest = whole === "0" ? 0 : MOST_DIGITS - whole.length;
  return Array.from({ length: longest + 1 }, (_, more) => [
    Number(whole + "0".repeat(more)),
    Number(whole + nines(more) + fraction),
  ]);
}

function overlaps(
  from: number,
  to: number,
  { least, most, excludesLeast, excludesMost, isInteger }: NumberLimits,
): boolean {
  const low = isInteger ? Math.floor(least) + (excludesLeast || !Number.isInteger(least) ? 1 : 0) : least;
  const high = isInteger ? Math.ceil(most) - (excludesMost || !Number.isInteger(most) ? 1 : 0) : most;
  if (isInteger) return Math.max(from, low) <= Math.min(to, high);
  return (excludesLeast ? to > low : to >= low) && (excludesMost ? from < high : from <= high);
}
