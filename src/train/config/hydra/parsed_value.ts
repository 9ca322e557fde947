/** A value of Hydra's override grammar as written, before it becomes a configuration value. */

/** A number that Hydra reads as a float; JavaScript cannot otherwise distinguish `3.0` from `3`. */
export class HydraFloat {
  readonly value: number;
  constructor(value: number) {
    this.value = value;
  }
}

/** A quoted text: casts read it like unquoted text, and nothing else treats it as a number. */
export class Quoted {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/** A value as written. */
export type Parsed = string | number | boolean | null | HydraFloat | Quoted | readonly Parsed[] | ParsedDict;
export type ParsedDict = ReadonlyMap<string, Parsed>;

/** Reason why a value is refused, in words that follow "it", and what to do. */
export class BadValue extends Error {
  readonly advice: string;
  constructor(rule: string, advice: string) {
    super(rule);
    this.advice = advice;
  }
}

export const QUOTE_IT = "Quote the value: key='...'";

export function refuseSweep(): never {
  throw new BadValue("is a sweep over several values", "Write [a,b] for a list, or quote it: key='...'");
}

/** A float as Python reads it: `1_0.5`, `inf`, `-nan`. */
export function readFloat(text: string): number {
  const named = /^([-+]?)(inf(?:inity)?|nan)$/i.exec(text);
  if (named === null) return Number(text.replaceAll("_", ""));
  if (named[2]!.toLowerCase() === "nan") return Number.NaN;
  return named[1] === "-" ? -Infinity : Infinity;
}

/** A float as Python prints it: `3.0`, `1e-06`, `1e+16`. */
export function pythonFloat(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const [mantissa, exponent] = value.toExponential().split("e");
  const power = Number(exponent);
  if (value !== 0 && (power < -4 || power >= 16)) {
    return `${mantissa}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  const text = Object.is(value, -0) ? "-0" : String(value);
  return text.includes(".") ? text : `${text}.0`;
}
