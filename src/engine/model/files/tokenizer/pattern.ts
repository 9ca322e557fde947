/** Patterns of tokenizer.json: a text, or a regular expression in Oniguruma's syntax, which a hostile file may make slow. */
import { ConfigError } from "../../../../leaves/errors.ts";
import type { TokenizerStep } from "./json.ts";
import { SplitPreTokenizer } from "./library.ts";
import { checkPattern } from "./pattern_cost.ts";

/** Places [start, end) where it matches, in order, without overlaps. */
export type Pattern = (text: string) => (readonly [start: number, end: number])[];

/** Returns the pattern of `pattern` in a step. @throws for a pattern that cannot be read, or takes too long. */
export function stepPattern(step: TokenizerStep): Pattern {
  const pattern = step.pattern as { String?: unknown; Regex?: unknown } | string | undefined;
  const literal = typeof pattern === "string" ? pattern : pattern?.String;
  if (typeof literal === "string") return (value) => literalPlaces(value, literal);
  const regex = (pattern as { Regex?: unknown } | undefined)?.Regex;
  if (typeof regex !== "string") throw new Error(`${step.type}: pattern must be a text or a regular expression`);
  return regexPattern(regex);
}

/** Rewrites the syntax as the library does, which has no function for it. */
export function regexPattern(regex: string): Pattern {
  const { source } = new SplitPreTokenizer({ type: "Split", pattern: { Regex: regex }, invert: true }).pattern;
  checkPattern(source);
  return nativePattern(new RegExp(source, "uy"));
}

function literalPlaces(value: string, literal: string): [number, number][] {
  const places: [number, number][] = [];
  if (literal === "") return places;
  for (let at = value.indexOf(literal); at >= 0; at = value.indexOf(literal, at + literal.length))
    places.push([at, at + literal.length]);
  return places;
}

/** A pattern that is tried at one place after another may take as long as this, and a part of it a character. */
const [MOST_MS, MOST_MS_PER_CHARACTER] = [1000, 1e-3];
/** Places between two readings of the clock. */
const BETWEEN_LOOKS = 64;

/** @param sticky so that no single call walks the whole text without a look at the clock. */
export function nativePattern(sticky: RegExp): Pattern {
  return (value) => {
    const places: [number, number][] = [];
    const deadline = performance.now() + MOST_MS + value.length * MOST_MS_PER_CHARACTER;
    let last = -1;
    for (let at = 0, looks = 1; at <= value.length; looks++) {
      if (looks % BETWEEN_LOOKS === 0 && performance.now() > deadline) throw tooSlow(sticky.source, value);
      sticky.lastIndex = at;
      const end = sticky.test(value) ? sticky.lastIndex : -1;
      // An empty match right after another does not count.
      if (end > at || (end === at && at !== last)) places.push([at, end]);
      if (end > at) last = end;
      at = end > at ? end : at + ((value.codePointAt(at) ?? 0) > 0xffff ? 2 : 1);
    }
    return places;
  };
}

function tooSlow(source: string, { length }: string): ConfigError {
  return new ConfigError(
    `Cannot encode the text: a pattern of tokenizer.json takes too long on its ${length} characters (${source.slice(0, 80)}). Use the tokenizer that was published with the model.`,
  );
}

/** Returns a value with every match replaced. */
export function replaceMatches(value: string, find: Pattern, by: string): string {
  let out = "";
  let from = 0;
  for (const [start, end] of find(value)) {
    out += value.slice(from, start) + by;
    from = end;
  }
  return from === 0 && out === "" ? value : out + value.slice(from);
}
