/**
 * Reads an answer by recursive descent, without going back: work is linear in its length. From loose to tight: members of a list,
 * relations, unions, sums, products (juxtaposition binds like `*`), powers, and what begins by itself (atoms.ts).
 */
import { atom, startsAtom } from "./atoms.ts";
import { TokenCursor, Unreadable } from "./cursor.ts";
import type { Grammar } from "./grammar.ts";
import { LONGEST_PRODUCT, RELATIONS, UNITS } from "./names.ts";
import { call, type LatexNode, numberNode } from "./nodes.ts";
import { isAndOr, type LatexToken } from "./tokens.ts";

const GRAMMAR: Grammar = { members, relation, sum, power };

/** Undefined for what the grammar has no meaning for. */
export function parseLatex(tokens: readonly LatexToken[]): LatexNode | undefined {
  try {
    const cursor = new TokenCursor(tokens);
    const found = members(cursor);
    while (cursor.take("."));
    if (cursor.peek()) return undefined;
    return found.length === 1 ? found[0] : { kind: "list", open: "", close: "", members: found };
  } catch (error) {
    if (error instanceof Unreadable) return undefined;
    throw error;
  }
}

/** Parses at least one member, separated by commas, semicolons, "and" or "or". */
function members(cursor: TokenCursor): LatexNode[] {
  const found = [relation(cursor)];
  while (takeSeparators(cursor)) found.push(relation(cursor));
  return found;
}

function takeSeparators(cursor: TokenCursor): boolean {
  let taken = false;
  while (isSeparator(cursor.peek())) {
    cursor.skip(1);
    taken = true;
  }
  return taken;
}

function isSeparator(token: LatexToken | undefined): boolean {
  if (token?.kind === "mark") return token.text === "," || token.text === ";";
  return (token?.kind === "word" || token?.kind === "text") && isAndOr(token.text);
}

function relation(cursor: TokenCursor): LatexNode {
  // "= 5" is 5.
  if (cursor.mark() === "=") takeSign(cursor);
  const sides = [union(cursor)];
  const signs: string[] = [];
  for (let sign = takeSign(cursor); sign; sign = takeSign(cursor)) {
    signs.push(sign);
    sides.push(union(cursor));
  }
  return signs.length === 0 ? sides[0]! : { kind: "relation", signs, sides };
}

/** Also `<=`, `>=`, `!=` and `==` of two characters. */
function takeSign(cursor: TokenCursor): string | undefined {
  const [first, second] = [cursor.mark(), cursor.mark(1)];
  if (!RELATIONS.has(first) && !(first === "!" && second === "=")) return undefined;
  const isPair = second === "=" && "<>!=".includes(first);
  cursor.skip(isPair ? 2 : 1);
  return isPair && first !== "=" ? `${first}=` : first;
}

function union(cursor: TokenCursor): LatexNode {
  let left = sum(cursor);
  while (["cup", "cap", "setminus"].includes(cursor.mark())) left = call(cursor.next().text, left, sum(cursor));
  return left;
}

function sum(cursor: TokenCursor): LatexNode {
  let left: LatexNode | undefined;
  for (;;) {
    const sign = cursor.mark();
    if (left && !["+", "-", "pm", "mp"].includes(sign)) return left;
    if (sign === "+" || sign === "-" || sign === "pm" || sign === "mp") cursor.skip(1);
    const term = signed(sign, product(cursor));
    left = left ? call("add", left, term) : term;
  }
}

function signed(sign: string, term: LatexNode): LatexNode {
  if (sign === "-") return call("negate", term);
  return sign === "pm" || sign === "mp" ? call(sign, term) : term;
}

/** After an operator a sign may follow: `2*-3`. */
function factor(cursor: TokenCursor): LatexNode {
  let isNegative = false;
  for (; "+-".includes(cursor.mark() || "?"); cursor.skip(1)) isNegative = isNegative !== (cursor.mark() === "-");
  return isNegative ? call("negate", power(cursor)) : power(cursor);
}

function product(cursor: TokenCursor): LatexNode {
  let last = factor(cursor);
  let left = last;
  for (;;) {
    const mark = cursor.mark();
    if (mark === "*" || mark === "/" || mark === "÷" || mark === ":") {
      cursor.skip(1);
      last = factor(cursor);
      left = call(mark === "*" ? "multiply" : "divide", left, last);
    } else if (isMixed(cursor, last)) {
      const isWhole = left === last;
      last = call("add", last, fraction(cursor));
      if (!isWhole) throw new Unreadable();
      left = last;
    } else if (last.kind !== "symbol" && takeUnit(cursor)) return left;
    else if (startsAtom(cursor)) {
      if (last.kind === "number" && cursor.peek()!.kind === "number") throw new Unreadable();
      last = power(cursor);
      left = call("multiply", left, last);
    } else return left;
  }
}

/** `3\frac{1}{2}` and `3 1/2`: whole numbers. */
function isMixed(cursor: TokenCursor, last: LatexNode): boolean {
  if (last.kind !== "number" || last.decimals > 0) return false;
  if (/^[dtc]?frac$/.test(cursor.command())) return /^\d/.test(argument(cursor, 1));
  const [numerator, denominator] = [cursor.peek(), cursor.peek(2)];
  return numerator?.kind === "number" && cursor.mark(1) === "/" && denominator?.kind === "number";
}

function argument(cursor: TokenCursor, ahead: number): string {
  return cursor.peek(cursor.mark(ahead) === "{" ? ahead + 1 : ahead)?.text ?? "";
}

function fraction(cursor: TokenCursor): LatexNode {
  if (cursor.command()) return power(cursor);
  const numerator = numberNode(cursor.next().text);
  cursor.skip(1);
  return call("divide", numerator, numberNode(cursor.next().text));
}

/** A text, a unit's name, or a word: `3m` is 3 times m, `3 cm` and `3 apples` are 3. */
function isUnit(token: LatexToken | undefined): boolean {
  if (token?.kind === "text") return !isSeparator(token);
  const isLong =
    (token?.text.length ?? 0) > LONGEST_PRODUCT &&
    !/^(?:arc|(?:sin|cos|tan)h?|sqrt|infinity|infty|theta|alpha)/.test(token!.text);
  return token?.kind === "word" && (isLong || UNITS.has(token.text.toLowerCase()));
}

/** A unit ends a member: `5 \text{ hours and } 30 \text{ minutes}` is no number. */
function takeUnit(cursor: TokenCursor): boolean {
  if (!isUnit(cursor.peek())) return false;
  while (isUnit(cursor.peek()) || (cursor.mark() === "/" && isUnit(cursor.peek(1)))) cursor.skip(1);
  if (cursor.take("^")) {
    const hasBraces = cursor.take("{");
    cursor.next();
    if (hasBraces) cursor.expect("}");
  }
  if (startsAtom(cursor) || cursor.peek()?.kind === "text") {
    if (!isSeparator(cursor.peek())) throw new Unreadable();
  }
  return true;
}

function power(cursor: TokenCursor): LatexNode {
  let base = atom(cursor, GRAMMAR);
  for (;;) {
    const mark = cursor.mark();
    if (mark === "!" && cursor.mark(1) !== "=") base = postfix(cursor, "factorial", base);
    else if (mark === "%") base = postfix(cursor, "percent", base);
    else if (mark === "degree") base = postfix(cursor, "degree", base);
    else if (mark === "^") base = raised(cursor, base);
    else if (mark === "_") base = subscripted(cursor, base);
    else if (mark === "'" && base.kind === "symbol") base = { kind: "symbol", name: base.name + cursor.next().text };
    else return base;
  }
}

function postfix(cursor: TokenCursor, name: string, base: LatexNode): LatexNode {
  cursor.skip(1);
  return call(name, base);
}

function raised(cursor: TokenCursor, base: LatexNode): LatexNode {
  cursor.skip(1);
  const isDegree = cursor.command() === "circ" || (cursor.mark() === "{" && cursor.command(1) === "circ");
  if (!isDegree) return call("power", base, script(cursor));
  cursor.skip(cursor.mark() === "{" ? 2 : 1);
  cursor.take("}");
  return call("degree", base);
}

/** `x^2`, `x^{10}`, `x^-1`, `x^ab` is x^a b. */
function script(cursor: TokenCursor): LatexNode {
  if (cursor.mark() === "-" || cursor.mark() === "+") return factor(cursor);
  if (cursor.peek()?.kind === "word") return { kind: "symbol", name: cursor.split(1) };
  return atom(cursor, GRAMMAR);
}

/** A part of a name, or the base of a numeral. */
function subscripted(cursor: TokenCursor, base: LatexNode): LatexNode {
  cursor.skip(1);
  const index = script(cursor);
  if (base.kind === "number" && index.kind === "number") return call("base", base, index);
  if (base.kind !== "symbol") throw new Unreadable();
  return { kind: "symbol", name: `${base.name}_${written(index)}` };
}

function written(node: LatexNode): string {
  if (node.kind === "symbol") return node.name;
  if (node.kind === "number") return String(node.digits);
  if (node.kind === "call") return `${node.name}(${node.of.map(written)})`;
  throw new Unreadable();
}
