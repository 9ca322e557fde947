/** Strings by their length, pattern and format. */
import { FORMATS, LONGEST_FORMAT, SHORT_FORMAT, SHORT_FORMATS } from "./formats.ts";
import { intersection, type SchemaPlace } from "./intersection.ts";
import { stringOf, WRITTEN_CHARACTER } from "./json.ts";
import { limitsOf, type SchemaKeywords, unsupportedKeyword } from "./keywords.ts";
import { patternRule } from "./pattern.ts";
import { type GrammarRule, literal, repeat, type SymbolSequence } from "./rules.ts";

/** Characters of a text with a pattern and a `maxLength`, unless its `minLength` is higher: each is a state for every place of the pattern. */
const MOST_CHARACTERS = 256;

/** `pattern` and `format` may be several, which parts of `allOf` brought. */
export function stringTexts(
  { minLength, maxLength, pattern, format }: SchemaKeywords,
  place: SchemaPlace,
): SymbolSequence {
  const { path } = place;
  const limits = limitsOf({ minLength, maxLength }, path);
  const patterns = given(pattern).map((source) => {
    if (typeof source !== "string") throw unsupportedKeyword(`${path}.pattern`, "it must be a text", source);
    return patternRule(source, { ...place, path: `${path}.pattern` });
  });
  const formats = given(format)
    .map(String)
    .filter((name) => FORMATS.has(name));
  if (patterns.length + formats.length === 0) return stringOf(limits);
  const isShort = formats.length > 0 && (limits.least ?? 0) <= SHORT_FORMAT;
  const isLimited = (limits.least ?? 0) > 1 || (limits.most ?? Infinity) < LONGEST_FORMAT || patterns.length > 0;
  const lengths = formats.length === 0 || isLimited ? lengthRule(limits, { isShort }) : [];
  const named = formats.map((name) => formatRule(name, { place, isShort: isShort && lengths.length > 0 }));
  const rules = [...patterns, ...named, ...lengths];
  const rule = rules.length === 1 ? rules[0] : intersection({ all: rules }, place);
  if (!rule) throw unsupportedKeyword(path, "no text keeps its pattern, format and length", pattern ?? format);
  return [...literal('"'), rule, ...literal('"')];
}

function given(value: unknown): readonly unknown[] {
  return value === undefined ? [] : [value].flat();
}

/** Empty without limits. */
function lengthRule(
  { least, most }: { least?: number; most?: number },
  { isShort }: { isShort: boolean },
): GrammarRule[] {
  if (least === undefined && most === undefined) return [];
  const highest = Math.max(least ?? 0, isShort ? SHORT_FORMAT : MOST_CHARACTERS);
  const isOpen = most === undefined && !isShort;
  return [
    repeat(WRITTEN_CHARACTER, { least: least ?? 0, ...(!isOpen && { most: Math.min(most ?? highest, highest) }) }),
  ];
}

function formatRule(name: string, { place, isShort }: { place: SchemaPlace; isShort: boolean }): GrammarRule {
  const source = (isShort ? SHORT_FORMATS.get(name) : undefined) ?? FORMATS.get(name);
  return patternRule(`^(?:${source})$`, place);
}
