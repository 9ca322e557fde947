/** Regular expressions of JSON schemas as rules over the characters of a JSON string. */
import { ConfigError } from "../../errors.ts";
import { CHARACTER, IN_LINE } from "./json.ts";
import { type ByteSet, bytes, choice, literal, type Rule, repeat, type Sequence } from "./rules.ts";

/** Characters that stand for themselves in a JSON string, by code; others are left out of every class. */
const PLAIN = Array.from({ length: 0x7f - 0x20 }, (_, i) => i + 0x20).filter((code) => code !== 0x22 && code !== 0x5c);

const CLASSES: Readonly<Record<string, RegExp>> = { d: /\d/, D: /\D/, w: /\w/, W: /\W/, s: /\s/, S: /\S/ };

/** The most characters that the counts of a pattern may ask for, all together: a state may hold a place for each. */
const MOST_CHARACTERS = 1000;

/** Groups within groups. */
const MOST_DEPTH = 50;

/** A part of a pattern. */
interface Part {
  readonly symbols: Sequence;
  /** Characters in all its alternatives, each as many times as its counts ask for it. */
  readonly size: number;
  readonly mayBeEmpty: boolean;
}

function one(symbols: Sequence): Part {
  return { symbols, size: 1, mayBeEmpty: false };
}

/**
 * Texts that a pattern matches, of ASCII characters that need no escape. As in JSON schema, a pattern without anchors matches a
 * part of the text.
 * @throws {ConfigError} for look-arounds, back references, lazy counts and other syntax beyond regular languages, for counts of
 *   what may be empty, and for counts of more than 1000 characters in all
 */
export function patternOf(source: string, path: string): Rule {
  return new PatternReader(source, path).read();
}

class PatternReader {
  private readonly source: string;
  private readonly path: string;
  private at = 0;
  private depth = 0;

  constructor(source: string, path: string) {
    this.source = source;
    this.path = path;
  }

  read(): Rule {
    const any = repeat(CHARACTER);
    let size = 0;
    const alternatives = splitAlternatives(this.source).map((text): Sequence => {
      const starts = text.startsWith("^");
      const ends = /(^|[^\\])(\\\\)*\$$/.test(text);
      const inner = new PatternReader(text.slice(starts ? 1 : 0, ends ? -1 : undefined), this.path).whole();
      size += inner.size;
      return [...(starts ? [] : [any]), ...inner.symbols, ...(ends ? [] : [any])];
    });
    this.checkSize(size);
    return choice(...alternatives);
  }

  private checkSize(size: number): void {
    if (size > MOST_CHARACTERS)
      throw this.refused(`the counts and characters of a pattern may come to ${MOST_CHARACTERS} in all, not ${size}`);
  }

  private whole(): Part {
    const part = this.alternatives();
    if (this.at < this.source.length) throw this.refused(`a ${this.source[this.at]} too many`);
    return part;
  }

  private alternatives(): Part {
    const all: Part[] = [this.sequence()];
    while (this.source[this.at] === "|") {
      this.at++;
      all.push(this.sequence());
    }
    return {
      symbols: [choice(...all.map(({ symbols }) => symbols))],
      size: sizeOf(all),
      mayBeEmpty: all.some(({ mayBeEmpty }) => mayBeEmpty),
    };
  }

  private sequence(): Part {
    const parts: Part[] = [];
    while (this.at < this.source.length && !"|)".includes(this.source[this.at]!)) parts.push(this.counted(this.atom()));
    return {
      symbols: parts.flatMap(({ symbols }) => symbols),
      size: sizeOf(parts),
      mayBeEmpty: parts.every(({ mayBeEmpty }) => mayBeEmpty),
    };
  }

  private counted(atom: Part): Part {
    const found = /^(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})/.exec(this.source.slice(this.at));
    if (!found) return atom;
    const [text, low, comma, high] = found;
    this.at += text.length;
    if ("?+".includes(this.source[this.at] ?? " ")) throw this.refused("lazy and possessive counts are not supported");
    const { symbols, mayBeEmpty } = atom;
    const item = symbols.length === 1 ? symbols[0]! : choice(symbols);
    if (text === "*") return { ...atom, symbols: [repeat(item)], mayBeEmpty: true };
    if (text === "+") return { ...atom, symbols: [repeat(item, { least: 1 })] };
    if (text === "?") return { ...atom, symbols: [choice([], symbols)], mayBeEmpty: true };
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
      if (!named) throw this.refused("look-arounds are not supported");
      this.at += named[0].length;
    }
    const part = this.alternatives();
    if (this.source[this.at++] !== ")") throw this.refused("a group is not closed");
    this.depth--;
    return part;
  }

  private escape(): Sequence {
    const character = this.source[this.at++];
    if (character === undefined) throw this.refused("it ends in a backslash");
    const known = CLASSES[character];
    if (known) return [classOf((code) => known.test(String.fromCharCode(code)))];
    return escapedText(this.literalEscape(character));
  }

  private literalEscape(character: string): string {
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
    return new ConfigError(`Cannot constrain the reply by its schema: ${rule} (${this.source.slice(0, 80)}).`, {
      path: this.path,
    });
  }
}

function sizeOf(parts: readonly Part[]): number {
  return parts.reduce((sum, { size }) => sum + size, 0);
}

/** The alternatives of the whole pattern, which may have anchors of their own. */
function splitAlternatives(source: string): string[] {
  const parts: string[] = [""];
  let depth = 0;
  for (let i = 0; i < source.length; i++) {
    const character = source[i]!;
    if (character === "\\") parts[parts.length - 1] += character + (source[++i] ?? "");
    else if (character === "|" && depth === 0) parts.push("");
    else {
      if ("([".includes(character)) depth++;
      if (")]".includes(character)) depth--;
      parts[parts.length - 1] += character;
    }
  }
  return parts;
}

function classOf(test: (code: number) => boolean): ByteSet {
  const codes = PLAIN.filter(test);
  return bytes(...codes.map((code) => [code, code] as const));
}

/** A character as a JSON string has it. */
function escapedText(character: string): Sequence {
  return literal(JSON.stringify(character).slice(1, -1));
}
