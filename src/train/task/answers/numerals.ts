/** The numbers in a text, each in one form: equal numbers are equal texts, of any size. One pass, linear in the text's length. */

/** Digits with commas, a fraction, an exponent; which commas group thousands is seen later. */
const RUN = /(?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3}(?!\w))?/g;
const THOUSANDS = /^[1-9]\d{0,2}(?:,\d{3})+$/;
/** A minus of any kind, before a currency too: `-$3`. */
const SIGN = /[-−–](?:\\?[$€£¥])?$/;

/** A number, and where it begins, its sign included. */
export interface Found {
  readonly text: string;
  readonly at: number;
}

export function firstNumeral(text: string): Found | undefined {
  for (const run of text.matchAll(RUN)) {
    const [first] = foundIn(text, run);
    if (first) return first;
  }
  return undefined;
}

export function lastNumeral(text: string): string | undefined {
  let last: RegExpExecArray | undefined;
  for (const run of text.matchAll(RUN)) if (run[0].includes(",") || !isName(text, run.index)) last = run;
  return last && foundIn(text, last).at(-1)?.text;
}

/**
 * A sign counts where it does not subtract: `12-5` holds 12 and 5. Commas group thousands or separate: `3,4` holds 3 and 4. A digit
 * of a name is no number: `H2O`.
 */
function foundIn(text: string, { 0: run, index }: RegExpExecArray): Found[] {
  const hasPoint = run.startsWith(".") && /\w/.test(text[index - 1] ?? "");
  const [first, ...others] = piecesOf(hasPoint ? run.slice(1) : run);
  const sign = signBefore(text, index);
  const found = isName(text, index) ? [] : [{ text: numeral(first!, sign !== undefined), at: sign ?? index }];
  return [...found, ...others.map((piece) => ({ text: numeral(piece, false), at: index }))];
}

function isName(text: string, index: number): boolean {
  return /[A-Za-z_]/.test(text[index - 1] ?? "");
}

/** `1,234.5` is one number, `3,4` two. */
function piecesOf(run: string): string[] {
  const whole = run.split(/[.eE]/, 1)[0]!;
  return THOUSANDS.test(whole) ? [run.replaceAll(",", "")] : run.split(",");
}

/** Returns where the sign is; undefined where there is none, and where it subtracts. */
function signBefore(text: string, index: number): number | undefined {
  const sign = SIGN.exec(text.slice(Math.max(0, index - 3), index))?.[0];
  if (sign === undefined) return undefined;
  const at = index - sign.length;
  return /[\w.)\]}]/.test(text[at - 1] ?? "") ? undefined : at;
}

/** No zeros before or after, no exponent, no sign of zero. */
function numeral(piece: string, isNegative: boolean): string {
  const [mantissa, exponent = "0"] = piece.split(/[eE]/) as [string, string?];
  const [whole = "", fraction = ""] = mantissa.split(".");
  const places = fraction.length - Number(exponent);
  const digits = (whole + fraction + "0".repeat(Math.max(0, -places))).padStart(Math.max(0, places) + 1, "0");
  const point = digits.length - Math.max(0, places);
  const before = digits.slice(0, point).replace(/^0+(?=\d)/, "");
  const after = withoutZeros(digits.slice(point));
  const value = after === "" ? before : `${before}.${after}`;
  return isNegative && value !== "0" ? `-${value}` : value;
}

/** A pattern for zeros at an end would try each run of them. */
function withoutZeros(digits: string): string {
  let end = digits.length;
  while (digits[end - 1] === "0") end--;
  return digits.slice(0, end);
}
