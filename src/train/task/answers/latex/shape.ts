/** Other forms of an answer: what its sides, members and parts are. */
import { call, type LatexNode, type ListNode, type RelationNode } from "./nodes.ts";

/** Sign between the parts of a union. */
const UNION = "cup";

/** Every answer as a list: a union of its parts, `1 \pm x` of both values, any other expression of itself. */
export function answerList(node: LatexNode): ListNode {
  if (node.kind === "list") {
    const isOrdered = node.open === "(" || node.open === "[";
    return isOrdered ? node : { ...node, members: node.members.flatMap(bothSigns) };
  }
  if (isUnion(node)) return { kind: "list", open: UNION, close: UNION, members: partsOf(node) };
  return { kind: "list", open: "", close: "", members: bothSigns(node) };
}

export function isUnion(node: LatexNode): boolean {
  return node.kind === "call" && node.name === UNION;
}

function partsOf(node: LatexNode): LatexNode[] {
  return node.kind === "call" && node.name === UNION ? node.of.flatMap(partsOf) : [node];
}

/** An expression with `\pm` as its two values, the upper signs first. */
export function bothSigns(node: LatexNode): LatexNode[] {
  return hasTwoSigns(node) ? [withSign(node, true), withSign(node, false)] : [node];
}

export function hasTwoSigns(node: LatexNode): boolean {
  if (node.kind === "relation") return node.sides.some(hasTwoSigns);
  return node.kind === "call" && (node.name === "pm" || node.name === "mp" || node.of.some(hasTwoSigns));
}

function withSign(node: LatexNode, isUpper: boolean): LatexNode {
  if (node.kind === "relation") return { ...node, sides: node.sides.map((side) => withSign(side, isUpper)) };
  if (node.kind !== "call") return node;
  const of = node.of.map((each) => withSign(each, isUpper));
  if (node.name !== "pm" && node.name !== "mp") return { ...node, of };
  return (node.name === "pm") === isUpper ? of[0]! : call("negate", of[0]!);
}

/**
 * Returns the value stated by `x = 5`, `f(x) = 5`, `(x, y) = (1, 2)`, `x \in S` or `2 + 3 = 5`: its last side;
 * undefined for `x + y = 5`.
 */
export function valueSaid({ signs, sides }: RelationNode): LatexNode | undefined {
  const [first] = sides;
  const isStated = signs.every((sign) => sign === "=") || (signs.length === 1 && signs[0] === "in");
  return isStated && (isName(first!) || isConstant(first!)) ? sides.at(-1) : undefined;
}

function isName(node: LatexNode): boolean {
  if (node.kind === "symbol" || node.kind === "text") return true;
  if (node.kind === "list") return node.members.length > 0 && node.members.every(isName);
  return node.kind === "call" && node.name === "multiply" && node.of.every(isName);
}

function isConstant(node: LatexNode): boolean {
  if (node.kind === "number") return true;
  if (node.kind === "symbol") return node.name === "pi";
  return node.kind === "call" && node.of.every(isConstant);
}

/** Returns a relation with the smaller side first. */
export function ascending(relation: RelationNode): RelationNode {
  const { signs, sides } = relation;
  if (!signs.every((sign) => sign === ">" || sign === ">=")) return relation;
  return { ...relation, signs: signs.map((sign) => sign.replace(">", "<")).reverse(), sides: [...sides].reverse() };
}

/** `1 < x \le 3` as (1, 3], `x < 5` as (-infinity, 5); undefined for relations of another form. */
export function intervalOf(node: LatexNode): ListNode | undefined {
  if (node.kind !== "relation") return undefined;
  const { signs, sides } = ascending(node);
  if (!signs.every((sign) => sign === "<" || sign === "<=")) return undefined;
  const place = sides.findIndex(({ kind }) => kind === "symbol");
  if (place < 0 || place > 1 || sides.length - place > 2) return undefined;
  const infinity: LatexNode = { kind: "symbol", name: "infty" };
  const [low, high] = [sides[place - 1], sides[place + 1]];
  return {
    kind: "list",
    open: low && signs[place - 1] === "<=" ? "[" : "(",
    close: high && signs[place] === "<=" ? "]" : ")",
    members: [low ?? call("negate", infinity), high ?? infinity],
  };
}

/** Inequalities as a union of intervals. */
export function asIntervals({ open, members }: ListNode): ListNode | undefined {
  const intervals = members.map(intervalOf);
  if (open !== "" || !intervals.every((each) => each !== undefined)) return undefined;
  return intervals.length === 1 ? intervals[0] : { kind: "list", open: UNION, close: UNION, members: intervals };
}
