/** The syntax tree of a template, as parser.ts makes it. */

/** Arguments of a call, a filter or a test. */
export interface CallArguments {
  readonly args: readonly JinjaNode[];
  readonly named: readonly (readonly [name: string, value: JinjaNode])[];
  /** `*args` */
  readonly spread: JinjaNode | undefined;
  /** `**kwargs` */
  readonly namedSpread: JinjaNode | undefined;
}

/** Parameters of a macro or a call block: a name, and a default. */
export type Parameters = readonly (readonly [name: string, fallback: JinjaNode | undefined])[];

/** Target that a loop, a `set` or a `with` assigns to. */
export type AssignmentTarget =
  | { readonly type: "Name"; readonly name: string }
  | { readonly type: "Field"; readonly object: string; readonly name: string }
  | { readonly type: "Tuple"; readonly items: readonly AssignmentTarget[] };

export interface FilterNode extends CallArguments {
  readonly type: "Filter";
  /** Undefined for the text of a block. */
  readonly value: JinjaNode | undefined;
  readonly name: string;
}
export interface JinjaCall extends CallArguments {
  readonly type: "Call";
  readonly callee: JinjaNode;
}
export interface Slice {
  readonly type: "Slice";
  readonly start: JinjaNode | undefined;
  readonly stop: JinjaNode | undefined;
  readonly step: JinjaNode | undefined;
}
export interface For {
  readonly type: "For";
  readonly target: AssignmentTarget;
  readonly items: JinjaNode;
  readonly test: JinjaNode | undefined;
  readonly body: readonly JinjaNode[];
  readonly otherwise: readonly JinjaNode[];
  readonly isRecursive: boolean;
}
export interface Macro {
  readonly type: "Macro";
  /** `caller` for a call block. */
  readonly name: string;
  readonly parameters: Parameters;
  readonly body: readonly JinjaNode[];
  /** Those of `caller`, `varargs` and `kwargs` that the body reads: without, a macro takes no such arguments. */
  readonly uses: ReadonlySet<string>;
}

export type StatementNode =
  | {
      readonly type: "If";
      readonly branches: readonly (readonly [test: JinjaNode, body: readonly JinjaNode[]])[];
      readonly otherwise: readonly JinjaNode[];
    }
  | For
  | { readonly type: "Set"; readonly target: AssignmentTarget; readonly value: JinjaNode }
  | {
      readonly type: "SetBlock";
      readonly target: AssignmentTarget;
      readonly filter: FilterNode | undefined;
      readonly body: readonly JinjaNode[];
    }
  | Macro
  | { readonly type: "CallBlock"; readonly call: JinjaCall; readonly macro: Macro }
  | { readonly type: "FilterBlock"; readonly filter: FilterNode; readonly body: readonly JinjaNode[] }
  | {
      readonly type: "With";
      readonly names: readonly (readonly [target: AssignmentTarget, value: JinjaNode])[];
      readonly body: readonly JinjaNode[];
    }
  | { readonly type: "Block"; readonly body: readonly JinjaNode[]; readonly isScoped: boolean }
  | { readonly type: "Break" | "Continue" };

export type Expression =
  | { readonly type: "Text"; readonly value: string }
  | { readonly type: "Integer"; readonly value: number | bigint }
  | { readonly type: "Float"; readonly value: number }
  | { readonly type: "Constant"; readonly value: boolean | null }
  | { readonly type: "Name"; readonly name: string }
  | { readonly type: "List" | "Tuple"; readonly items: readonly JinjaNode[] }
  | { readonly type: "Dict"; readonly pairs: readonly (readonly [key: JinjaNode, value: JinjaNode])[] }
  | {
      readonly type: "Compare";
      readonly first: JinjaNode;
      readonly others: readonly (readonly [operator: string, value: JinjaNode])[];
    }
  | { readonly type: "Concat"; readonly parts: readonly JinjaNode[] }
  | {
      readonly type: "Binary" | "And" | "Or";
      readonly operator: string;
      readonly left: JinjaNode;
      readonly right: JinjaNode;
    }
  | { readonly type: "Unary"; readonly operator: string; readonly value: JinjaNode }
  | {
      readonly type: "Conditional";
      readonly test: JinjaNode;
      readonly yes: JinjaNode;
      readonly no: JinjaNode | undefined;
    }
  | { readonly type: "Attribute"; readonly object: JinjaNode; readonly name: string }
  | { readonly type: "Item"; readonly object: JinjaNode; readonly key: JinjaNode }
  | Slice
  | JinjaCall
  | FilterNode
  | (CallArguments & { readonly type: "Test"; readonly value: JinjaNode; readonly name: string });

export type JinjaNode = StatementNode | Expression;
