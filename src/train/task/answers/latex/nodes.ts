/** Nodes of the expression that an answer is read as. */

export type LatexNode = NumberNode | SymbolNode | CallNode | ListNode | RelationNode | MatrixNode | TextNode;

export interface NumberNode {
  readonly kind: "number";
  /** The number is `digits * 10^-decimals`. */
  readonly digits: bigint;
  readonly decimals: number;
}

export interface SymbolNode {
  readonly kind: "symbol";
  readonly name: string;
}

/** An operator or a function by its name: `add`, `multiply`, `divide`, `power`, `sqrt`, `sin`, ... */
export interface CallNode {
  readonly kind: "call";
  readonly name: string;
  readonly of: readonly LatexNode[];
}

/** Brackets are empty for members without brackets, and `{` for a set. */
export interface ListNode {
  readonly kind: "list";
  readonly open: string;
  readonly close: string;
  readonly members: readonly LatexNode[];
}

/** `1 < x <= 3`: three sides, two signs. */
export interface RelationNode {
  readonly kind: "relation";
  readonly signs: readonly string[];
  readonly sides: readonly LatexNode[];
}

export interface MatrixNode {
  readonly kind: "matrix";
  readonly rows: readonly (readonly LatexNode[])[];
}

export interface TextNode {
  readonly kind: "text";
  /** Lower case, single spaces. */
  readonly text: string;
}

export function call(name: string, ...of: readonly LatexNode[]): CallNode {
  return { kind: "call", name, of };
}

export function integerNode(value: number): NumberNode {
  return { kind: "number", digits: BigInt(value), decimals: 0 };
}

/** `12.50` is 1250 with two decimals. */
export function numberNode(text: string): NumberNode {
  const [whole, fraction = ""] = text.split(".") as [string, string?];
  return { kind: "number", digits: BigInt(`${whole}${fraction}` || "0"), decimals: fraction.length };
}
