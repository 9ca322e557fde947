/** The syntax tree of `@huggingface/jinja`, whose types do not resolve outside a bundler. */

type Operator = { readonly value: string };
export type Identifier = { readonly type: "Identifier"; readonly value: string };
export type Keyword = { readonly type: "KeywordArgumentExpression"; readonly key: Identifier; readonly value: Node };
export type Call = { readonly type: "CallExpression"; readonly callee: Node; readonly args: readonly Argument[] };
export type Argument =
  | Node
  | Keyword
  | { readonly type: "SpreadExpression"; readonly argument: Node }
  | { readonly type: "KeywordSpreadExpression"; readonly argument: Node };
export type Slice = {
  readonly type: "SliceExpression";
  readonly start?: Node;
  readonly stop?: Node;
  readonly step?: Node;
};
export type Select = { readonly type: "SelectExpression"; readonly lhs: Node; readonly test: Node };
export type Target = Identifier | { readonly type: "TupleLiteral"; readonly value: readonly Node[] };
export type Parameter = Identifier | Keyword;
export type Member = {
  readonly type: "MemberExpression";
  readonly object: Node;
  readonly property: Node | Slice;
  readonly computed: boolean;
};
export type For = {
  readonly type: "For";
  readonly loopvar: Target;
  readonly iterable: Node;
  readonly body: readonly Node[];
  readonly defaultBlock: readonly Node[];
};
export type Macro = {
  readonly type: "Macro";
  readonly name: Identifier;
  readonly args: readonly Parameter[];
  readonly body: readonly Node[];
};
export type CallBlock = {
  readonly type: "CallStatement";
  readonly call: Call;
  readonly callerArgs: readonly Parameter[] | null;
  readonly body: readonly Node[];
};
export type SetStatement = {
  readonly type: "Set";
  readonly assignee: Node;
  readonly value: Node | null;
  readonly body: readonly Node[];
};

export type Statement =
  | { readonly type: "Program"; readonly body: readonly Node[] }
  | { readonly type: "If"; readonly test: Node; readonly body: readonly Node[]; readonly alternate: readonly Node[] }
  | For
  | SetStatement
  | Macro
  | CallBlock
  | { readonly type: "FilterStatement"; readonly filter: Identifier | Call; readonly body: readonly Node[] }
  | { readonly type: "Break" | "Continue" | "Comment" };

export type Expression =
  | Identifier
  | { readonly type: "StringLiteral"; readonly value: string }
  | { readonly type: "IntegerLiteral" | "FloatLiteral"; readonly value: number }
  | { readonly type: "ArrayLiteral" | "TupleLiteral"; readonly value: readonly Node[] }
  | { readonly type: "ObjectLiteral"; readonly value: ReadonlyMap<Node, Node> }
  | { readonly type: "BinaryExpression"; readonly operator: Operator; readonly left: Node; readonly right: Node }
  | { readonly type: "UnaryExpression"; readonly operator: Operator; readonly argument: Node }
  | { readonly type: "FilterExpression"; readonly operand: Node; readonly filter: Identifier | Call }
  | { readonly type: "TestExpression"; readonly operand: Node; readonly negate: boolean; readonly test: Identifier }
  | { readonly type: "Ternary"; readonly condition: Node; readonly trueExpr: Node; readonly falseExpr: Node }
  | Select
  | Member
  | Call;

export type Node = Statement | Expression;
