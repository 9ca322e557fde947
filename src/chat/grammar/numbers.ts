/** Numbers within limits, digit by digit: a digit is allowed while some number within the limits begins with it. */
import { literal, Rule, type Sequence } from "./rules.ts";

export interface NumberLimits {
  readonly isInteger: boolean;
  /** Inclusive. */
  readonly least: number;
  readonly most: number;
  readonly excludesLeast: boolean;
  readonly excludesMost: boolean;
}

/** Digits before the point, of which a double keeps every one. */
const MOST_DIGITS = 15;
const MOST_DECIMALS = 12;

/** Decimal numbers within the limits, without exponents. */
export function numberWithin(limits: NumberLimits): Rule {
  return new Rule(() => continuations("", limits));
}

/** The texts that may follow `prefix`. */
function continuations(prefix: string, limits: NumberLimits): Sequence[] {
  const next = [..."-.0123456789"].filter((character) => mayBegin(prefix + character, limits));
  const sequences = next.map((character): Sequence => {
    const longer = prefix + character;
    return [...literal(character), new Rule(() => continuations(longer, limits))];
  });
  return isWithin(prefix, limits) ? [[], ...sequences] : sequences;
}

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?$/;

function isWithin(text: string, { least, most, excludesLeast, excludesMost }: NumberLimits): boolean {
  if (!NUMBER.test(text)) return false;
  const value = Number(text);
  return (excludesLeast ? value > least : value >= least) && (excludesMost ? value < most : value <= most);
}

/** Whether a number within the limits begins with this text. */
function mayBegin(prefix: string, limits: NumberLimits): boolean {
  const parts = /^(-?)(0|[1-9]\d*)?(?:(\.)(\d*))?$/.exec(prefix);
  if (!parts) return false;
  const [, sign, whole = "", point, decimals = ""] = parts;
  if (point && (limits.isInteger || whole === "")) return false;
  if (whole.length > MOST_DIGITS || decimals.length > MOST_DECIMALS) return false;
  if (isWithin(prefix, limits)) return true;
  return spans({ whole, decimals, hasPoint: point !== undefined, limits }).some(([low, high]) => {
    const [from, to] = sign ? [-high, -low] : [low, high];
    return overlaps(from, to, limits);
  });
}

/** The values, first and last, of the numbers that begin with these digits. */
function spans(it: { whole: string; decimals: string; hasPoint: boolean; limits: NumberLimits }): [number, number][] {
  const { whole, decimals, hasPoint, limits } = it;
  if (whole === "") return [[0, 10 ** MOST_DIGITS - 1]];
  if (hasPoint) {
    const free = MOST_DECIMALS - decimals.length;
    const low = Number(`${whole}.${decimals || "0"}`);
    return [[low, free > 0 ? Number(`${whole}.${decimals}${"9".repeat(free)}`) : low]];
  }
  const value = Number(whole);
  const fraction = limits.isInteger ? 0 : 1 - 10 ** -MOST_DECIMALS;
  // A number does not go on after a zero.
  const longest = whole === "0" ? 0 : MOST_DIGITS - whole.length;
  return Array.from({ length: longest + 1 }, (_, more) => [
    value * 10 ** more,
    value * 10 ** more + 10 ** more - 1 + fraction,
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
