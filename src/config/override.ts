/**
 * Command-line overrides in Hydra's grammar: `key=value`, `+key=value`, `++key=value`, `~key`, `~key=value`,
 * and `group=choice` where the key has a slash.
 */
import { ConfigError } from "../errors.ts";
import type { Tree, Value } from "./tree.ts";

export interface Override {
  /** `set` needs the key to exist, `add` needs it not to, `force` is either, `delete` removes. */
  readonly kind: "set" | "add" | "force" | "delete" | "group";
  readonly key: string;
  /** Absent for `~key`. */
  readonly value?: Value;
  /** As it was typed. */
  readonly text: string;
}

/** Groups whose name has no slash to tell them from a setting. */
const TOP_GROUPS = ["verl", "model_engine"];

/** @throws {ConfigError} that quotes the override and says what to write. */
export function parseOverride(text: string): Override {
  const match = /^(~|\+\+|\+)?([^=]*)(?:=([\s\S]*))?$/.exec(text);
  const [, sign = "", rawKey = "", rawValue] = match ?? [];
  const key = rawKey.trim();
  if (key === "" || /[\s'"{}]/.test(key)) {
    throw new ConfigError(`Cannot read the override as it has no setting's name: ${text}; write key=value`);
  }
  if (rawValue === undefined && sign !== "~") {
    throw new ConfigError(
      `Cannot read the override as it has no value: ${text}; write ${key}=value, or ${key}=null`,
    );
  }
  if (key.includes("/") || TOP_GROUPS.includes(key)) return groupOverride(text, sign, key, rawValue ?? "");
  const kind = sign === "~" ? "delete" : sign === "++" ? "force" : sign === "+" ? "add" : "set";
  if (rawValue === undefined) return { kind, key, text };
  return { kind, key, value: parseValue(rawValue, text), text };
}

function groupOverride(text: string, sign: string, key: string, value: string): Override {
  if (sign === "~" || key.includes("@")) {
    throw new ConfigError(
      `Cannot apply the override as groups can only be chosen: ${text}; write ${key.split("@")[0]}=NAME`,
    );
  }
  return { kind: "group", key: key.replace(/^\//, ""), value: value.trim(), text };
}

/**
 * A value in Hydra's grammar: numbers, `true`, `null`, quoted texts, `[a,b]`, `{a:1}`, and bare texts.
 *
 * @throws {ConfigError} for sweeps (`a,b`), function calls and unclosed quotes or brackets.
 */
export function parseValue(source: string, text: string = source): Value {
  const reader = new ValueReader(source, text);
  const value = reader.read("");
  reader.expectEnd();
  return value;
}

const NUMBER = /^[-+]?(\d[\d_]*(\.\d*)?|\.\d+)(e[-+]?\d+)?$/i;

/** A bare word as Hydra and YAML 1.2 read it. */
export function readWord(word: string): Value {
  if (word === "") return "";
  if (/^(true|false)$/i.test(word)) return word.toLowerCase() === "true";
  if (/^null$/i.test(word)) return null;
  if (NUMBER.test(word)) return Number(word.replaceAll("_", ""));
  const named = /^([-+]?)(?:\.)?(inf|nan)$/i.exec(word);
  if (named) return named[2].toLowerCase() === "nan" ? Number.NaN : named[1] === "-" ? -Infinity : Infinity;
  return word;
}

class ValueReader {
  private at = 0;
  private readonly source: string;
  private readonly text: string;
  constructor(source: string, text: string) {
    this.source = source;
    this.text = text;
  }

  read(stops: string): Value {
    this.skipSpace();
    const char = this.source[this.at];
    if (char === "[") return this.readList();
    if (char === "{") return this.readDict();
    if (char === "'" || char === '"') {
      const start = this.at;
      const quoted = this.readQuoted(char);
      this.skipSpace();
      if (this.at >= this.source.length || stops.includes(this.source[this.at])) return quoted;
      if (stops !== "") this.fail("has text after a closing quote");
      this.at = start;
    }
    return this.readBare(stops);
  }

  expectEnd(): void {
    this.skipSpace();
    if (this.at < this.source.length) this.fail("has text after its value");
  }

  private readList(): Value[] {
    const items: Value[] = [];
    this.at++;
    while (!this.closes("]")) {
      items.push(this.read(",]"));
      if (!this.closes("]", true)) this.take(",");
    }
    return items;
  }

  private readDict(): Tree {
    const tree: Tree = {};
    this.at++;
    while (!this.closes("}")) {
      this.skipSpace();
      const key = String(this.read(":"));
      if (key === "__proto__") this.fail("has a key that is no plain name");
      this.take(":");
      tree[key] = this.read(",}");
      if (!this.closes("}", true)) this.take(",");
    }
    return tree;
  }

  /** Consumes the bracket when it is next (or, with `peek`, only looks). */
  private closes(bracket: string, peek = false): boolean {
    this.skipSpace();
    if (this.at >= this.source.length) this.fail(`has no closing ${bracket}`);
    if (this.source[this.at] !== bracket) return false;
    if (!peek) this.at++;
    return true;
  }

  private take(char: string): void {
    this.skipSpace();
    if (this.source[this.at] !== char) this.fail(`needs "${char}" at character ${this.at + 1} of the value`);
    this.at++;
  }

  private readQuoted(quote: string): string {
    let result = "";
    for (this.at++; this.at < this.source.length; this.at++) {
      const char = this.source[this.at];
      if (char === "\\" && (this.source[this.at + 1] === quote || this.source[this.at + 1] === "\\")) {
        result += this.source[++this.at];
      } else if (char === quote) {
        this.at++;
        return result;
      } else result += char;
    }
    return this.fail(`has no closing ${quote}`);
  }

  private readBare(stops: string): Value {
    let word = "";
    let escaped = false;
    for (; this.at < this.source.length; this.at++) {
      const char = this.source[this.at];
      if (char === "$" && this.source[this.at + 1] === "{") {
        word += this.readInterpolation();
        this.at--;
      } else if (
        char === "\\" &&
        this.at + 1 < this.source.length &&
        "\\,[]{}():= \t".includes(this.source[this.at + 1])
      ) {
        word += this.source[++this.at];
        escaped = true;
      } else if (stops.includes(char)) break;
      else if (stops === "" && char === ",")
        this.fail("is a sweep over several values; quote it, or write [a,b] for a list");
      else if ("[]{}".includes(char) || (char === "," && stops !== ""))
        this.fail(`has a stray "${char}"; quote the text`);
      else word += char;
    }
    const trimmed = word.trim();
    if (/^[a-z_]\w*\(.*\)$/i.test(trimmed) && !escaped)
      this.fail("calls a function; quote it to mean the text itself");
    return escaped ? trimmed : readWord(trimmed);
  }

  private readInterpolation(): string {
    const start = this.at;
    let depth = 0;
    for (; this.at < this.source.length; this.at++) {
      if (this.source[this.at] === "{") depth++;
      if (this.source[this.at] === "}" && --depth === 0) return this.source.slice(start, ++this.at);
    }
    return this.fail("has an interpolation without its closing }");
  }

  private skipSpace(): void {
    while (/\s/.test(this.source[this.at] ?? "")) this.at++;
  }

  private fail(what: string): never {
    throw new ConfigError(`Cannot read the override as it ${what}: ${this.text}`);
  }
}
