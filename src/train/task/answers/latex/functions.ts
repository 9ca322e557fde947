/** Functions with and without brackets: `\sin^2 x`, `\log_2 8`, `\ln(x + 1)`. */

import { type TokenCursor, Unreadable } from "./cursor.ts";
import type { Grammar } from "./grammar.ts";
import { INVERSES, LATEX_FUNCTIONS } from "./names.ts";
import { call, integerNode, type LatexNode } from "./nodes.ts";

/** The name has been read. */
export function application(cursor: TokenCursor, grammar: Grammar, name: string): LatexNode {
  const base = cursor.take("_") ? script(cursor, grammar) : undefined;
  if (base && name !== "log") throw new Unreadable();
  const exponent = cursor.take("^") ? script(cursor, grammar) : undefined;
  const isInverse = exponent !== undefined && isMinusOne(exponent);
  const of = operand(cursor, grammar);
  const named = isInverse ? inverse(name) : name;
  const value = named === "log" ? call("divide", call("ln", of), call("ln", base ?? integerNode(10))) : call(named, of);
  return exponent && !isInverse ? call("power", value, exponent) : value;
}

function inverse(name: string): string {
  const found = INVERSES[name];
  if (!found) throw new Unreadable();
  return found;
}

function isMinusOne(node: LatexNode): boolean {
  return node.kind === "call" && node.name === "negate" && node.of[0]!.kind === "number" && node.of[0]!.digits === 1n;
}

function script(cursor: TokenCursor, grammar: Grammar): LatexNode {
  if (cursor.take("{")) {
    const inner = grammar.sum(cursor);
    cursor.expect("}");
    return inner;
  }
  const token = cursor.next();
  if (token.kind === "number" && /^\d+$/.test(token.text)) return { ...integerNode(0), digits: BigInt(token.text) };
  if (token.kind === "mark" && token.text === "-") return call("negate", script(cursor, grammar));
  if (token.kind === "word" && token.text.length === 1) return { kind: "symbol", name: token.text };
  throw new Unreadable();
}

/** Returns the expression in brackets; else the factors up to an operator or the next function. */
function operand(cursor: TokenCursor, grammar: Grammar): LatexNode {
  if (cursor.take("(") || cursor.take("[")) return closed(cursor, grammar, /^[)\]]$/);
  if (cursor.take("{")) return closed(cursor, grammar, /^\}$/);
  if (cursor.take("-")) return call("negate", operand(cursor, grammar));
  let of = grammar.power(cursor);
  while (continues(cursor)) of = call("multiply", of, grammar.power(cursor));
  return of;
}

function closed(cursor: TokenCursor, grammar: Grammar, close: RegExp): LatexNode {
  const inner = cursor.nested(() => grammar.sum(cursor));
  if (!close.test(cursor.next().text)) throw new Unreadable();
  return inner;
}

function continues(cursor: TokenCursor): boolean {
  const token = cursor.peek();
  if (token?.kind === "command")
    return !(token.text in LATEX_FUNCTIONS) && !/^(?:end|choose|text|rfloor|rceil)$/.test(token.text);
  if (token?.kind === "word") return !/^(?:and|or|sin|cos|tan|log|ln|exp|arc)/i.test(token.text);
  return token?.kind === "mark" && token.text === "{";
}
