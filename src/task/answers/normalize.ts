/**
 * One form for the ways to write an answer in LaTeX.
 * @see Hendrycks et al. 2021, `is_equiv` of https://github.com/hendrycks/math; Lewkowycz et al. 2022 (Minerva), appendix D
 */

type Rule = readonly [pattern: RegExp, replacement: string];

const UNITS = [
  ...[
    "degrees?",
    "deg",
    "cm",
    "mm",
    "km",
    "m",
    "meters?",
    "inch(?:es)?",
    "in",
    "feet",
    "foot",
    "ft",
    "yards?",
    "miles?",
    "mph",
  ],
  ...[
    "seconds?",
    "minutes?",
    "hours?",
    "hrs?",
    "days?",
    "weeks?",
    "months?",
    "years?",
    "dollars?",
    "cents?",
    "units?",
    "square",
  ],
  ...[
    "kg",
    "grams?",
    "g",
    "pounds?",
    "lbs?",
    "ounces?",
    "liters?",
    "points?",
    "people",
    "students",
    "ways",
    "sq",
    "cubic",
  ],
].join("|");

/** In this order. */
const RULES: readonly Rule[] = [
  [/\\(?:text|mbox|textbf|mathrm|textrm|operatorname|rm)\s*\{\s*(?:,\s*)?(and|or)\s*\}/g, ","],
  [/\\!|\\,|\\;|\\:|\\ |~|\\quad|\\qquad|\\displaystyle/g, " "],
  [/\\left|\\right|\\big|\\Big|\\bigl|\\bigr/g, ""],
  [/\\[dtc]frac/g, "\\frac"],
  [/\\lbrace|\\\{/g, "\\{"],
  [/\\rbrace|\\\}/g, "\\}"],
  [/\\(?:leq|le)(?![a-z])/g, "<="],
  [/\\(?:geq|ge)(?![a-z])/g, ">="],
  [/\\(?:cdot|times)(?![a-z])/g, "*"],
  [/−|–/g, "-"],
  [/π/g, "\\pi"],
  [/∞/g, "\\infty"],
  [/√/g, "\\sqrt"],
  [/\^\s*\{?\s*\\circ\s*\}?|°|\\degree/g, ""],
  [/\\?\$/g, ""],
  [/\\?%|\\percent|(?<=\d)\s*percent\b/g, ""],
  // Units in a text after a number; a text that is the whole answer stays.
  [/(?<=[\d)}\]]\s*)\\(?:text|mbox|mathrm|textrm|rm)\s*\{[^{}]*\}(?:\^\{?\d\}?)?/g, ""],
  [/\\(?:text|mbox|textbf|mathrm|textrm|mathbf|operatorname)\s*\{([^{}]*)\}/g, "$1"],
  // {,} separates thousands in LaTeX.
  [/(?<=\d)\{,\}(?=\d)/g, ","],
  [/(?<![\d,])(\d{1,3}(?:,\d{3})+)(?![\d,])/g, "T$1T"],
  [new RegExp(`(?<=\\d)\\s*(?:(?:${UNITS})\\b\\s*)+(?:\\^\\{?\\d\\}?)?\\.?$`, "gi"), ""],
  [/\.\s*$/g, ""],
  // x = 5, f(x) = 5 and x \in [0, 1]: what is on the right.
  [/^\s*[a-zA-Z](?:_\{?\w+\}?)?(?:\([a-z]\))?\s*(?:=|\\in(?![a-z]))\s*/g, ""],
  [/\\frac\s*(\d)\s*(\d)/g, "\\frac{$1}{$2}"],
  [/\\frac\s*(\d)\s*\{/g, "\\frac{$1}{"],
  [/\\frac\s*(\{[^{}]*\})\s*(\w)/g, "\\frac$1{$2}"],
  [/\\sqrt\s*(\w)/g, "\\sqrt{$1}"],
  [/(?<![\d.T])\.(?=\d)/g, "0."],
  [/(?<=\d)\.0+(?!\d)/g, ""],
  // A space ends the name of a command.
  [/(?<!\\[a-zA-Z]+)\s+|\s+(?![a-zA-Z])/g, ""],
];

/** The answer in one form: two answers with the same form are equal, and equal answers may have two forms. */
export function normalizeAnswer(answer: string): string {
  const settled = RULES.reduce((text, [pattern, replacement]) => text.replace(pattern, replacement), answer);
  return withoutBraces(settled.replace(/T([\d,]+)T/g, (_, digits: string) => digits.replaceAll(",", "")));
}

/** `{5}` is 5, and the choice `(C)` is C. */
function withoutBraces(text: string): string {
  return /^\{[^{}]*\}$|^\([A-Z]\)$/.test(text) ? text.slice(1, -1) : text;
}
