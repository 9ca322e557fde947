/**
 * A template as tokens, as Jinja2 cuts it with `trim_blocks` and `lstrip_blocks`, in a time linear in its length. The tokens are
 * those of `@huggingface/jinja`, whose own lexer reads CRLF, `{%+`, `{% raw %}` and text before a tag differently.
 */

export interface Token {
  readonly type: string;
  readonly value: string;
}

/** The name that `{% generation %}` calls, a block of transformers' own. As a call block it has the same scope, and can be marked. */
export const GENERATION = "__generation__";

/** @throws for a tag, a comment, a text or a bracket without an end, and for characters that no tag may have. */
export function tokenize(source: string): Token[] {
  const lines = source.replace(/\r\n?/g, "\n");
  // Jinja2 drops one line end.
  return new Lexer(lines.endsWith("\n") ? lines.slice(0, -1) : lines).tokens();
}

/** What `str.isspace` and `\s` of Python's `re` have. */
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

/** Names of the library. */
const OPERATORS: Readonly<Record<string, string>> = {
  "(": "OpenParen",
  ")": "CloseParen",
  "{": "OpenCurlyBracket",
  "}": "CloseCurlyBracket",
  "[": "OpenSquareBracket",
  "]": "CloseSquareBracket",
  ",": "Comma",
  ".": "Dot",
  ":": "Colon",
  "|": "Pipe",
  "+": "AdditiveBinaryOperator",
  "-": "AdditiveBinaryOperator",
  "~": "AdditiveBinaryOperator",
  "*": "MultiplicativeBinaryOperator",
  "/": "MultiplicativeBinaryOperator",
  "//": "MultiplicativeBinaryOperator",
  "%": "MultiplicativeBinaryOperator",
  "**": "ExponentiationBinaryOperator",
  "=": "Equals",
};
const CLOSING: Readonly<Record<string, string>> = { "(": ")", "[": "]", "{": "}" };

/** A kind of tag: its tokens, and its ends, of which the sign comes first. */
interface Tag {
  readonly name: string;
  readonly open: Token;
  readonly close: Token;
  readonly end: RegExp;
}

const STATEMENT: Tag = {
  name: "block",
  open: { type: "OpenStatement", value: "{%" },
  close: { type: "CloseStatement", value: "%}" },
  end: /([-+]?)%\}/y,
};
const EXPRESSION: Tag = {
  name: "expression",
  open: { type: "OpenExpression", value: "{{" },
  close: { type: "CloseExpression", value: "}}" },
  end: /(-?)\}\}/y,
};

class Lexer {
  private readonly source: string;
  private readonly out: Token[] = [];
  private at = 0;
  /** Whether what was read last ends a line. */
  private startsLine = true;

  constructor(source: string) {
    this.source = source;
  }

  tokens(): Token[] {
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
    return this.out;
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
    if (value !== "") this.out.push({ type: "Text", value });
  }

  private comment(start: number): void {
    END_COMMENT.lastIndex = this.at;
    const end = END_COMMENT.exec(this.source);
    if (!end) throw new SyntaxError(`the comment at character ${start} has no end`);
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
    if (!end) throw new SyntaxError("a raw block has no end");
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
    const first = this.out.push(tag.open);
    const open: string[] = [];
    for (;;) {
      SPACES.lastIndex = this.at;
      SPACES.test(this.source);
      this.at = Math.max(SPACES.lastIndex, this.at);
      if (this.at >= this.source.length) throw new SyntaxError(`the ${tag.name} at character ${start} has no end`);
      const end = open.length === 0 ? this.take(tag.end) : undefined;
      if (end !== undefined) {
        this.mark(first);
        this.out.push(tag.close);
        this.after(end.length > tag.close.value.length ? end[0]! : "", tag === STATEMENT);
        return;
      }
      this.inner(open);
    }
  }

  /** `generation` and `endgeneration`, from the token `first` on. */
  private mark(first: number): void {
    const [name, ...others] = this.out.slice(first);
    if (others.length > 0 || name?.type !== "Identifier") return;
    const word = (value: string): Token => ({ type: "Identifier", value });
    if (name.value === "endgeneration") this.out.splice(first, 1, word("endcall"));
    if (name.value !== "generation") return;
    const [opening, closing] = ["(", ")"].map((value) => ({ type: OPERATORS[value]!, value }));
    this.out.splice(first, 1, word("call"), word(GENERATION), opening!, closing!);
  }

  private inner(open: string[]): void {
    const isMember = this.source[this.at - 1] === ".";
    const number = (isMember ? undefined : this.take(FLOAT)) ?? this.take(INTEGER);
    if (number !== undefined) {
      this.out.push({ type: "NumericLiteral", value: decimal(number) });
      return;
    }
    const word = this.take(WORD);
    if (word !== undefined) {
      this.out.push({ type: "Identifier", value: word });
      return;
    }
    const string = this.take(STRING);
    if (string !== undefined) {
      this.out.push({ type: "StringLiteral", value: unescaped(string.slice(1, -1)) });
      return;
    }
    const value = this.take(OPERATOR);
    if (value === undefined || value === ";")
      throw new SyntaxError(`unexpected character ${JSON.stringify(this.source[this.at])} at ${this.at}`);
    if (CLOSING[value]) open.push(CLOSING[value]);
    else if (")]}".includes(value) && open.pop() !== value) throw new SyntaxError(`unexpected ${value} at ${this.at}`);
    this.out.push({ type: OPERATORS[value] ?? "ComparisonBinaryOperator", value });
  }

  private take(sticky: RegExp): string | undefined {
    sticky.lastIndex = this.at;
    if (!sticky.test(this.source)) return undefined;
    const text = this.source.slice(this.at, sticky.lastIndex);
    this.at = sticky.lastIndex;
    return text;
  }
}

/** Length of a text without the white space at its end, at least `least`. */
function trimmedLength(text: string, least: number): number {
  let end = text.length;
  while (end > least && ONE_SPACE.test(text[end - 1]!)) end--;
  return end;
}

/** As the parser reads numbers: a point is what makes a float. */
function decimal(written: string): string {
  const plain = written.replaceAll("_", "").toLowerCase();
  if (/^0[box]/.test(plain)) return String(Number(plain));
  if (!plain.includes("e")) return plain;
  return plain.includes(".") ? plain : plain.replace("e", ".0e");
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

/** Python's escapes; an unknown one stays as it is written. @throws for one that is cut off. */
function unescaped(text: string): string {
  return text.replace(
    /\\(?:x([\da-f]{2})|u([\da-f]{4})|U([\da-f]{8})|([0-7]{1,3})|([\s\S]))/gi,
    (whole, x?: string, u?: string, long?: string, octal?: string, other?: string) => {
      // The flag i takes \X and \N for \x and \n.
      if (other === undefined && /^\\[XU]/.test(whole) && !(whole[1] === "U" && whole.length === 10)) return whole;
      const hex = x ?? u ?? long;
      if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
      if (octal !== undefined) return String.fromCodePoint(Number.parseInt(octal, 8));
      if (/[xuUN]/.test(other!)) throw new SyntaxError(`the escape ${whole} is cut off or not known`);
      return ESCAPES[other!] ?? whole;
    },
  );
}
