/** LaTeX, or an answer in plain characters, as tokens: one pass, linear in the text's length. */

import { SIGNS } from "./names.ts";

export type TokenKind = "number" | "word" | "command" | "text" | "mark";

export interface LatexToken {
  readonly kind: TokenKind;
  /** A command without its backslash; the content of a `\text{...}`; else the characters. */
  readonly text: string;
  /** Whether space precedes it: `3 1/2` is a mixed number, `1, 200` are two. */
  readonly isSpaced: boolean;
}

const TEXTS: ReadonlySet<string> = new Set([
  ...["text", "mbox", "hbox", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mathrm", "mathsf"],
  ...["operatorname", "operatorname*"],
]);

/** Commands that only change how something looks. */
const LOOKS: ReadonlySet<string> = new Set([
  ...["left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "Bigl", "biggl", "Biggl", "bigr", "Bigr"],
  ...["biggr", "Biggr", "bigm", "Bigm", "biggm", "Biggm", "displaystyle", "textstyle", "scriptstyle", "limits"],
  ...[
    "nolimits",
    "rm",
    "bf",
    "it",
    "mathbf",
    "mathit",
    "bold",
    "boldsymbol",
    "bm",
    "mathstrut",
    "strut",
    "hfill",
    "(",
    ")",
    "[",
    "]",
  ],
]);

/** Commands that are space; `\ ` and `\~` have no letters. */
const SPACE: ReadonlySet<string> = new Set([..." ,;:~>".split(""), "quad", "qquad", "thinspace", "enspace", "\n"]);

/** Characters of other alphabets, as LaTeX. */
const CHARACTERS: Readonly<Record<string, string>> = {
  ...{ "−": "-", "–": "-", "×": "\\times", "·": "\\cdot", "⋅": "\\cdot", "÷": "\\div", "±": "\\pm", "∓": "\\mp" },
  ...{ "≤": "\\le", "≥": "\\ge", "≠": "\\ne", "≈": "\\approx", "∈": "\\in", "∪": "\\cup", "∩": "\\cap" },
  ...{ π: "\\pi", θ: "\\theta", α: "\\alpha", β: "\\beta", "∞": "\\infty", "√": "\\sqrt", "°": "\\degree" },
  ...{ "∅": "\\emptyset", "²": "^2", "³": "^3", "½": "\\frac12", ℝ: "\\mathbb{R}" },
  ...{ "…": "\\ldots", "（": "(", "）": ")", "，": ",", "\u00a0": " " },
};

/** Returns whether a text separates members: `\text{ or }`, `\text{, and }`. */
export function isAndOr(text: string): boolean {
  return /^[\s,]*(?:and|or)\s*$/i.test(text);
}

const PIECE = /\s+|\\([a-zA-Z]+\*?)|\\([\s\S])|(\d+(?:\.\d+)?|\.\d+)|([a-zA-Z]+)|([\s\S])/gy;

export function tokensOf(answer: string): LatexToken[] {
  const text = plain(answer);
  const tokens = new Tokens();
  PIECE.lastIndex = 0;
  for (let match = PIECE.exec(text); match; match = PIECE.exec(text)) {
    const [, command, escaped, number, word, mark] = match;
    const name = command ?? escaped;
    if (name !== undefined) PIECE.lastIndex = tokens.command(name, text, PIECE.lastIndex);
    else if (number) tokens.add("number", number);
    else if (word) tokens.add("word", word);
    else if (mark) tokens.mark(mark);
    else tokens.space();
  }
  return tokens.list;
}

class Tokens {
  readonly list: LatexToken[] = [];
  private isSpaced = false;

  space(): void {
    this.isSpaced = true;
  }

  add(kind: TokenKind, text: string): void {
    this.list.push({ kind, text, isSpaced: this.isSpaced });
    this.isSpaced = false;
  }

  /** `{,}` is the comma between thousands, and `**` a power. */
  mark(mark: string): void {
    const { list } = this;
    if (mark === "$") return;
    if (mark === "}" && list.at(-2)?.text === "{" && /^(?:,|\{,\})$/.test(list.at(-1)!.text)) {
      list.splice(-2);
      this.isSpaced = false;
      this.add("mark", "{,}");
    } else if (mark === "*" && list.at(-1)?.text === "*" && !this.isSpaced)
      list.splice(-1, 1, { ...list.at(-1)!, text: "^" });
    else this.add("mark", mark);
  }

  /** Returns where reading goes on. */
  command(name: string, text: string, at: number): number {
    const content = TEXTS.has(name) ? braces(text, at) : undefined;
    if (content) {
      this.text(content.text);
      return content.end;
    }
    if (name === "!") this.thin();
    else if (SPACE.has(name)) this.space();
    else if (SIGNS[name] !== undefined) this.add("mark", SIGNS[name]);
    else if (!LOOKS.has(name) && name !== "$") this.add("command", name);
    return at;
  }

  private text(content: string): void {
    const inner = content.trim();
    if (inner === "") this.space();
    else if (inner === "," || inner === ";") this.add("mark", inner);
    else this.add("text", content);
  }

  /** `1,\!000`. */
  private thin(): void {
    if (this.list.at(-1)?.text === ",") this.list.splice(-1, 1, { kind: "mark", text: "{,}", isSpaced: false });
  }
}

function plain(text: string): string {
  let result = "";
  for (const letter of text) result += CHARACTERS[letter] ? `${CHARACTERS[letter]} ` : letter === "~" ? " " : letter;
  return result;
}

/** Returns the contents of the braces that begin at `at`, after spaces. */
function braces(text: string, at: number): { text: string; end: number } | undefined {
  let from = at;
  while (text[from] === " ") from++;
  if (text[from] !== "{") return undefined;
  let depth = 0;
  for (let i = from; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "{") depth++;
    else if (text[i] === "}" && --depth === 0) return { text: text.slice(from + 1, i), end: i + 1 };
  }
  return undefined;
}
