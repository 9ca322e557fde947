/** Rules of JSON's texts: strings, numbers, any values. */
import { anyOf, bytes, choice, type GrammarSymbol, literal, optional, Rule, repeat, type Sequence } from "./rules.ts";

/** The deepest indentation that is allowed, in spaces. */
const DEEPEST = 32;

/** After `{`, `[` and `,`, and before `}` and `]`: nothing, a space, or a new line with its indentation. Never without end. */
export const SPACE = choice([], literal(" "), [anyOf("\n"), repeat(anyOf(" "), { most: DEEPEST })]);

/** After `:`. */
const COLON: Sequence = [...literal(":"), optional(...literal(" "))];

const CONTINUED = bytes([0x80, 0xbf]);
/** The rest of a character, shared so that its places are: one byte, two or three. */
const ONE_MORE = choice([CONTINUED]);
const TWO_MORE = choice([CONTINUED, ONE_MORE]);
const THREE_MORE = choice([CONTINUED, TWO_MORE]);

const HEX_DIGITS = "0123456789abcdefABCDEF";
const HEX = anyOf(HEX_DIGITS);
const hexBut = (characters: string) => anyOf([...HEX_DIGITS].filter((it) => !characters.includes(it)).join(""));

/** Characters of a string that need no escape, as UTF-8, without those from U+2000 to U+2FFF. */
const PLAIN: readonly Sequence[] = [
  [bytes([0x20, 0x21], [0x23, 0x5b], [0x5d, 0x7f])],
  [bytes([0xc2, 0xdf]), ONE_MORE],
  [bytes([0xe0, 0xe0]), bytes([0xa0, 0xbf]), ONE_MORE],
  [bytes([0xe1, 0xe1], [0xe3, 0xec], [0xee, 0xef]), TWO_MORE],
  [bytes([0xed, 0xed]), bytes([0x80, 0x9f]), ONE_MORE],
  [bytes([0xf0, 0xf0]), bytes([0x90, 0xbf]), TWO_MORE],
  [bytes([0xf1, 0xf3]), THREE_MORE],
  [bytes([0xf4, 0xf4]), bytes([0x80, 0x8f]), TWO_MORE],
];

const WRITTEN: readonly Sequence[] = [
  ...PLAIN,
  [bytes([0xe2, 0xe2]), TWO_MORE],
  [...literal("\\"), anyOf('"\\/bfnrt')],
];

/** One character of a string, without escapes by its code (`\u000a`): it leads to fewer states. */
export const WRITTEN_CHARACTER: Rule = choice(...WRITTEN);

/** One character of a string as UTF-8 or escaped; escapes of half a character (surrogates) are left out. */
export const CHARACTER: Rule = choice(
  ...WRITTEN,
  [...literal("\\u"), hexBut("dD"), HEX, HEX, HEX],
  [...literal("\\u"), anyOf("dD"), anyOf("01234567"), HEX, HEX],
);

/** One that ends no line, as a pattern's dot: not U+000A, U+000D, U+2028 or U+2029. */
export const IN_LINE: Rule = choice(
  ...PLAIN,
  [bytes([0xe2, 0xe2]), bytes([0x81, 0xbf]), ONE_MORE],
  [bytes([0xe2, 0xe2]), bytes([0x80, 0x80]), bytes([0x80, 0xa7], [0xaa, 0xbf])],
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
export function stringOf(length: { readonly least?: number; readonly most?: number } = {}): Sequence {
  return [...literal('"'), repeat(CHARACTER, length), ...literal('"')];
}

const DIGIT = bytes([0x30, 0x39]);
const INTEGER: Sequence = [
  optional(...literal("-")),
  choice(literal("0"), [bytes([0x31, 0x39]), repeat(DIGIT, { most: 19 })]),
];
/** Digits are limited, so that a number ends and stays within a double's range. Ids of 64 bits have up to 20. */
const NUMBER: Sequence = [
  ...INTEGER,
  optional(...literal("."), repeat(DIGIT, { least: 1, most: 15 })),
  optional(anyOf("eE"), optional(anyOf("+-")), DIGIT, optional(DIGIT)),
];

/** Values by type, without limits. */
export const INTEGER_VALUE = choice(INTEGER);
export const NUMBER_VALUE = choice(NUMBER);
export const BOOLEAN_VALUE = choice(literal("true"), literal("false"));
export const NULL_VALUE = choice(literal("null"));

/** Items between brackets, separated by commas. */
export function bracketed(open: string, items: Rule, close: string): Sequence {
  return [...literal(open), SPACE, items, SPACE, ...literal(close)];
}

/** This many items, separated by commas: `[item, item]`. */
export function arrayOf(item: GrammarSymbol, { least = 0, most = Number.POSITIVE_INFINITY } = {}): Rule {
  if (most <= 0) return choice(EMPTY_ARRAY);
  const further = choice([...literal(","), SPACE, item]);
  const limits = { least: Math.max(0, least - 1), most: most - 1 };
  const items = bracketed("[", choice([item, repeat(further, limits)]), "]");
  return least > 0 ? choice(items) : choice(EMPTY_ARRAY, items);
}

const EMPTY_ARRAY = literal("[]");

/** A member of an object. */
export function member(name: Sequence, value: GrammarSymbol): Sequence {
  return [...name, ...COLON, value];
}

/** An object of names and values of these forms, so many of them. Names may repeat. */
export function mapOf(
  value: GrammarSymbol,
  {
    name = stringOf(),
    least = 0,
    most = Number.POSITIVE_INFINITY,
  }: { name?: Sequence; least?: number; most?: number } = {},
): Rule {
  const one = member(name, value);
  const further = repeat(choice([...literal(","), SPACE, ...one]), { least: Math.max(0, least - 1), most: most - 1 });
  const full = bracketed("{", choice([...one, further]), "}");
  return choice(...(least > 0 ? [] : [literal("{}")]), ...(most > 0 ? [full] : []));
}

export const ANY_VALUE: Rule = new Rule(() => [
  stringOf(),
  NUMBER,
  [BOOLEAN_VALUE],
  [NULL_VALUE],
  [ANY_ARRAY],
  [ANY_OBJECT],
]);
const ANY_ARRAY: Rule = new Rule(() => [[arrayOf(ANY_VALUE)]]);
export const ANY_OBJECT: Rule = new Rule(() => [[mapOf(ANY_VALUE)]]);
