/** A template's tokens as a tree, by the grammar of Jinja2 3.1. */
import { GENERATION, type JinjaToken, tokenize } from "./lexer.ts";
import type { AssignmentTarget, CallArguments, FilterNode, JinjaCall, JinjaNode, Macro, Parameters } from "./nodes.ts";
import { LONGEST_INT, whole } from "./value.ts";

/** Brackets and blocks in each other. Python ends at fewer than 100 brackets. */
const DEEPEST = 200;
const NO_ARGUMENTS: CallArguments = { args: [], named: [], spread: undefined, namedSpread: undefined };
const CONSTANTS: Readonly<Record<string, boolean | null>> = {
  true: true,
  True: true,
  false: false,
  False: false,
  none: null,
  None: null,
};
const COMPARING = new Set(["==", "!=", "<", "<=", ">", ">="]);
/** Names that a macro takes arguments for where its body reads them. */
const SPECIAL = new Set(["caller", "varargs", "kwargs"]);
/** Tags that load another template. */
const REFUSED = new Set(["include", "import", "from", "extends"]);

export interface Template {
  readonly body: readonly JinjaNode[];
  readonly hasGenerationBlocks: boolean;
}

/** @throws SyntaxError, with the line. */
export function parseTemplate(source: string): Template {
  const { tokens, text } = tokenize(source);
  return new Parser(tokens, text).program();
}

class Parser {
  private readonly tokens: readonly JinjaToken[];
  private readonly source: string;
  private at = 0;
  private depth = 0;
  /** Loops around, within the same macro: what `break` may leave. */
  private loops = 0;
  /** Loops around, where `loop` cannot be set. */
  private allLoops = 0;
  private hasGenerationBlocks = false;
  private readonly blocks = new Set<string>();
  /** Special names that the macros around read. */
  private uses: Set<string>[] = [];

  constructor(tokens: readonly JinjaToken[], source: string) {
    this.tokens = tokens;
    this.source = source;
  }

  program(): Template {
    const body = this.statements([]);
    return { body, hasGenerationBlocks: this.hasGenerationBlocks };
  }

  private get token(): JinjaToken {
    return this.tokens[this.at]!;
  }

  private is(value: string, ahead = 0): boolean {
    const token = this.tokens[this.at + ahead]!;
    return token.value === value && (token.type === "name" || token.type === "operator");
  }

  private skip(value: string): boolean {
    if (!this.is(value)) return false;
    this.at++;
    return true;
  }

  private next(): JinjaToken {
    return this.tokens[this.at++]!;
  }

  private expect(value: string): void {
    if (!this.skip(value)) this.fail(`expected '${value}', got ${described(this.token)}`);
  }

  private name(): string {
    if (this.token.type !== "name") this.fail(`expected a name, got ${described(this.token)}`);
    return this.next().value;
  }

  private fail(what: string, at: JinjaToken = this.token): never {
    const line = this.source.slice(0, at.at).split("\n").length;
    throw new SyntaxError(`line ${line}: ${what}`);
  }

  private nested<T>(read: () => T): T {
    if (++this.depth > DEEPEST) this.fail(`more than ${DEEPEST} brackets or blocks are in each other`);
    const result = read();
    this.depth--;
    return result;
  }

  /** Up to a tag of one of these names, which is read up to its name; to the end where there is none. */
  private statements(ends: readonly string[]): JinjaNode[] {
    const opening = this.tokens[this.at - 1];
    const body: JinjaNode[] = [];
    for (;;) {
      const { type, value } = this.next();
      if (type === "end") {
        if (ends.length > 0) this.fail(`the block has no ${ends.at(-1)}`, opening);
        return body;
      }
      if (type === "data") body.push({ type: "Text", value });
      else if (type === "expression") {
        body.push(this.tuple());
        this.close();
      } else {
        if (ends.some((end) => this.is(end))) return body;
        body.push(...this.nested(() => this.statement()));
        this.close();
      }
    }
  }

  private close(): void {
    if (this.token.type !== "close") this.fail(`expected the end of the tag, got ${described(this.token)}`);
    this.at++;
  }

  /** The rest of a tag, and the block up to its end, whose tag is read up to its end. */
  private block(...ends: readonly string[]): JinjaNode[] {
    this.skip(":");
    this.close();
    return this.statements(ends);
  }

  private blockTo(end: string): JinjaNode[] {
    const body = this.block(end);
    this.at++;
    return body;
  }

  private statement(): readonly JinjaNode[] {
    const tag = this.token;
    const name = this.name();
    switch (name) {
      case "if":
        return [this.condition()];
      case "for":
        return [this.loop()];
      case "set":
        return [this.assignment()];
      case "macro":
        return [this.macro(this.name(), () => this.parameters(), "endmacro")];
      case "call":
        return [this.callBlock()];
      case "filter": {
        let filter = this.filter(undefined);
        while (this.skip("|")) filter = this.filter(filter);
        return [{ type: "FilterBlock", filter, body: this.blockTo("endfilter") }];
      }
      case "with":
        return [this.with()];
      case "block":
        return [this.namedBlock()];
      case "autoescape":
        return [this.autoescape()];
      case "print":
        return this.print();
      case "break":
      case "continue":
        if (this.loops === 0) this.fail(`${name} stands outside a loop`, tag);
        return [{ type: name === "break" ? "Break" : "Continue" }];
      case "generation":
        return [this.generation()];
      default:
        return this.fail(REFUSED.has(name) ? `the tag ${name} is not supported` : `unexpected tag '${name}'`, tag);
    }
  }

  private condition(): JinjaNode {
    const branches: [JinjaNode, JinjaNode[]][] = [];
    for (let end = "elif"; ; ) {
      if (end === "endif") return { type: "If", branches, otherwise: [] };
      if (end === "else") return { type: "If", branches, otherwise: this.blockTo("endif") };
      branches.push([this.tuple({ isPlain: true }), this.block("elif", "else", "endif")]);
      end = this.next().value;
    }
  }

  private loop(): JinjaNode {
    this.allLoops++;
    const target = this.target();
    this.expect("in");
    this.allLoops--;
    const items = this.tuple({ isPlain: true });
    const test = this.skip("if") ? this.expression() : undefined;
    const isRecursive = this.skip("recursive");
    this.loops++;
    this.allLoops++;
    const body = this.block("endfor", "else");
    this.loops--;
    // A recursive loop is a function of its own, which `break` does not leave.
    const { loops } = this;
    if (isRecursive) this.loops = 0;
    const otherwise = this.next().value === "else" ? this.blockTo("endfor") : [];
    this.loops = loops;
    this.allLoops--;
    return { type: "For", target, items, test, body, otherwise, isRecursive };
  }

  private assignment(): JinjaNode {
    const target = this.target(true);
    if (this.skip("=")) return { type: "Set", target, value: this.tuple() };
    let filter: FilterNode | undefined;
    while (this.skip("|")) filter = this.filter(filter);
    return { type: "SetBlock", target, filter, body: this.blockTo("endset") };
  }

  /** A body with parameters, which is a scope of its own. */
  private macro(name: string, signature: () => Parameters, end: string): Macro {
    const { loops } = this;
    this.loops = 0;
    const parameters = signature();
    const uses = new Set<string>();
    this.uses.push(uses);
    const body = this.blockTo(end);
    this.uses.pop();
    this.loops = loops;
    for (const [parameter] of parameters) if (parameter !== "caller") uses.delete(parameter);
    return { type: "Macro", name, parameters, body, uses };
  }

  private parameters(): Parameters {
    const out: [string, JinjaNode | undefined][] = [];
    this.expect("(");
    while (!this.is(")")) {
      if (out.length > 0) this.expect(",");
      const name = this.name();
      const fallback = this.skip("=") ? this.expression() : undefined;
      if (!fallback && out.at(-1)?.[1]) this.fail(`the parameter ${name} has no default and follows one that has`);
      out.push([name, fallback]);
    }
    this.expect(")");
    return out;
  }

  private callBlock(): JinjaNode {
    const parameters = this.is("(") ? this.parameters() : [];
    const start = this.token;
    const call = this.expression();
    if (call.type !== "Call") this.fail("expected a call", start);
    return { type: "CallBlock", call, macro: this.macro("caller", () => parameters, "endcall") };
  }

  /** transformers makes a call block of it. */
  private generation(): JinjaNode {
    this.hasGenerationBlocks = true;
    const call: JinjaCall = { type: "Call", callee: { type: "Name", name: GENERATION }, ...NO_ARGUMENTS };
    return { type: "CallBlock", call, macro: this.macro("caller", () => [], "endgeneration") };
  }

  private with(): JinjaNode {
    const names: [AssignmentTarget, JinjaNode][] = [];
    while (this.token.type !== "close" && !this.is(":")) {
      if (names.length > 0) this.expect(",");
      const target = this.target();
      this.expect("=");
      names.push([target, this.expression()]);
    }
    return { type: "With", names, body: this.blockTo("endwith") };
  }

  /** Escapes are off, and stay so. */
  private autoescape(): JinjaNode {
    if (!this.skip("false") && !this.skip("False")) this.fail("the tag autoescape is not supported but for false");
    return { type: "With", names: [], body: this.blockTo("endautoescape") };
  }

  private namedBlock(): JinjaNode {
    const { loops } = this;
    const name = this.name();
    if (this.blocks.has(name)) this.fail(`the block ${name} is there twice`);
    this.blocks.add(name);
    const isScoped = this.skip("scoped");
    this.loops = 0;
    const body = this.blockTo("endblock");
    this.loops = loops;
    this.skip(name);
    return { type: "Block", body, isScoped };
  }

  private print(): JinjaNode[] {
    const out: JinjaNode[] = [];
    while (this.token.type !== "close") {
      if (out.length > 0) this.expect(",");
      out.push(this.expression());
    }
    return out;
  }

  /** Names, fields of a namespace where they are allowed, and tuples of both. */
  private target(withFields = false): AssignmentTarget {
    const start = this.token;
    const items: AssignmentTarget[] = [];
    let isTuple = false;
    do {
      if (items.length > 0 && this.isTupleEnd()) break;
      items.push(this.oneTarget(withFields));
      if (this.is(",")) isTuple = true;
    } while (this.skip(","));
    if (items.length === 0) this.fail("expected a name to set", start);
    return isTuple ? { type: "Tuple", items } : items[0]!;
  }

  private oneTarget(withFields: boolean): AssignmentTarget {
    const start = this.token;
    if (this.skip("(")) {
      const inner = this.nested(() => this.target());
      this.expect(")");
      return inner;
    }
    const name = this.name();
    if (Object.hasOwn(CONSTANTS, name)) this.fail(`${name} cannot be set`, start);
    if (withFields && this.skip(".")) return { type: "Field", object: name, name: this.name() };
    if (name === "loop" && this.allLoops > 0) this.fail("loop cannot be set within a loop", start);
    return { type: "Name", name };
  }

  private isTupleEnd(): boolean {
    return this.token.type === "close" || this.is(")");
  }

  /** Expressions with commas between them, or one. `isPlain` leaves `a if b` out. */
  private tuple(options: { isPlain?: boolean; inBrackets?: boolean } = {}): JinjaNode {
    const items: JinjaNode[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.expect(",");
      if (this.isTupleEnd()) break;
      items.push(options.isPlain ? this.nested(() => this.or()) : this.expression());
      if (!this.is(",")) break;
      isTuple = true;
    }
    if (!isTuple && items.length === 1) return items[0]!;
    if (!isTuple && !options.inBrackets) this.fail(`expected an expression, got ${described(this.token)}`);
    return { type: "Tuple", items };
  }

  private expression(): JinjaNode {
    return this.nested(() => {
      let value = this.or();
      while (this.skip("if")) {
        const test = this.or();
        value = { type: "Conditional", test, yes: value, no: this.skip("else") ? this.expression() : undefined };
      }
      return value;
    });
  }

  private or(): JinjaNode {
    let left = this.and();
    while (this.skip("or")) left = { type: "Or", operator: "or", left, right: this.and() };
    return left;
  }

  private and(): JinjaNode {
    let left = this.not();
    while (this.skip("and")) left = { type: "And", operator: "and", left, right: this.not() };
    return left;
  }

  private not(): JinjaNode {
    if (!this.skip("not")) return this.comparison();
    return { type: "Unary", operator: "not", value: this.nested(() => this.not()) };
  }

  private comparison(): JinjaNode {
    const first = this.sum();
    const others: [string, JinjaNode][] = [];
    for (;;) {
      const { type, value } = this.token;
      if (type === "operator" && COMPARING.has(value)) {
        this.at++;
        others.push([value, this.sum()]);
      } else if (this.skip("in")) others.push(["in", this.sum()]);
      else if (this.is("not") && this.is("in", 1)) {
        this.at += 2;
        others.push(["not in", this.sum()]);
      } else return others.length > 0 ? { type: "Compare", first, others } : first;
    }
  }

  /** Operators of one precedence, from the left. */
  private chain(operators: readonly string[], read: () => JinjaNode): JinjaNode {
    let left = read();
    while (this.token.type === "operator" && operators.includes(this.token.value))
      left = { type: "Binary", operator: this.next().value, left, right: read() };
    return left;
  }

  private sum(): JinjaNode {
    return this.chain(["+", "-"], () => this.concatenation());
  }

  private concatenation(): JinjaNode {
    const parts = [this.product()];
    while (this.skip("~")) parts.push(this.product());
    return parts.length > 1 ? { type: "Concat", parts } : parts[0]!;
  }

  private product(): JinjaNode {
    // In Jinja2 powers too go from the left, and a sign binds more than they do.
    return this.chain(["*", "/", "//", "%"], () => this.chain(["**"], () => this.unary(true)));
  }

  private unary(withFilters: boolean): JinjaNode {
    const isSigned = this.is("-") || this.is("+");
    const operator = isSigned ? this.next().value : "";
    const value: JinjaNode = isSigned
      ? { type: "Unary", operator, value: this.nested(() => this.unary(false)) }
      : this.primary();
    const whole = this.postfix(value);
    return withFilters ? this.filtered(whole) : whole;
  }

  private primary(): JinjaNode {
    const token = this.token;
    const { type, value } = token;
    if (type === "name") return this.read();
    if (type === "string") return this.string();
    if (type === "integer" || type === "float") {
      this.at++;
      if (type === "float") return { type: "Float", value: Number(value) };
      if (value.length > LONGEST_INT) this.fail(`a number has more than ${LONGEST_INT} digits`, token);
      return { type: "Integer", value: whole(BigInt(value)) };
    }
    if (this.skip("(")) {
      const inner = this.nested(() => this.tuple({ inBrackets: true }));
      this.expect(")");
      return inner;
    }
    if (this.skip("[")) return { type: "List", items: this.listed("]", () => this.expression()) };
    if (this.skip("{")) return { type: "Dict", pairs: this.listed("}", () => this.pair()) };
    return this.fail(`unexpected ${described(token)}`);
  }

  private read(): JinjaNode {
    const name = this.name();
    if (Object.hasOwn(CONSTANTS, name)) return { type: "Constant", value: CONSTANTS[name]! };
    if (SPECIAL.has(name)) for (const uses of this.uses) uses.add(name);
    return { type: "Name", name };
  }

  private string(): JinjaNode {
    let value = "";
    while (this.token.type === "string") value += this.next().value;
    return { type: "Text", value };
  }

  private listed<T>(end: string, read: () => T): T[] {
    const out: T[] = [];
    while (!this.is(end)) {
      if (out.length > 0) this.expect(",");
      if (this.is(end)) break;
      out.push(read());
    }
    this.expect(end);
    return out;
  }

  private pair(): readonly [JinjaNode, JinjaNode] {
    const key = this.expression();
    this.expect(":");
    return [key, this.expression()];
  }

  private postfix(start: JinjaNode): JinjaNode {
    let node = start;
    for (;;) {
      if (this.skip(".")) node = this.member(node);
      else if (this.skip("[")) node = { type: "Item", object: node, key: this.subscript() };
      else if (this.is("(")) node = { type: "Call", callee: node, ...this.arguments() };
      else return node;
    }
  }

  private member(object: JinjaNode): JinjaNode {
    const token = this.next();
    if (token.type === "name") return { type: "Attribute", object, name: token.value };
    if (token.type !== "integer") this.fail("expected a name or a number after the point", token);
    return { type: "Item", object, key: { type: "Integer", value: whole(BigInt(token.value)) } };
  }

  private subscript(): JinjaNode {
    const keys: JinjaNode[] = [];
    while (!this.is("]")) {
      if (keys.length > 0) this.expect(",");
      keys.push(this.slice());
    }
    this.expect("]");
    return keys.length === 1 ? keys[0]! : { type: "Tuple", items: keys };
  }

  private slice(): JinjaNode {
    const start = this.is(":") ? undefined : this.expression();
    if (!this.skip(":")) return start!;
    const part = (): JinjaNode | undefined =>
      this.is("]") || this.is(",") || this.is(":") ? undefined : this.expression();
    const stop = part();
    return { type: "Slice", start, stop, step: this.skip(":") ? part() : undefined };
  }

  private arguments(): CallArguments {
    const start = this.token;
    const args: JinjaNode[] = [];
    const named: [string, JinjaNode][] = [];
    const names = new Set<string>();
    let spread: JinjaNode | undefined;
    let namedSpread: JinjaNode | undefined;
    const check = (isFit: boolean) => isFit || this.fail("the arguments of the call are in the wrong order", start);
    this.expect("(");
    for (let isFirst = true; !this.is(")"); isFirst = false) {
      if (!isFirst) this.expect(",");
      if (this.is(")")) break;
      if (this.skip("*")) {
        check(!spread && !namedSpread);
        spread = this.expression();
      } else if (this.skip("**")) {
        check(!namedSpread);
        namedSpread = this.expression();
      } else if (this.token.type === "name" && this.is("=", 1)) {
        check(!namedSpread);
        const name = this.name();
        this.at++;
        if (names.has(name)) this.fail(`the argument ${name} is there twice`, start);
        names.add(name);
        named.push([name, this.expression()]);
      } else {
        check(!spread && !namedSpread && named.length === 0);
        args.push(this.expression());
      }
    }
    this.expect(")");
    return { args, named, spread, namedSpread };
  }

  /** Filters and tests after a value. */
  private filtered(start: JinjaNode): JinjaNode {
    let node = start;
    for (;;) {
      if (this.skip("|")) node = this.filter(node);
      else if (this.skip("is")) node = this.test(node);
      else if (this.is("(")) node = { type: "Call", callee: node, ...this.arguments() };
      else return node;
    }
  }

  private dotted(): string {
    let name = this.name();
    while (this.skip(".")) name += `.${this.name()}`;
    return name;
  }

  private filter(value: JinjaNode | undefined): FilterNode {
    const name = this.dotted();
    return { type: "Filter", value, name, ...(this.is("(") ? this.arguments() : NO_ARGUMENTS) };
  }

  private test(value: JinjaNode): JinjaNode {
    const isNegated = this.skip("not");
    const name = this.dotted();
    const test: JinjaNode = { type: "Test", value, name, ...this.testArguments() };
    return isNegated ? { type: "Unary", operator: "not", value: test } : test;
  }

  /** Parses arguments in brackets, or one value without: `is divisibleby 3`. */
  private testArguments(): CallArguments {
    if (this.is("(")) return this.arguments();
    const { type } = this.token;
    const isValue = ["name", "string", "integer", "float"].includes(type) || this.is("[") || this.is("{");
    if (!isValue || ["else", "or", "and"].some((word) => this.is(word))) return NO_ARGUMENTS;
    if (this.is("is")) this.fail("tests cannot follow each other");
    return { ...NO_ARGUMENTS, args: [this.postfix(this.primary())] };
  }
}

function described({ type, value }: JinjaToken): string {
  if (type === "end") return "the end of the template";
  if (type === "close") return "the end of the tag";
  return type === "string" ? JSON.stringify(value) : `'${value}'`;
}
