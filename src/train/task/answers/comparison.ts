/** Compares answers that have been read: as lists, as relations, by value. */
import type { CallNode, LatexNode, ListNode, RelationNode } from "./latex/nodes.ts";
import { answerList, ascending, asIntervals, hasTwoSigns, isUnion, valueSaid } from "./latex/shape.ts";
import { WorkBudget } from "./value/budget.ts";
import { equationsEqual, expressionsEqual } from "./value/equal_values.ts";

export class Comparison {
  /** Work budget of everything that one comparison evaluates. */
  private readonly budget = new WorkBudget();

  /** @throws {NoValue} where the work is spent */
  same(a: LatexNode, b: LatexNode): boolean {
    if (a.kind === "relation" && b.kind !== "relation") return this.sameAsSaid(a, b);
    if (b.kind === "relation" && a.kind !== "relation") return this.sameAsSaid(b, a);
    return this.sameLists(answerList(a), answerList(b));
  }

  private sameLists(list: ListNode, other: ListNode): boolean {
    let [p, q] = [list, other];
    if (isSpan(q)) p = asIntervals(p) ?? p;
    else if (isSpan(p)) q = asIntervals(q) ?? q;
    if (p.members.length !== q.members.length) return false;
    const isOne = p.open === "" && q.open === "" && p.members.length === 1;
    return isOne ? this.sameMember(p.members[0]!, q.members[0]!) : this.sameList(p, q);
  }

  private sameList(p: ListNode, q: ListNode): boolean {
    const isSameKind = p.open === q.open && p.close === q.close;
    const inOrder = () => p.members.every((member, i) => this.sameMember(member, q.members[i]!));
    if (isOrdered(p) && isOrdered(q)) return isSameKind && inOrder();
    // "1, 2" is an answer for the pair (1, 2).
    if (isOrdered(p) || isOrdered(q))
      return (isPoint(p) || isPoint(q)) && (p.open === "" || q.open === "") && inOrder();
    return (p.open === "cup") === (q.open === "cup") && this.inAnyOrder(p.members, q.members);
  }

  private inAnyOrder(a: readonly LatexNode[], b: readonly LatexNode[]): boolean {
    const left = [...b];
    for (const member of a) {
      const at = left.findIndex((each) => this.sameMember(member, each));
      if (at < 0) return false;
      left.splice(at, 1);
    }
    return left.length === 0;
  }

  private sameMember(a: LatexNode, b: LatexNode): boolean {
    this.budget.spend(10);
    if (a.kind === "relation" && b.kind === "relation") return this.sameRelation(ascending(a), ascending(b));
    if (a.kind === "relation" || b.kind === "relation" || isCompound(a) || isCompound(b)) return this.same(a, b);
    if (a.kind === "matrix" || b.kind === "matrix") return this.sameMatrix(a, b);
    if (a.kind === "text" || b.kind === "text") return a.kind === "text" && b.kind === "text" && a.text === b.text;
    if (isCall(a, "base") || isCall(b, "base")) return sameNumeral(a, b);
    if (isCall(a, "percent") || isCall(b, "percent")) return this.samePercent(a, b);
    if (isSetOperation(a) || isSetOperation(b)) return this.sameOperation(a, b);
    return expressionsEqual(a, b, this.budget);
  }

  /** A relation and an answer that is none. */
  private sameAsSaid(relation: RelationNode, other: LatexNode): boolean {
    const value = valueSaid(relation);
    if (value) return this.same(value, other);
    return isCompound(other) && this.sameLists(answerList(relation), answerList(other));
  }

  private sameRelation(a: RelationNode, b: RelationNode): boolean {
    const [p, q] = [shortened(a), shortened(b)];
    if (p.signs.join() !== q.signs.join()) return false;
    if (p.sides.every((side, i) => this.same(side, q.sides[i]!))) return true;
    if (p.sides.length > 2 || p.signs[0] === "in") return false;
    const sides = [...p.sides, ...q.sides] as [LatexNode, LatexNode, LatexNode, LatexNode];
    return equationsEqual(sides, { budget: this.budget, isPositive: p.signs[0]!.startsWith("<") });
  }

  private sameMatrix(a: LatexNode, b: LatexNode): boolean {
    if (a.kind !== "matrix" || b.kind !== "matrix") return false;
    const isShaped = a.rows.length === b.rows.length && a.rows.every((row, i) => row.length === b.rows[i]!.length);
    return isShaped && a.rows.every((row, i) => row.every((entry, j) => this.same(entry, b.rows[i]![j]!)));
  }

  /** `50\%` is 50, as the MATH data set has it, and 1/2. */
  private samePercent(a: LatexNode, b: LatexNode): boolean {
    const [p, q] = [a, b].map((each) => (isCall(each, "percent") ? each.of[0]! : each)) as [LatexNode, LatexNode];
    return expressionsEqual(p, q, this.budget) || expressionsEqual(a, b, this.budget);
  }

  private sameOperation(a: LatexNode, b: LatexNode): boolean {
    if (a.kind !== "call" || b.kind !== "call" || a.name !== b.name) return false;
    return a.of.every((each, i) => this.same(each, b.of[i]!));
  }
}

function isOrdered({ open }: ListNode): boolean {
  return open === "(" || open === "[";
}

function isPoint({ open, close }: ListNode): boolean {
  return open === "(" && close === ")";
}

/** An interval or a union: what inequalities are compared with. */
function isSpan(list: ListNode): boolean {
  return list.open === "cup" || (isOrdered(list) && list.members.length === 2);
}

function isCompound(node: LatexNode): boolean {
  return node.kind === "list" || isUnion(node) || hasTwoSigns(node);
}

function isCall(node: LatexNode, name: string): node is CallNode {
  return node.kind === "call" && node.name === name;
}

function isSetOperation(node: LatexNode): boolean {
  return isCall(node, "cap") || isCall(node, "setminus");
}

/** `x = a = 5` is x = 5. */
function shortened(relation: RelationNode): RelationNode {
  if (relation.signs.length < 2 || !relation.signs.every((sign) => sign === "=")) return relation;
  return { ...relation, signs: ["="], sides: [relation.sides[0]!, relation.sides.at(-1)!] };
}

/** The digits of a numeral, with its base or without: 101 in base 2 is neither 5 nor 101 in base 3. */
function sameNumeral(a: LatexNode, b: LatexNode): boolean {
  const [p, q] = [a, b].map((each) => (isCall(each, "base") ? each.of : [each])) as [LatexNode[], LatexNode[]];
  const isSame = (x: LatexNode | undefined, y: LatexNode | undefined) =>
    !x || !y || (x.kind === "number" && y.kind === "number" && x.digits === y.digits && x.decimals === y.decimals);
  return isSame(p[0], q[0]) && isSame(p[1], q[1]);
}
