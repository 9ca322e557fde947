/** Multiples of a number, digit by digit: a state is the remainder of the digits so far. */
import { choiceRule, GrammarRule, literal, optional, type SymbolSequence } from "./rules.ts";

/** So that limits beside it lead to few states. */
const MOST_REMAINDERS = 100;
const MOST_DECIMALS = 12;

/**
 * Decimal numbers, without exponents, that are multiples of a number.
 * @returns undefined for a number that is not `p * 10 ** k`, p below 100 and k from -12 to 12
 */
export function multiplesOf(step: number): GrammarRule | undefined {
  const [mantissa = "", exponent = "0"] = String(step).split("e");
  const [whole = "", fraction = ""] = mantissa.split(".");
  const digits = (whole + fraction).replace(/0+$/, "");
  const zeros = whole.length + fraction.length - digits.length + Number(exponent) - fraction.length;
  const isFit = step > 0 && Math.abs(zeros) <= MOST_DECIMALS && Number(digits) < MOST_REMAINDERS;
  return isFit ? new Multiples(Number(digits), zeros).rule() : undefined;
}

class Multiples {
  private readonly step: number;
  /** Digits after the point. */
  private readonly decimals: number;
  /** Zeros at the end of whole numbers. */
  private readonly zeros: SymbolSequence;
  private readonly rules = new Map<string, GrammarRule>();

  /** Multiples of `step * 10 ** zeros`. */
  constructor(step: number, zeros: number) {
    this.step = step;
    this.decimals = Math.max(0, -zeros);
    this.zeros = literal("0".repeat(Math.max(0, zeros)));
  }

  rule(): GrammarRule {
    const others = Array.from(
      { length: 9 },
      (_, i): SymbolSequence => [...literal(String(i + 1)), this.after(i + 1, -1), ...this.zeros],
    );
    const fraction = this.decimals > 0 ? [optional(...literal("."), this.digit(0, 0))] : [];
    return choiceRule([optional(...literal("-")), choiceRule([...literal("0"), ...fraction], ...others)]);
  }

  /** @param places digits after the point so far; -1 before it */
  private after(value: number, places: number): GrammarRule {
    const remainder = value % this.step;
    const key = `${remainder} ${places}`;
    const rule = this.rules.get(key) ?? new GrammarRule(() => this.alternatives(remainder, places));
    this.rules.set(key, rule);
    return rule;
  }

  private alternatives(remainder: number, places: number): SymbolSequence[] {
    const missing = this.decimals - Math.max(0, places);
    const isMultiple = (remainder * (10 ** missing % this.step)) % this.step === 0;
    const mayPoint = places < 0 && this.decimals > 0;
    return [
      ...(isMultiple ? [[]] : []),
      ...(mayPoint ? [[...literal("."), this.digit(remainder, 0)]] : []),
      ...(places < this.decimals ? [[this.digit(remainder, places)]] : []),
    ];
  }

  /** One digit, and what follows it. */
  private digit(remainder: number, places: number): GrammarRule {
    const next = places < 0 ? -1 : places + 1;
    return choiceRule(
      ...Array.from(
        { length: 10 },
        (_, digit): SymbolSequence => [...literal(String(digit)), this.after(remainder * 10 + digit, next)],
      ),
    );
  }
}
