/** Rules of JSON's texts: strings, numbers, any values. */
import {
  anyOf,
  byteRanges,
  choiceRule,
  GrammarRule,
  type GrammarSymbol,
  literal,
  optional,
  repeat,
  type SymbolSequence,
} from "./rules.ts";

/** The deepest indentation that is allowed, in spaces. */
const DEEPEST = 32;

/** After `{`, `[` and `,`, and before `}` and `]`: nothing, a space, or a new line with its indentation. Never without end. */
export const SPACE = choiceRule([], literal(" "), [anyOf("\n"), repeat(anyOf(" "), { most: DEEPEST })]);

/** After `:`. */
const COLON: SymbolSequence = [...literal(":"), optional(...literal(" "))];

const CONTINUED = byteRanges([0x80, 0xbf]);
/** The rest of a character, shared so that its places are: one byte, two or three. */
const ONE_MORE = choiceRule([CONTINUED]);
const TWO_MORE = choiceRule([CONTINUED, ONE_MORE]);
const THREE_MORE = choiceRule([CONTINUED, TWO_MORE]);

const HEX_DIGITS = "0123456789abcdefABCDEF";
const HEX = anyOf(HEX_DIGITS);
const hexBut = (characters: string) => anyOf([...HEX_DIGITS].filter((digit) => !characters.includes(digit)).join(""));

/** Characters of a string that need no escape, as UTF-8, without those from U+2000 to U+2FFF. */
const PLAIN: readonly SymbolSequence[] = [
  [byteRanges([0x20, 0x21], [0x23, 0x5b], [0x5d, 0x7f])],
  [byteRanges([0xc2, 0xdf]), ONE_MORE],
  [byteRanges([0xe0, 0xe0]), byteRanges([0xa0, 0xbf]), ONE_MORE],
  [byteRanges([0xe1, 0xe1], [0xe3, 0xec], [0xee, 0xef]), TWO_MORE],
  [byteRanges([0xed, 0xed]), byteRanges([0x80, 0x9f]), ONE_MORE],
  [byteRanges([0xf0, 0xf0]), byteRanges([0x90, 0xbf]), TWO_MORE],
  [byteRanges([0xf1, 0xf3]), THREE_MORE],
  [byteRanges([0xf4, 0xf4]), byteRanges([0x80, 0x8f]), TWO_MORE],
];

const WRITTEN: readonly SymbolSequence[] = [
  ...PLAIN,
  [byteRanges([0xe2, 0xe2]), TWO_MORE],
  [...literal("\\"), anyOf('"\\/bfnrt')],
];

/** One character of a string, without escapes by its code (`\u000a`): it leads to fewer states. */
export const WRITTEN_CHARACTER: GrammarRule = choiceRule(...WRITTEN);

/** One character of a string as UTF-8 or escaped; escapes of half a character (surrogates) are left out. */
export const CHARACTER: GrammarRule = choiceRule(
  ...WRITTEN,
  [...literal("\\u"), hexBut("dD"), HEX, HEX, HEX],
  [...literal("\\u"), anyOf("dD"), anyOf("01234567"), HEX, HEX],
);

/** One that ends no line, as a pattern's dot: not U+000A, U+000D, U+2028 or U+2029. */
export const IN_LINE: GrammarRule = choiceRule(
  ...PLAIN,
  [byteRanges([0xe2, 0xe2]), byteRanges([0x81, 0xbf]), ONE_MORE],
  [byteRanges([0xe2, 0xe2]), byteRanges([0x80, 0x80]), byteRanges([0x80, 0xa7], [0xaa, 0xbf])],
  [...literal("\\"), anyOf('"\\/bft')],
  [...literal("\\u"), hexBut("02dD"), HEX, HEX, HEX],
  [...literal("\\u0"), hexBut("0"), HEX, HEX],
  [...literal("\\u00"), hexBut("0"), HEX],
  [...literal("\\u000"), hexBut("aAdD")],
  [...literal("\\u2"), hexBut("0"), HEX, HEX],
  [...literal("\\u20"), hexBut("2"), HEX],
  [...literal("\\u202"), hexBut("89")],
  [...literal("\\u"), anyOf("dD"), anyOf("01234567"), HEX, HEX],
);

/** A string of this many characters. */
export function stringOf(length: { readonly least?: number; readonly most?: number } = {}): SymbolSequence {
  return [...literal('"'), repeat(CHARACTER, length), ...literal('"')];
}

const DIGIT = byteRanges([0x30, 0x39]);
const INTEGER: SymbolSequence = [
  optional(...literal("-")),
  choiceRule(literal("0"), [byteRanges([0x31, 0x39]), repeat(DIGIT, { most: 19 })]),
];
/** Digits are limited, so that a number ends and stays within a double's range. Ids of 64 bits have up to 20. */
const NUMBER: SymbolSequence = [
  ...INTEGER,
  optional(...literal("."), repeat(DIGIT, { least: 1, most: 15 })),
  optional(anyOf("eE"), optional(anyOf("+-")), DIGIT, optional(DIGIT)),
];

/** Values by type, without limits. */
export const INTEGER_VALUE = choiceRule(INTEGER);
export const NUMBER_VALUE = choiceRule(NUMBER);
export const BOOLEAN_VALUE = choiceRule(literal("true"), literal("false"));
export const NULL_VALUE = choiceRule(literal("null"));

/** Items between brackets, separated by commas. */
export function bracketed(open: string, items: GrammarRule, close: string): SymbolSequence {
  return [...literal(open), SPACE, items, SPACE, ...literal(close)];
}

/** This many items, separated by commas: `[item, item]`. */
export function arrayOf(item: GrammarSymbol, { least = 0, most = Number.POSITIVE_INFINITY } = {}): GrammarRule {
  if (most <= 0) return choiceRule(EMPTY_ARRAY);
  const further = choiceRule([...literal(","), SPACE, item]);
  const limits = { least: Math.max(0, least - 1), most: most - 1 };
  const items = bracketed("[", choiceRule([item, repeat(further, limits)]), "]");
  return least > 0 ? choiceRule(items) : choiceRule(EMPTY_ARRAY, items);
}

const EMPTY_ARRAY = literal("[]");

/** A member of an object. */
export function member(name: SymbolSequence, value: GrammarSymbol): SymbolSequence {
  return [...name, ...COLON, value];
}

/** An object of names and values of these forms, so many of them. Names may repeat. */
export function mapOf(
  value: GrammarSymbol,
  {
    name = stringOf(),
    least = 0,
    most = Number.POSITIVE_INFINITY,
  }: { name?: SymbolSequence; least?: number; most?: number } = {},
): GrammarRule {
  const single = member(name, value);
  const further = repeat(choiceRule([...literal(","), SPACE, ...single]), {
    least: Math.max(0, least - 1),
    most: most - 1,
  });
  const full = bracketed("{", choiceRule([...single, further]), "}");
  return choiceRule(...(least > 0 ? [] : [literal("{}")]), ...(most > 0 ? [full] : []));
}

export const ANY_VALUE: GrammarRule = new GrammarRule(() => [
  stringOf(),
  NUMBER,
  [BOOLEAN_VALUE],
  [NULL_VALUE],
  [ANY_ARRAY],
  [ANY_OBJECT],
]);
const ANY_ARRAY: GrammarRule = new GrammarRule(() => [[arrayOf(ANY_VALUE)]]);
export const ANY_OBJECT: GrammarRule = new GrammarRule(() => [[mapOf(ANY_VALUE)]]);
