/** Terms that begin by themselves: numbers, names, brackets, and commands with their arguments. */
import { type TokenCursor, Unreadable } from "./cursor.ts";
import { application } from "./functions.ts";
import type { Grammar } from "./grammar.ts";
import { matrix } from "./matrix.ts";
import { DECORATIONS, LATEX_FUNCTIONS, LONGEST_PRODUCT, SYMBOLS, WORDS } from "./names.ts";
import { call, type LatexNode } from "./nodes.ts";
import { parseNumber } from "./numbers.ts";
import { isAndOr } from "./tokens.ts";

const OPENING: Readonly<Record<string, string>> = { "(": ")", "[": "]", "\\{": "\\}", "{": "}", "<(": ")>" };

export function startsAtom(cursor: TokenCursor): boolean {
  const token = cursor.peek();
  if (!token || isAndOr(token.text)) return false;
  if (token.kind === "mark") return token.text in OPENING || (token.text === "|" && cursor.bars === 0);
  return token.kind !== "command" || !/^(?:end|choose|rfloor|rceil)$/.test(token.text);
}

export function atom(cursor: TokenCursor, grammar: Grammar): LatexNode {
  return cursor.nested(() => {
    const token = cursor.peek();
    if (token?.kind === "number") return parseNumber(cursor);
    if (token?.kind === "word") return word(cursor, grammar);
    if (token?.kind === "text") return text(cursor, grammar);
    if (token?.kind === "command") return command(cursor, grammar);
    return bracketed(cursor, grammar);
  });
}

function word(cursor: TokenCursor, grammar: Grammar): LatexNode {
  const { text } = cursor.peek()!;
  const lower = text.toLowerCase();
  if (isAndOr(text)) throw new Unreadable();
  const name = /^(?:arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|sqrt)/.exec(text)?.[0];
  if (name) {
    cursor.split(name.length);
    return name === "sqrt" ? root(cursor, grammar) : application(cursor, grammar, LATEX_FUNCTIONS[name]!);
  }
  if (WORDS[lower] !== undefined) return symbol(cursor, WORDS[lower]);
  return text.length > LONGEST_PRODUCT ? symbol(cursor, text) : { kind: "symbol", name: cursor.split(1) };
}

function symbol(cursor: TokenCursor, name: string): LatexNode {
  cursor.skip(1);
  return { kind: "symbol", name };
}

/** `\text{(C)}` and `\text{5}` are what they hold. */
function text(cursor: TokenCursor, grammar: Grammar): LatexNode {
  const content = cursor.next().text.trim();
  if (content in LATEX_FUNCTIONS) return application(cursor, grammar, LATEX_FUNCTIONS[content]!);
  if (/^\(?(?:[a-zA-Z]|[\d.,/+-]+)\)?$/.test(content)) {
    cursor.inline(content);
    return grammar.power(cursor);
  }
  const words = wordsOf(content);
  if (words === "") throw new Unreadable();
  return { kind: "text", text: words };
}

/** Letters and digits alone, in lower case. */
export function wordsOf(content: string): string {
  return content.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
}

function command(cursor: TokenCursor, grammar: Grammar): LatexNode {
  const name = cursor.next().text;
  if (/^[dtc]?frac$/.test(name)) return call("divide", argument(cursor, grammar), argument(cursor, grammar));
  if (/^[dt]?binom$/.test(name)) return call("binomial", argument(cursor, grammar), argument(cursor, grammar));
  if (name === "sqrt") return root(cursor, grammar);
  if (name in LATEX_FUNCTIONS) return application(cursor, grammar, LATEX_FUNCTIONS[name]!);
  if (SYMBOLS.has(name)) return { kind: "symbol", name };
  if (name === "emptyset" || name === "varnothing") return { kind: "list", open: "{", close: "}", members: [] };
  if (name === "boxed" || name === "fbox") return argument(cursor, grammar);
  if (name === "lfloor" || name === "lceil") return rounded(cursor, grammar, name);
  if (name === "begin") return matrix(cursor, grammar);
  if (DECORATIONS.has(name)) return decorated(cursor, name);
  throw new Unreadable();
}

/** Braces, or one token: of `\frac12` one digit. */
function argument(cursor: TokenCursor, grammar: Grammar): LatexNode {
  if (cursor.peek()?.kind === "number") return { kind: "number", digits: BigInt(digit(cursor)), decimals: 0 };
  if (cursor.peek()?.kind === "word") return { kind: "symbol", name: cursor.split(1) };
  return atom(cursor, grammar);
}

function digit(cursor: TokenCursor): string {
  if (!/^\d+$/.test(cursor.peek()!.text)) throw new Unreadable();
  return cursor.split(1);
}

function root(cursor: TokenCursor, grammar: Grammar): LatexNode {
  let degree: LatexNode | undefined;
  if (cursor.take("[")) {
    degree = grammar.sum(cursor);
    cursor.expect("]");
  }
  const of = cursor.peek()?.kind === "word" ? argument(cursor, grammar) : atom(cursor, grammar);
  return degree ? call("root", of, degree) : call("sqrt", of);
}

function rounded(cursor: TokenCursor, grammar: Grammar, name: string): LatexNode {
  const inner = grammar.sum(cursor);
  if (cursor.next().text !== name.replace("l", "r")) throw new Unreadable();
  return call(name === "lfloor" ? "floor" : "ceil", inner);
}

/** The reals as an interval; else a name with its decoration. */
function decorated(cursor: TokenCursor, name: string): LatexNode {
  const hasBraces = cursor.take("{");
  let content = "";
  do content += cursor.next().text;
  while (hasBraces && !cursor.take("}"));
  if (name !== "mathbb" || content !== "R") return { kind: "symbol", name: `${name}(${content})` };
  const infinity: LatexNode = { kind: "symbol", name: "infty" };
  return { kind: "list", open: "(", close: ")", members: [call("negate", infinity), infinity] };
}

function bracketed(cursor: TokenCursor, grammar: Grammar): LatexNode {
  const open = cursor.next().text;
  if (open === "|") return absolute(cursor, grammar);
  if (!(open in OPENING)) throw new Unreadable();
  return open === "{" ? group(cursor, grammar) : list(cursor, grammar, open);
}

function absolute(cursor: TokenCursor, grammar: Grammar): LatexNode {
  cursor.bars++;
  const inner = grammar.sum(cursor);
  cursor.bars--;
  cursor.expect("|");
  return call("abs", inner);
}

function group(cursor: TokenCursor, grammar: Grammar): LatexNode {
  const members = grammar.members(cursor);
  if (cursor.command() === "choose" && members.length === 1) {
    cursor.skip(1);
    const lower = grammar.sum(cursor);
    cursor.expect("}");
    return call("binomial", members[0]!, lower);
  }
  cursor.expect("}");
  return members.length === 1 ? members[0]! : { kind: "list", open: "{", close: "}", members };
}

/** One member in round or square brackets is that member. */
function list(cursor: TokenCursor, grammar: Grammar, open: string): LatexNode {
  if (open === "\\{" && cursor.take("\\}")) return { kind: "list", open: "{", close: "}", members: [] };
  const bars = cursor.bars;
  cursor.brackets++;
  // A set's bar begins its condition: {x | x > 0}.
  cursor.bars = open === "\\{" ? 1 : 0;
  const members = grammar.members(cursor);
  const condition = open === "\\{" && members.length === 1 && cursor.take("|") ? grammar.members(cursor) : undefined;
  cursor.bars = bars;
  cursor.brackets--;
  const close = cursor.next().text;
  if (condition?.length === 1) return condition[0]!;
  if (open === "\\{") {
    if (close !== "\\}") throw new Unreadable();
    return { kind: "list", open: "{", close: "}", members };
  }
  const plain = { "<(": "(", ")>": ")" };
  const [left, right] = [plain[open as "<("] ?? open, plain[close as ")>"] ?? close];
  if (right !== ")" && right !== "]") throw new Unreadable();
  return members.length === 1 ? members[0]! : { kind: "list", open: left, close: right, members };
}
