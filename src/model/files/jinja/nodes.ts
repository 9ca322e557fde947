/** The syntax tree of a template, as parser.ts makes it. */

/** Arguments of a call, a filter or a test. */
export interface Arguments {
  readonly args: readonly Node[];
  readonly named: readonly (readonly [name: string, value: Node])[];
  /** `*args` */
  readonly spread: Node | undefined;
  /** `**kwargs` */
  readonly namedSpread: Node | undefined;
}

/** Parameters of a macro or a call block: a name, and a default. */
export type Parameters = readonly (readonly [name: string, fallback: Node | undefined])[];

/** What a loop, a `set` or a `with` assigns to. */
export type Target =
  | { readonly type: "Name"; readonly name: string }
  | { readonly type: "Field"; readonly object: string; readonly name: string }
  | { readonly type: "Tuple"; readonly items: readonly Target[] };

export interface Filter extends Arguments {
  readonly type: "Filter";
  /** Undefined for the text of a block. */
  readonly value: Node | undefined;
  readonly name: string;
}
export interface Call extends Arguments {
  readonly type: "Call";
  readonly callee: Node;
}
export interface Slice {
  readonly type: "Slice";
  readonly start: Node | undefined;
  readonly stop: Node | undefined;
  readonly step: Node | undefined;
}
export interface For {
  readonly type: "For";
  readonly target: Target;
  readonly items: Node;
  readonly test: Node | undefined;
  readonly body: readonly Node[];
  readonly otherwise: readonly Node[];
  readonly isRecursive: boolean;
}
export interface Macro {
  readonly type: "Macro";
  /** `caller` for a call block. */
  readonly name: string;
  readonly parameters: Parameters;
  readonly body: readonly Node[];
  /** Which of `caller`, `varargs` and `kwargs` the body reads: without, a macro takes no such arguments. */
  readonly uses: ReadonlySet<string>;
}

export type Statement =
  | {
      readonly type: "If";
      readonly branches: readonly (readonly [test: Node, body: readonly Node[]])[];
      readonly otherwise: readonly Node[];
    }
  | For
  | { readonly type: "Set"; readonly target: Target; readonly value: Node }
  | {
      readonly type: "SetBlock";
      readonly target: Target;
      readonly filter: Filter | undefined;
      readonly body: readonly Node[];
    }
  | Macro
  | { readonly type: "CallBlock"; readonly call: Call; readonly macro: Macro }
  | { readonly type: "FilterBlock"; readonly filter: Filter; readonly body: readonly Node[] }
  | {
      readonly type: "With";
      readonly names: readonly (readonly [target: Target, value: Node])[];
      readonly body: readonly Node[];
    }
  | { readonly type: "Block"; readonly body: readonly Node[]; readonly isScoped: boolean }
  | { readonly type: "Break" | "Continue" };

export type Expression =
  | { readonly type: "Text"; readonly value: string }
  | { readonly type: "Integer"; readonly value: number | bigint }
  | { readonly type: "Float"; readonly value: number }
  | { readonly type: "Constant"; readonly value: boolean | null }
  | { readonly type: "Name"; readonly name: string }
  | { readonly type: "List" | "Tuple"; readonly items: readonly Node[] }
  | { readonly type: "Dict"; readonly pairs: readonly (readonly [key: Node, value: Node])[] }
  | {
      readonly type: "Compare";
      readonly first: Node;
      readonly others: readonly (readonly [operator: string, value: Node])[];
    }
  | { readonly type: "Concat"; readonly parts: readonly Node[] }
  | { readonly type: "Binary" | "And" | "Or"; readonly operator: string; readonly left: Node; readonly right: Node }
  | { readonly type: "Unary"; readonly operator: string; readonly value: Node }
  | { readonly type: "Conditional"; readonly test: Node; readonly yes: Node; readonly no: Node | undefined }
  | { readonly type: "Attribute"; readonly object: Node; readonly name: string }
  | { readonly type: "Item"; readonly object: Node; readonly key: Node }
  | Slice
  | Call
  | Filter
  | (Arguments & { readonly type: "Test"; readonly value: Node; readonly name: string });

export type Node = Statement | Expression;
