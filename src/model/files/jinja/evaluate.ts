/**
 * Evaluates a parsed template as Jinja2 does in Python. The parser's own library has an evaluator too, whose values are
 * JavaScript's: it prints and compares values differently, and leaves out arguments of methods (`lstrip("\n")`).
 */
import type { Given } from "./filter.ts";
import { dictOf, filterOf } from "./filters.ts";
import { type Changed, loopFields } from "./loop.ts";
import { keyOf } from "./methods.ts";
import type {
  Argument,
  Call,
  CallBlock,
  For,
  Identifier,
  Macro,
  Node,
  Parameter,
  SetStatement,
  Slice,
} from "./nodes.ts";
import { attribute, binary, sliced, subscript } from "./operators.ts";
import { textOf, Writer } from "./print.ts";
import { Scope } from "./scope.ts";
import { testNamed } from "./tests.ts";
import {
  type Callable,
  Fields,
  Float,
  isDict,
  isTrue,
  itemsOf,
  numberIn,
  orUndefined,
  Tuple,
  typeName,
  Undefined,
  type Value,
  type Work,
} from "./value.ts";

/** How a block ended. */
type Flow = "next" | "break" | "continue";

/** Runs a program with these global names. */
export function evaluate(program: Node, globals: ReadonlyMap<string, Value>, work: Work): string {
  const scope = new Scope(undefined, globals);
  scope.set(
    "namespace",
    (args, named) => new Fields("Namespace", new Map(dictOf(args, named, work)) as Map<string, Value>),
  );
  scope.set("dict", (args, named) => dictOf(args, named, work));
  return new Evaluator(work).text((program as { body: readonly Node[] }).body, new Scope(scope));
}

class Evaluator {
  private readonly work: Work;
  constructor(work: Work) {
    this.work = work;
  }

  /** Text of a block in a scope of its own. */
  text(body: readonly Node[], scope: Scope): string {
    const out = new Writer(this.work);
    this.block(body, scope, out);
    return out.text();
  }

  private block(body: readonly Node[], scope: Scope, out: Writer): Flow {
    for (const node of body) {
      const flow = this.statement(node, scope, out);
      if (flow !== "next") return flow;
    }
    return "next";
  }

  private statement(node: Node, scope: Scope, out: Writer): Flow {
    this.work.spend(1);
    switch (node.type) {
      case "If":
        return this.block(isTrue(this.value(node.test, scope)) ? node.body : node.alternate, scope, out);
      case "For":
        return this.loop(node, scope, out);
      case "Set":
        return this.assignment(node, scope);
      case "Macro":
        scope.set(node.name.value, this.macro(node, scope));
        return "next";
      case "CallStatement":
        out.write(this.callBlock(node, scope));
        return "next";
      case "FilterStatement":
        out.write(textOf(this.filtered(this.text(node.body, new Scope(scope)), node.filter, scope), this.work));
        return "next";
      case "Break":
        return "break";
      case "Continue":
        return "continue";
      case "Comment":
        return "next";
      default:
        out.write(textOf(this.value(node, scope), this.work));
        return "next";
    }
  }

  private loop(node: For, scope: Scope, out: Writer): Flow {
    const isFiltered = node.iterable.type === "SelectExpression";
    const { lhs, test } = isFiltered
      ? (node.iterable as { lhs: Node; test: Node })
      : { lhs: node.iterable, test: undefined };
    const items = itemsOf(this.value(lhs, scope), this.work).filter((item) => {
      if (!test) return true;
      const inner = new Scope(scope);
      this.assign(node.loopvar, item, inner);
      return isTrue(this.value(test, inner));
    });
    this.work.spend(items.length * LOOP_STEPS);
    const state: Changed = {};
    let isElse = true;
    for (const [i, item] of items.entries()) {
      const inner = new Scope(scope);
      this.assign(node.loopvar, item, inner);
      inner.set("loop", loopFields(items, i, { state, work: this.work }));
      const flow = this.block(node.body, inner, out);
      // As in Jinja2, `else` runs unless the body was finished once.
      if (flow === "next") isElse = false;
      if (flow === "break") break;
    }
    return isElse ? this.block(node.defaultBlock, new Scope(scope), out) : "next";
  }

  private assignment({ assignee, value, body }: SetStatement, scope: Scope): Flow {
    this.assign(assignee, value ? this.value(value, scope) : this.text(body, new Scope(scope)), scope);
    return "next";
  }

  private assign(target: Node, value: Value, scope: Scope): void {
    if (target.type === "Identifier") {
      scope.set(target.value, value);
      return;
    }
    if (target.type === "TupleLiteral") {
      const items = itemsOf(value, this.work);
      if (items.length !== target.value.length)
        throw new Error(`cannot unpack ${items.length} values into ${target.value.length} names`);
      for (const [i, each] of target.value.entries()) this.assign(each, items[i]!, scope);
      return;
    }
    const object = target.type === "MemberExpression" ? this.value(target.object, scope) : null;
    if (target.type !== "MemberExpression" || !(object instanceof Fields) || object.kind !== "Namespace")
      throw new Error("only names and attributes of a namespace can be set");
    object.values.set((target.property as Identifier).value, value);
  }

  /** A macro sees the names around its definition. */
  private macro(
    { args: parameters, body, name }: Pick<Macro, "args" | "body"> & { name?: Identifier },
    scope: Scope,
  ): Callable {
    const label = name?.value ?? "caller";
    return (args, named) => {
      this.work.spend(1);
      const inner = new Scope(scope);
      if (args.length > parameters.length)
        throw new Error(`macro ${label} takes ${parameters.length} arguments (${args.length})`);
      const names = parameters.map((parameter) => this.bind(parameter, inner, { args, named, parameters }));
      const caller = named.get("caller");
      if (caller !== undefined) inner.set("caller", caller);
      const unknown = [...named.keys()].find((key) => key !== "caller" && !names.includes(key));
      if (unknown !== undefined) throw new Error(`macro ${label} has no argument ${unknown}`);
      return this.text(body, inner);
    };
  }

  private bind(
    parameter: Parameter,
    scope: Scope,
    it: { args: readonly Value[]; named: ReadonlyMap<string, Value>; parameters: readonly Parameter[] },
  ): string {
    const [name, fallback] =
      parameter.type === "Identifier" ? [parameter.value, undefined] : [parameter.key.value, parameter.value];
    const at = it.parameters.indexOf(parameter);
    if (at < it.args.length && it.named.has(name)) throw new Error(`a macro got two values for its argument ${name}`);
    const given = at < it.args.length ? it.args[at] : it.named.get(name);
    scope.set(name, given === undefined && fallback ? this.value(fallback, scope) : orUndefined(given, name));
    return name;
  }

  private callBlock({ call, callerArgs, body }: CallBlock, scope: Scope): string {
    const caller = this.macro({ args: callerArgs ?? [], body }, scope);
    const { args, named } = this.given(call.args, scope);
    const result = this.called(this.value(call.callee, scope), args, new Map([...named, ["caller", caller] as const]));
    return textOf(result, this.work);
  }

  /** The value of an expression. */
  private value(node: Node, scope: Scope): Value {
    this.work.spend(1);
    switch (node.type) {
      case "StringLiteral":
      case "IntegerLiteral":
        return node.value;
      case "FloatLiteral":
        return new Float(node.value);
      case "Identifier":
        return scope.get(node.value);
      case "ArrayLiteral":
        return node.value.map((each) => this.value(each, scope));
      case "TupleLiteral":
        return new Tuple(node.value.map((each) => this.value(each, scope)));
      case "ObjectLiteral":
        return new Map(
          Array.from(node.value, ([key, value]) => [keyOf(this.value(key, scope)), this.value(value, scope)]),
        );
      case "BinaryExpression":
        return this.binary(node, scope);
      case "UnaryExpression":
        return this.unary(node.operator.value, this.value(node.argument, scope));
      case "FilterExpression":
        return this.filtered(this.value(node.operand, scope), node.filter, scope);
      case "TestExpression":
        return testNamed(node.test.value)(this.value(node.operand, scope), [], this.work) !== node.negate;
      case "Ternary":
        return this.value(isTrue(this.value(node.condition, scope)) ? node.trueExpr : node.falseExpr, scope);
      case "SelectExpression":
        return isTrue(this.value(node.test, scope))
          ? this.value(node.lhs, scope)
          : new Undefined("the value without else");
      case "MemberExpression":
        return this.member(node, scope);
      case "CallExpression": {
        const callee = this.value(node.callee, scope);
        const { args, named } = this.given(node.args, scope);
        return this.called(callee, args, named);
      }
      default:
        throw new Error(`${node.type} is not supported`);
    }
  }

  private binary(node: Extract<Node, { type: "BinaryExpression" }>, scope: Scope): Value {
    const left = this.value(node.left, scope);
    const { value: operator } = node.operator;
    if (operator === "and") return isTrue(left) ? this.value(node.right, scope) : left;
    if (operator === "or") return isTrue(left) ? left : this.value(node.right, scope);
    return binary(operator, [left, this.value(node.right, scope)], this.work);
  }

  private unary(operator: string, value: Value): Value {
    if (operator === "not") return !isTrue(value);
    const number = numberIn(value);
    if (number === undefined) throw new Error(`bad operand type for unary ${operator}: '${typeName(value)}'`);
    // An int has no -0.
    if (value instanceof Float) return new Float(operator === "-" ? -number : number);
    return operator === "-" ? 0 - number : number;
  }

  private member(node: Extract<Node, { type: "MemberExpression" }>, scope: Scope): Value {
    const object = this.value(node.object, scope);
    const { property } = node;
    if (property.type === "SliceExpression") return sliced(object, this.bounds(property, scope), this.work);
    if (node.computed) return subscript(object, this.value(property, scope), this.work);
    if (property.type === "Identifier") return attribute(object, property.value, this.work);
    return subscript(object, this.value(property, scope), this.work);
  }

  private bounds({ start, stop, step }: Slice, scope: Scope): Value[] {
    return [start, stop, step].map((bound) => (bound ? this.value(bound, scope) : null));
  }

  private filtered(value: Value, filter: Identifier | Call, scope: Scope): Value {
    const name = filter.type === "Identifier" ? filter.value : (filter.callee as Identifier).value;
    const given = filter.type === "Identifier" ? { args: [], named: new Map() } : this.given(filter.args, scope);
    const result = filterOf(name)(value, { ...given, work: this.work });
    if (Array.isArray(result)) this.work.spend(result.length);
    return result;
  }

  private given(nodes: readonly Argument[], scope: Scope): Omit<Given, "work"> {
    const args: Value[] = [];
    const named = new Map<string, Value>();
    for (const node of nodes) {
      if (node.type === "KeywordArgumentExpression") named.set(node.key.value, this.value(node.value, scope));
      else if (node.type === "SpreadExpression") args.push(...itemsOf(this.value(node.argument, scope), this.work));
      else if (node.type === "KeywordSpreadExpression") {
        const more = this.value(node.argument, scope);
        if (!isDict(more)) throw new Error(`argument after ** must be a mapping, not ${typeName(more)}`);
        for (const [key, value] of more) named.set(String(key), value);
      } else args.push(this.value(node, scope));
    }
    return { args, named };
  }

  private called(callee: Value, args: readonly Value[], named: ReadonlyMap<string, Value>): Value {
    if (callee instanceof Undefined) throw new Error(`'${callee.name}' is undefined`);
    if (typeof callee !== "function") throw new Error(`'${typeName(callee)}' object is not callable`);
    return callee(args, named);
  }
}

/** Steps of one iteration of a loop, which makes a scope and the values of `loop`. */
const LOOP_STEPS = 10;
