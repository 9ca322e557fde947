/**
 * Values in Hydra's override grammar (1.3): numbers, `true`, `null`, quoted and bare texts, `[a,b]`, `{a:1}`, and the
 * casts `int()`, `float()`, `str()`, `bool()`. A test compares it with Hydra's own parser.
 *
 * @see https://hydra.cc/docs/advanced/override_grammar/basic/
 */

import type { Tree, YamlValue } from "../yaml/tree.ts";
import { callFunction } from "./functions.ts";
import { type HydraToken, readTokens, type TokenType } from "./lexer.ts";
import { BadValue, HydraFloat, type Parsed, QUOTE_IT, Quoted, readFloat, refuseSweep } from "./parsed_value.ts";

/** @throws {BadValue} for everything that Hydra refuses, for sweeps, and for whole numbers beyond 2^53. */
export function readValue(source: string): YamlValue {
  const { tokens, rest } = readTokens(source);
  const parser = new Parser(tokens, rest);
  return plain(parser.readAll());
}

/** A bare word of a resolver's arguments: text unless all of it is one literal. */
export function readWord(word: string): YamlValue {
  const { tokens, rest } = readTokens(word);
  const [token] = tokens;
  const isLiteral = token !== undefined && tokens.length === 1 && rest === "" && !isBeyondExact(token);
  return isLiteral ? plain(readScalar(token)) : word;
}

function isBeyondExact({ type, text }: HydraToken): boolean {
  return type === "int" && !Number.isSafeInteger(wholeNumber(text));
}

const wholeNumber = (text: string) => Number(text.replaceAll("_", ""));

const WORDS: readonly TokenType[] = ["id", "null", "int", "float", "bool", "char", "escape", "space"];
const PRIMITIVE: readonly TokenType[] = [...WORDS, "interpolation", ":"];

/** Most levels of a value, as many as a file's values have. */
const MOST_DEPTH = 64;

class Parser {
  private at = 0;
  private depth = 0;
  private readonly tokens: readonly HydraToken[];
  private readonly rest: string;
  constructor(tokens: readonly HydraToken[], rest: string) {
    this.tokens = tokens;
    this.rest = rest;
  }

  readAll(): Parsed {
    if (this.tokens.length === 0 && this.rest === "") return "";
    const value = this.readElement();
    if (this.peek() === ",") refuseSweep();
    if (this.at < this.tokens.length || this.rest !== "") this.refuseNext();
    return value;
  }

  private readElement(): Parsed {
    switch (this.peek()) {
      case "[":
        return this.readItems("[", "]", () => this.readElement());
      case "{":
        return new Map(this.readItems("{", "}", () => this.readPair()));
      case "quoted":
        return new Quoted(unquote(this.next().text));
      case "id":
        return this.peek(1) === "(" ? this.readCall() : this.readPrimitive(PRIMITIVE);
      default:
        return this.readPrimitive(PRIMITIVE);
    }
  }

  private readItems<T>(open: TokenType, close: TokenType, readItem: () => T): T[] {
    this.take(open);
    if (++this.depth > MOST_DEPTH)
      throw new BadValue(`is nested deeper than ${MOST_DEPTH} levels`, "Write fewer brackets");
    const items: T[] = [];
    if (this.peek() !== close) {
      items.push(readItem());
      while (this.peek() === ",") {
        this.next();
        items.push(readItem());
      }
    }
    this.take(close);
    this.depth--;
    return items;
  }

  private readPair(): [string, Parsed] {
    if (this.peek() === "quoted")
      throw new BadValue("has a name in quotes inside {...}", "Leave out the quotes of the name");
    const key = keyText(this.readPrimitive(WORDS));
    this.take(":");
    return [key, this.readElement()];
  }

  private readCall(): Parsed {
    const name = this.next().text;
    const named = new Map<string, Parsed>();
    const args = this.readItems("(", ")", () => {
      if (this.peek() === "id" && this.peek(1) === "=") {
        const argument = this.next().text;
        this.next();
        named.set(argument, this.readElement());
        return [];
      }
      if (named.size > 0) throw new BadValue("has an argument without a name after one with a name", QUOTE_IT);
      return [this.readElement()];
    });
    return callFunction(name, { args: args.flat(1) as Parsed[], named });
  }

  /** One literal, or a run of tokens that is text. Spaces at both ends do not count. */
  private readPrimitive(allowed: readonly TokenType[]): Parsed {
    const start = this.at;
    while (this.at < this.tokens.length && allowed.includes(this.tokens[this.at]!.type)) this.at++;
    const run = this.tokens.slice(start, this.at);
    if (run[0]?.type === "space") run.shift();
    if (run.at(-1)?.type === "space") run.pop();
    if (run.length === 0) this.refuseNext();
    return run.length === 1 ? readScalar(run[0]!) : run.map(tokenText).join("");
  }

  private peek(ahead = 0): TokenType | undefined {
    return this.tokens[this.at + ahead]?.type;
  }

  private next(): HydraToken {
    return this.tokens[this.at++]!;
  }

  private take(type: TokenType): void {
    if (this.peek() !== type) this.refuseNext(type);
    this.at++;
  }

  private refuseNext(wanted?: TokenType): never {
    const [next, wants] = [this.tokens[this.at], wanted && "}])".includes(wanted) ? wanted : undefined];
    const found = next?.text.trim() ?? [...this.rest][0];
    if (found === undefined) throw new BadValue(wants ? `has no closing ${wants}` : "ends too early", QUOTE_IT);
    if (found === "'" || found === '"') throw new BadValue(`has no closing ${found}`, QUOTE_IT);
    if (this.rest.startsWith("${") || (found === "{" && this.at > 0 && this.tokens[this.at - 1]!.text === "$"))
      throw new BadValue("has an interpolation without its }", QUOTE_IT);
    throw new BadValue(`has ${found} outside quotes`, QUOTE_IT);
  }
}

function readScalar(token: HydraToken): Parsed {
  switch (token.type) {
    case "int": {
      if (isBeyondExact(token)) throw new BadValue("is a whole number beyond 2^53, which is not exact", QUOTE_IT);
      return wholeNumber(token.text) + 0;
    }
    case "float":
      return new HydraFloat(readFloat(token.text));
    case "bool":
      return token.text.toLowerCase() === "true";
    case "null":
      return null;
    default:
      return tokenText(token);
  }
}

function tokenText({ type, text }: HydraToken): string {
  return type === "escape" ? text.replace(/\\([\s\S])/g, "$1") : text;
}

/** A backslash counts only before a quote, including the closing one. */
function unquote(quoted: string): string {
  const [quote, ending] = [quoted[0], quoted.slice(1)];
  const escaped = quote === "'" ? /(\\+)'/g : /(\\+)"/g;
  return ending
    .replace(escaped, (_, slashes: string) =>
      slashes.length % 2 === 1
        ? "\\".repeat((slashes.length - 1) / 2) + quote
        : "\\".repeat(slashes.length / 2) + quote,
    )
    .slice(0, -1);
}

function keyText(key: Parsed): string {
  const text = key instanceof HydraFloat ? String(key.value) : String(key);
  if (text === "__proto__") throw new BadValue("has a name that is not possible", "Choose another name");
  return text;
}

/** The value without its marks; `int` and `float` become one kind of number. */
function plain(parsed: Parsed): YamlValue {
  if (parsed instanceof HydraFloat) return parsed.value;
  if (parsed instanceof Quoted) return parsed.text;
  if (parsed instanceof Map) {
    const tree: Tree = {};
    for (const [key, value] of parsed) tree[key] = plain(value);
    return tree;
  }
  return Array.isArray(parsed) ? parsed.map(plain) : (parsed as YamlValue);
}
