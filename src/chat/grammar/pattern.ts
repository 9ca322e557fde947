/** Regular expressions of JSON schemas as rules over the characters of a JSON string. */
import { ConfigError } from "../../leaves/errors.ts";
import { intersection, type SchemaPlace } from "./intersection.ts";
import { CHARACTER, IN_LINE } from "./json.ts";
import {
  type ByteSet,
  byteRanges,
  choiceRule,
  type GrammarRule,
  literal,
  repeat,
  type SymbolSequence,
} from "./rules.ts";

/** Characters that stand for themselves in a JSON string, by code; others are left out of every class. */
const PLAIN = Array.from({ length: 0x7f - 0x20 }, (_, i) => i + 0x20).filter((code) => code !== 0x22 && code !== 0x5c);

const CLASSES: Readonly<Record<string, RegExp>> = { d: /\d/, D: /\D/, w: /\w/, W: /\W/, s: /\s/, S: /\S/ };

/** The most characters that the counts of a pattern may ask for, all together: a state may hold a place for each. */
const MOST_CHARACTERS = 1000;

/** Groups within groups. */
const MOST_DEPTH = 50;

/** A part of a pattern. */
interface Part {
  readonly symbols: SymbolSequence;
  /** Characters in all its alternatives, each as many times as its counts ask for it. */
  readonly size: number;
  readonly mayBeEmpty: boolean;
  /** It ends with what a look-ahead looks at: nothing may follow. */
  readonly isLast?: boolean;
  /** Whether the pattern already contains what may follow it. */
  readonly isComplete?: boolean;
}

function one(symbols: SymbolSequence): Part {
  return { symbols, size: 1, mayBeEmpty: false };
}

/** All texts. */
const ANY = repeat(CHARACTER);

/**
 * Texts that a pattern matches, of ASCII characters that need no escape. As in JSON schema, a pattern without anchors matches a
 * part of the text. Lazy counts match the same texts as others.
 * @throws {ConfigError} for look-behinds, back references and other syntax beyond regular languages, for a look-ahead inside a
 *   part that is repeated or that other parts follow, for counts of what may be empty, and for counts of more than 1000
 *   characters in all
 */
export function patternRule(source: string, place: SchemaPlace): GrammarRule {
  const reader = new PatternReader(source, place);
  const rule = reader.read();
  if (!/\(\?[=!]/.test(source)) return rule;
  // A look-ahead may leave places from which no text ends.
  const trimmed = intersection({ all: [rule] }, place);
  if (trimmed) return trimmed;
  throw refused("no text matches", { source, path: place.path });
}

class PatternReader {
  private readonly source: string;
  private readonly place: SchemaPlace;
  /** Whether the text begins where the pattern does. */
  private readonly isAnchored: boolean;
  private at = 0;
  private depth = 0;

  constructor(source: string, place: SchemaPlace, isAnchored = false) {
    this.source = source;
    this.place = place;
    this.isAnchored = isAnchored;
  }

  read(): GrammarRule {
    let size = 0;
    const alternatives = splitAlternatives(this.source).map((text): SymbolSequence => {
      const starts = text.startsWith("^");
      const ends = /(^|[^\\])(\\\\)*\$$/.test(text);
      const isAnchored = starts || this.isAnchored;
      const inner = new PatternReader(text.slice(starts ? 1 : 0, ends ? -1 : undefined), this.place, isAnchored);
      const part = inner.whole(ends ? [] : [ANY]);
      size += part.size;
      return isAnchored ? part.symbols : [ANY, ...part.symbols];
    });
    this.checkSize(size);
    return choiceRule(...alternatives);
  }

  private checkSize(size: number): void {
    if (size > MOST_CHARACTERS)
      throw this.refused(`the counts and characters of a pattern may come to ${MOST_CHARACTERS} in all, not ${size}`);
  }

  /** @param rest what may follow */
  private whole(rest: SymbolSequence): Part {
    const part = this.alternatives(rest);
    if (this.at < this.source.length) throw this.refused(`a ${this.source[this.at]} too many`);
    return part;
  }

  private alternatives(rest: SymbolSequence = []): Part {
    const parts: Part[] = [this.sequence(rest)];
    while (this.source[this.at] === "|") {
      this.at++;
      parts.push(this.sequence(rest));
    }
    return {
      symbols: [choiceRule(...parts.map(({ symbols }) => symbols))],
      size: sizeOf(parts),
      mayBeEmpty: parts.some(({ mayBeEmpty }) => mayBeEmpty),
      isLast: parts.some(({ isLast }) => isLast),
    };
  }

  private sequence(rest: SymbolSequence): Part {
    const parts: Part[] = [];
    while (this.at < this.source.length && !"|)".includes(this.source[this.at]!)) {
      if (parts.at(-1)?.isLast) throw this.refused("nothing may follow a group with a look-ahead");
      parts.push(
        /^\(\?[=!]/.test(this.source.slice(this.at, this.at + 3)) ? this.ahead(rest) : this.counted(this.atom()),
      );
    }
    const last = parts.at(-1);
    if (!last?.isLast) parts.push({ symbols: rest, size: 0, mayBeEmpty: true });
    else if (rest.length > 0 && !last.isComplete) throw this.refused("nothing may follow a group with a look-ahead");
    return {
      symbols: parts.flatMap(({ symbols }) => symbols),
      size: sizeOf(parts),
      mayBeEmpty: parts.every(({ mayBeEmpty }) => mayBeEmpty),
      isLast: last?.isLast ?? false,
      isComplete: last?.isComplete ?? false,
    };
  }

  /** A look-ahead, with all that stands after it in its sequence: texts of the latter that it also allows. */
  private ahead(rest: SymbolSequence): Part {
    const isNegative = this.source[this.at + 2] === "!";
    const end = closingOf(this.source, this.at);
    if (end < 0) throw this.refused("a group is not closed");
    const isFirst = this.at === 0 && this.isAnchored;
    const inner = this.source.slice(this.at + 3, end);
    this.at = end + 1;
    if (!isFirst && splitAlternatives(inner).some((text) => text.startsWith("^")))
      throw this.refused("^ is not supported here");
    const seen = new PatternReader(inner, this.place, true).read();
    const following = this.sequence(rest);
    const characters = choiceRule(following.symbols);
    const both = intersection(
      isNegative ? { all: [characters], none: [seen] } : { all: [characters, seen] },
      this.place,
    );
    return { ...following, symbols: [both ?? choiceRule()], isLast: true, isComplete: true };
  }

  private counted(atom: Part): Part {
    const found = /^(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})/.exec(this.source.slice(this.at));
    if (!found) return atom;
    const [text, low, comma, high] = found;
    this.at += text.length;
    if (atom.isLast && text !== "?") throw this.refused(`a group with a look-ahead cannot be counted, ${text}`);
    // A lazy count matches the same texts.
    if (this.source[this.at] === "?") this.at++;
    const { symbols, mayBeEmpty } = atom;
    const item = symbols.length === 1 ? symbols[0]! : choiceRule(symbols);
    if (text === "*") return { ...atom, symbols: [repeat(item)], mayBeEmpty: true };
    if (text === "+") return { ...atom, symbols: [repeat(item, { least: 1 })] };
    if (text === "?") return { ...atom, symbols: [choiceRule([], symbols)], mayBeEmpty: true };
    const least = Number(low);
    const most = comma ? (high ? Number(high) : Number.POSITIVE_INFINITY) : least;
    if (least > most) throw this.refused(`a count ends before it begins, ${text}`);
    if (mayBeEmpty) throw this.refused(`what may be empty cannot be counted, ${text}`);
    const size = atom.size * (most === Number.POSITIVE_INFINITY ? Math.max(least, 1) : most);
    this.checkSize(size);
    return { symbols: [repeat(item, { least, most })], size, mayBeEmpty: least === 0 };
  }

  private atom(): Part {
    const character = this.source[this.at++]!;
    if (character === "(") return this.group();
    if (character === "[") return one([this.bracket()]);
    if (character === ".") return one([IN_LINE]);
    if (character === "\\") return one(this.escape());
    if ("^$*+?{}".includes(character)) throw this.refused(`${character} is not supported here`);
    return one(escapedText(character));
  }

  private group(): Part {
    if (++this.depth > MOST_DEPTH) throw this.refused(`groups may lie ${MOST_DEPTH} deep`);
    if (this.source[this.at] === "?") {
      const named = /^\?(?::|<[A-Za-z_]\w*>)/.exec(this.source.slice(this.at));
      if (!named) throw this.refused("look-behinds and other look-arounds than look-aheads are not supported");
      this.at += named[0].length;
    }
    const part = this.alternatives();
    if (this.source[this.at++] !== ")") throw this.refused("a group is not closed");
    this.depth--;
    return part;
  }

  private escape(): SymbolSequence {
    const character = this.source[this.at++];
    if (character === undefined) throw this.refused("it ends in a backslash");
    const characterClass = CLASSES[character];
    if (characterClass) return [classOf((code) => characterClass.test(String.fromCharCode(code)))];
    return escapedText(this.literalEscape(character));
  }

  private literalEscape(character: string): string {
    const code = { x: /^[0-9A-Fa-f]{2}/, u: /^[0-9A-Fa-f]{4}/ }[character]?.exec(this.source.slice(this.at))?.[0];
    if (code !== undefined) {
      this.at += code.length;
      return String.fromCharCode(Number.parseInt(code, 16));
    }
    const control = { n: "\n", t: "\t", r: "\r" }[character];
    if (control !== undefined) return control;
    if (/[A-Za-z0-9]/.test(character)) throw this.refused(`\\${character} is not supported`);
    return character;
  }

  private bracket(): ByteSet {
    const isNegated = this.source[this.at] === "^";
    if (isNegated) this.at++;
    const tests: ((code: number) => boolean)[] = [];
    while (this.source[this.at] !== "]") {
      if (this.at >= this.source.length) throw this.refused("a class is not closed");
      tests.push(this.classItem());
    }
    this.at++;
    const set = classOf((code) => tests.some((test) => test(code)) !== isNegated);
    if (!set.includes(1)) throw this.refused("a class has no ASCII character that needs no escape");
    return set;
  }

  private classItem(): (code: number) => boolean {
    const first = this.classCharacter();
    if (typeof first === "object") return (code) => first.test(String.fromCharCode(code));
    const isRange = this.source[this.at] === "-" && this.source[this.at + 1] !== "]";
    if (!isRange) return (code) => code === first.charCodeAt(0);
    this.at++;
    const last = this.classCharacter();
    if (typeof last === "object") throw this.refused("a range must end in a character");
    return (code) => code >= first.charCodeAt(0) && code <= last.charCodeAt(0);
  }

  private classCharacter(): string | RegExp {
    const character = this.source[this.at++]!;
    if (character !== "\\") return character;
    const escaped = this.source[this.at++] ?? "";
    return CLASSES[escaped] ?? this.literalEscape(escaped);
  }

  private refused(rule: string): ConfigError {
    return refused(rule, { source: this.source, path: this.place.path });
  }
}

function refused(rule: string, { source, path }: { source: string; path: string }): ConfigError {
  return new ConfigError(`Cannot constrain the reply by its schema: ${rule} (${source.slice(0, 80)}).`, { path });
}

function sizeOf(parts: readonly Part[]): number {
  return parts.reduce((sum, { size }) => sum + size, 0);
}

/** The alternatives of the whole pattern, which may have anchors of their own. */
function splitAlternatives(source: string): string[] {
  const parts: string[] = [];
  let from = 0;
  for (const { character, depth, at } of marksOf(source)) {
    if (character !== "|" || depth > 0) continue;
    parts.push(source.slice(from, at));
    from = at + 1;
  }
  return [...parts, source.slice(from)];
}

/** Returns where the group that opens at a place closes; -1 where it does not. */
function closingOf(source: string, open: number): number {
  for (const { character, depth, at } of marksOf(source, open)) if (character === ")" && depth === 0) return at;
  return -1;
}

/** The parentheses and bars that are no literals, with the depth of groups outside them. */
function* marksOf(source: string, from = 0): Generator<{ character: string; depth: number; at: number }> {
  let depth = 0;
  let isInClass = false;
  for (let at = from; at < source.length; at++) {
    const character = source[at]!;
    if (character === "\\") at++;
    else if (isInClass) isInClass = character !== "]";
    else if (character === "[") isInClass = true;
    else if ("()|".includes(character)) {
      if (character === ")") depth--;
      yield { character, depth, at };
      if (character === "(") depth++;
    }
  }
}

function classOf(test: (code: number) => boolean): ByteSet {
  const codes = PLAIN.filter(test);
  return byteRanges(...codes.map((code) => [code, code] as const));
}

/** A character as a JSON string has it. */
function escapedText(character: string): SymbolSequence {
  return literal(JSON.stringify(character).slice(1, -1));
}
