/** A template as tokens, as Jinja2 cuts it with `trim_blocks` and `lstrip_blocks`, in a time linear in its length. */

export interface JinjaToken {
  /** `block` and `expression` open a tag and `close` ends it; `end` follows the last token. */
  readonly type:
    | "data"
    | "block"
    | "expression"
    | "close"
    | "name"
    | "string"
    | "integer"
    | "float"
    | "operator"
    | "end";
  readonly value: string;
  /** Start in the text, whose line ends are all alike. */
  readonly at: number;
}

/** The name that a `{% generation %}` block calls. */
export const GENERATION = "__generation__";

/** @throws for a tag, a comment, a text or a bracket without an end, and for characters that no tag may have. */
export function tokenize(source: string): { tokens: readonly JinjaToken[]; text: string } {
  const lines = source.replace(/\r\n?/g, "\n");
  // Jinja2 drops one line end.
  const text = lines.endsWith("\n") ? lines.slice(0, -1) : lines;
  return { tokens: new Lexer(text).tokens(), text };
}

/** Characters of `str.isspace` and of `\s` of Python's `re`. */
const SPACE = String.raw`[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`;
const SPACES = new RegExp(`${SPACE}*`, "y");
const ONE_SPACE = new RegExp(SPACE);
/** The start of any tag, and its sign. */
const OPENING = /\{([%{#])([-+]?)/g;
const RAW = new RegExp(String.raw`${SPACE}*raw${SPACE}*(-?)%\}`, "y");
const END_RAW = new RegExp(String.raw`\{%([-+]?)${SPACE}*endraw${SPACE}*([-+]?)%\}`, "g");
const END_COMMENT = /([-+]?)#\}/g;

const WORD = /[\p{Alphabetic}\p{M}\p{N}_]+/uy;
const FLOAT = /(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/iy;
const INTEGER = /0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*/iy;
const STRING = /'(?:[^'\\]|\\[\s\S])*'|"(?:[^"\\]|\\[\s\S])*"/y;
const OPERATOR = /\/\/|\*\*|==|!=|>=|<=|[+\-/*%~[\](){}>,<=.:|;]/y;

const CLOSING: Readonly<Record<string, string>> = { "(": ")", "[": "]", "{": "}" };

/** A kind of tag, and its end, of which the sign comes first. */
interface Tag {
  readonly type: "block" | "expression";
  readonly end: RegExp;
}

const STATEMENT: Tag = { type: "block", end: /([-+]?)%\}/y };
const EXPRESSION: Tag = { type: "expression", end: /(-?)\}\}/y };

class Lexer {
  private readonly source: string;
  private readonly out: JinjaToken[] = [];
  private at = 0;
  /** Whether what was read last ends a line. */
  private startsLine = true;

  constructor(source: string) {
    this.source = source;
  }

  tokens(): readonly JinjaToken[] {
    while (this.at < this.source.length) {
      OPENING.lastIndex = this.at;
      const opening = OPENING.exec(this.source);
      if (!opening) {
        this.text(this.source.slice(this.at));
        break;
      }
      const [, kind, sign] = opening;
      this.text(this.before(this.source.slice(this.at, opening.index), sign!, kind !== "{"));
      this.at = OPENING.lastIndex;
      if (kind === "#") this.comment(opening.index);
      else if (kind === "{") this.tag(EXPRESSION, opening.index);
      else if (!this.raw()) this.tag(STATEMENT, opening.index);
    }
    this.out.push({ type: "end", value: "", at: this.source.length });
    return this.out;
  }

  private fail(what: string, at: number): never {
    throw new SyntaxError(`line ${this.source.slice(0, at).split("\n").length}: ${what}`);
  }

  /** Text before a tag: without white space for a minus, without that of its own line before a block or comment. */
  private before(text: string, sign: string, isBlock: boolean): string {
    if (sign === "-") return text.slice(0, trimmedLength(text, 0));
    if (sign === "+" || !isBlock) return text;
    const line = text.lastIndexOf("\n") + 1;
    const isOwn = (line > 0 || this.startsLine) && trimmedLength(text, line) === line;
    return isOwn ? text.slice(0, line) : text;
  }

  private text(value: string): void {
    if (value !== "") this.out.push({ type: "data", value, at: this.at });
  }

  private comment(start: number): void {
    END_COMMENT.lastIndex = this.at;
    const end = END_COMMENT.exec(this.source);
    if (!end) this.fail("the comment has no end", start);
    this.at = END_COMMENT.lastIndex;
    this.after(end[1]!, true);
  }

  /** `{% raw %}`: true where it was one. */
  private raw(): boolean {
    RAW.lastIndex = this.at;
    const opening = RAW.exec(this.source);
    if (!opening) return false;
    this.at = RAW.lastIndex;
    this.after(opening[1]!, false);
    END_RAW.lastIndex = this.at;
    const end = END_RAW.exec(this.source);
    if (!end) this.fail("the raw block has no end", opening.index);
    this.text(this.before(this.source.slice(this.at, end.index), end[1]!, true));
    this.at = END_RAW.lastIndex;
    this.after(end[2]!, true);
    return true;
  }

  /** After the end of a tag: a minus drops white space; blocks and comments drop a line end. */
  private after(sign: string, isBlock: boolean): void {
    const from = this.at;
    if (sign === "-") {
      SPACES.lastIndex = this.at;
      SPACES.test(this.source);
      this.at = Math.max(SPACES.lastIndex, this.at);
    } else if (sign !== "+" && isBlock && this.source[this.at] === "\n") this.at++;
    this.startsLine = this.at > from && this.source[this.at - 1] === "\n";
  }

  private tag(tag: Tag, start: number): void {
    this.out.push({ type: tag.type, value: "", at: start });
    const open: string[] = [];
    for (;;) {
      SPACES.lastIndex = this.at;
      SPACES.test(this.source);
      this.at = Math.max(SPACES.lastIndex, this.at);
      if (this.at >= this.source.length) this.fail(`the ${tag.type} has no end`, start);
      const end = open.length === 0 ? this.take(tag.end) : undefined;
      if (end !== undefined) {
        this.out.push({ type: "close", value: end, at: this.at });
        this.after(end.length > 2 ? end[0]! : "", tag === STATEMENT);
        return;
      }
      this.inner(open);
    }
  }

  private inner(open: string[]): void {
    const { at } = this;
    const isMember = this.source[at - 1] === ".";
    const float = isMember ? undefined : this.take(FLOAT);
    if (float !== undefined) {
      this.out.push({ type: "float", value: float.replaceAll("_", ""), at });
      return;
    }
    const integer = this.take(INTEGER);
    if (integer !== undefined) {
      this.out.push({ type: "integer", value: integer.replaceAll("_", ""), at });
      return;
    }
    const word = this.take(WORD);
    if (word !== undefined) {
      this.out.push({ type: "name", value: word, at });
      return;
    }
    const string = this.take(STRING);
    if (string !== undefined) {
      this.out.push({ type: "string", value: this.unescaped(string.slice(1, -1), at), at });
      return;
    }
    const value = this.take(OPERATOR);
    if (value === undefined || value === ";") this.fail(`unexpected character ${JSON.stringify(this.source[at])}`, at);
    if (CLOSING[value]) open.push(CLOSING[value]);
    else if (")]}".includes(value) && open.pop() !== value) this.fail(`unexpected '${value}'`, at);
    this.out.push({ type: "operator", value, at });
  }

  private take(sticky: RegExp): string | undefined {
    sticky.lastIndex = this.at;
    if (!sticky.test(this.source)) return undefined;
    const text = this.source.slice(this.at, sticky.lastIndex);
    this.at = sticky.lastIndex;
    return text;
  }

  /** Python's escapes; an unknown one stays as it is written. @throws for one that is cut off. */
  private unescaped(text: string, at: number): string {
    return text.replace(
      /\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([0-7]{1,3})|([\s\S]))/g,
      (whole, x?: string, u?: string, long?: string, octal?: string, other?: string) => {
        const hex = x ?? u ?? long;
        if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
        if (octal !== undefined) return String.fromCodePoint(Number.parseInt(octal, 8));
        if (/[xuUN]/.test(other!)) this.fail(`the escape ${whole} is cut off or not known`, at);
        return ESCAPES[other!] ?? whole;
      },
    );
  }
}

/** Length of a text without the white space at its end, at least `least`. */
function trimmedLength(text: string, least: number): number {
  let end = text.length;
  while (end > least && ONE_SPACE.test(text[end - 1]!)) end--;
  return end;
}

const ESCAPES: Readonly<Record<string, string>> = {
  "\n": "",
  "\\": "\\",
  "'": "'",
  '"': '"',
  a: "\x07",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
  v: "\v",
};
