/** Regular expressions of JSON schemas as rules over the characters of a JSON string. */
import { ConfigError } from "../../errors.ts";
import { CHARACTER } from "./json.ts";
import { bytes, choice, type GrammarSymbol, literal, type Rule, repeat, type Sequence } from "./rules.ts";

/** Characters that stand for themselves in a JSON string, by code; others are left out of every class. */
const PLAIN = Array.from({ length: 0x7f - 0x20 }, (_, i) => i + 0x20).filter((code) => code !== 0x22 && code !== 0x5c);

const CLASSES: Readonly<Record<string, RegExp>> = { d: /\d/, D: /\D/, w: /\w/, W: /\W/, s: /\s/, S: /\S/ };

/** The most repetitions that a count may ask for. */
const MOST_REPEATS = 1000;

/**
 * Texts that a pattern matches, of ASCII characters that need no escape. As in JSON schema, a pattern without anchors matches a
 * part of the text.
 * @throws {ConfigError} for look-arounds, back references, lazy counts and other syntax beyond regular languages
 */
export function patternOf(source: string, path: string): Rule {
  return new PatternReader(source, path).read();
}

class PatternReader {
  private readonly source: string;
  private readonly path: string;
  private at = 0;

  constructor(source: string, path: string) {
    this.source = source;
    this.path = path;
  }

  read(): Rule {
    const any = repeat(CHARACTER);
    const alternatives = splitAlternatives(this.source).map((text): Sequence => {
      const starts = text.startsWith("^");
      const ends = /(^|[^\\])(\\\\)*\$$/.test(text);
      const inner = new PatternReader(text.slice(starts ? 1 : 0, ends ? -1 : undefined), this.path);
      return [...(starts ? [] : [any]), ...inner.whole(), ...(ends ? [] : [any])];
    });
    return choice(...alternatives);
  }

  private whole(): Sequence {
    const rule = this.alternatives();
    if (this.at < this.source.length) throw this.refused(`a ${this.source[this.at]} too many`);
    return [rule];
  }

  private alternatives(): Rule {
    const all: Sequence[] = [this.sequence()];
    while (this.source[this.at] === "|") {
      this.at++;
      all.push(this.sequence());
    }
    return choice(...all);
  }

  private sequence(): Sequence {
    const symbols: GrammarSymbol[] = [];
    while (this.at < this.source.length && !"|)".includes(this.source[this.at]!))
      symbols.push(...this.counted(this.atom()));
    return symbols;
  }

  private counted(atom: Sequence): Sequence {
    const found = /^(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})/.exec(this.source.slice(this.at));
    if (!found) return atom;
    const [text, low, comma, high] = found;
    this.at += text.length;
    if ("?+".includes(this.source[this.at] ?? " ")) throw this.refused("lazy and possessive counts are not supported");
    const item = atom.length === 1 ? atom[0]! : choice(atom);
    if (text === "*") return [repeat(item)];
    if (text === "+") return [repeat(item, { least: 1 })];
    if (text === "?") return [choice([], atom)];
    const least = Number(low);
    const most = comma ? (high ? Number(high) : Number.POSITIVE_INFINITY) : least;
    if (least > MOST_REPEATS || (most > MOST_REPEATS && most < Infinity))
      throw this.refused(`counts may be at most ${MOST_REPEATS}`);
    return [repeat(item, { least, most })];
  }

  private atom(): Sequence {
    const character = this.source[this.at++]!;
    if (character === "(") return this.group();
    if (character === "[") return [this.bracket()];
    if (character === ".") return [CHARACTER];
    if (character === "\\") return this.escape();
    if ("^$*+?{}".includes(character)) throw this.refused(`${character} is not supported here`);
    return escapedText(character);
  }

  private group(): Sequence {
    if (this.source[this.at] === "?") {
      const named = /^\?(?::|<[A-Za-z_]\w*>)/.exec(this.source.slice(this.at));
      if (!named) throw this.refused("look-arounds are not supported");
      this.at += named[0].length;
    }
    const rule = this.alternatives();
    if (this.source[this.at++] !== ")") throw this.refused("a group is not closed");
    return [rule];
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

  private bracket(): GrammarSymbol {
    const isNegated = this.source[this.at] === "^";
    if (isNegated) this.at++;
    const tests: ((code: number) => boolean)[] = [];
    while (this.source[this.at] !== "]") {
      if (this.at >= this.source.length) throw this.refused("a class is not closed");
      tests.push(this.classItem());
    }
    this.at++;
    return classOf((code) => tests.some((test) => test(code)) !== isNegated);
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
    return new ConfigError(`Cannot constrain the reply by its schema: ${rule} (${this.source}).`, { path: this.path });
  }
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

function classOf(test: (code: number) => boolean): GrammarSymbol {
  const codes = PLAIN.filter(test);
  return bytes(...codes.map((code) => [code, code] as const));
}

/** A character as a JSON string has it. */
function escapedText(character: string): Sequence {
  return literal(JSON.stringify(character).slice(1, -1));
}
