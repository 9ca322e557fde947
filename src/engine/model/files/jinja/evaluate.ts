/** Evaluates a parsed template as Jinja2 does in Python. */
import type { FilterArguments } from "./filter.ts";
import { filterOf, testOf } from "./filters.ts";
import { functions } from "./globals.ts";
import { Loop } from "./loop.ts";
import type { AssignmentTarget, CallArguments, Expression, FilterNode, For, JinjaNode, Macro, Slice } from "./nodes.ts";
import { attribute, binary, compared, concatenated, sliced, subscript } from "./operators.ts";
import type { Template } from "./parser.ts";
import { pythonStr, TextWriter } from "./print.ts";
import { Scope } from "./scope.ts";
import {
  AttributeObject,
  Dict,
  isDict,
  isTrue,
  itemsOf,
  iterate,
  type JinjaValue,
  numberIn,
  orUndefined,
  type PythonCallable,
  PythonFloat,
  rest,
  Tuple,
  textIn,
  typeName,
  Undefined,
  type WorkCounter,
  whole,
} from "./value.ts";

/** How a block ended. */
type Flow = "next" | "break" | "continue";

/** Runs a program with these global names, and writes its text to `out`. */
export function renderTemplate(
  program: Template,
  globals: ReadonlyMap<string, JinjaValue>,
  run: { work: WorkCounter; out: TextWriter },
): void {
  const scope = new Scope(new Scope(undefined, functions(run.work)), globals);
  new Evaluator(run.work, scope).block(program.body, scope, run.out);
}

class Evaluator {
  private readonly work: WorkCounter;
  private readonly outermost: Scope;
  constructor(work: WorkCounter, outermost: Scope) {
    this.work = work;
    this.outermost = outermost;
  }

  /** Text of a block in a scope of its own. */
  private text(body: readonly JinjaNode[], scope: Scope): string {
    const out = new TextWriter(this.work);
    this.block(body, scope, out);
    return out.text();
  }

  block(body: readonly JinjaNode[], scope: Scope, out: TextWriter): Flow {
    for (const node of body) {
      const flow = this.statement(node, scope, out);
      if (flow !== "next") return flow;
    }
    return "next";
  }

  private statement(node: JinjaNode, scope: Scope, out: TextWriter): Flow {
    this.work.spend(1);
    switch (node.type) {
      case "If": {
        const branch = node.branches.find(([test]) => isTrue(this.value(test, scope)));
        return this.block(branch ? branch[1] : node.otherwise, scope, out);
      }
      case "For":
        return this.loop(node, { scope, out, source: this.value(node.items, scope), depth0: 0 });
      case "Set":
        this.assign(node.target, this.value(node.value, scope), scope);
        return "next";
      case "SetBlock":
        return this.captured(node.body, new Scope(scope), (text) =>
          this.assign(node.target, node.filter ? this.filtered(node.filter, scope, text) : text, scope),
        );
      case "Macro":
        scope.set(node.name, this.macro(node, scope));
        return "next";
      case "CallBlock": {
        const caller = this.macro(node.macro, scope);
        const { args, named } = this.given(node.call, scope);
        const callee = this.value(node.call.callee, scope);
        out.write(pythonStr(this.called(callee, args, new Map([...named, ["caller", caller]])), this.work));
        return "next";
      }
      case "FilterBlock":
        return this.captured(node.body, new Scope(scope), (text) =>
          out.write(pythonStr(this.filtered(node.filter, scope, text), this.work)),
        );
      case "With": {
        const inner = new Scope(scope);
        for (const [target, value] of node.names) this.assign(target, this.value(value, scope), inner);
        return this.block(node.body, inner, out);
      }
      case "Block":
        return this.block(node.body, new Scope(node.isScoped ? scope : this.outermost), out);
      case "Break":
        return "break";
      case "Continue":
        return "continue";
      default:
        out.write(pythonStr(this.value(node, scope), this.work));
        return "next";
    }
  }

  /** Uses the text of a block, unless it leaves a loop around. */
  private captured(body: readonly JinjaNode[], scope: Scope, use: (text: string) => void): Flow {
    const inner = new TextWriter(this.work);
    const flow = this.block(body, scope, inner);
    if (flow === "next") use(inner.text());
    return flow;
  }

  private loop(node: For, at: { scope: Scope; out: TextWriter; source: JinjaValue; depth0: number }): Flow {
    const { scope, out, source, depth0 } = at;
    const call: PythonCallable = ([items]) => {
      this.work.spend(1);
      const inner = new TextWriter(this.work);
      this.loop(node, { scope, out: inner, source: orUndefined(items, "items"), depth0: depth0 + 1 });
      return inner.text();
    };
    const loop = new Loop(source, this.visited(node, source, scope), {
      work: this.work,
      depth0,
      call: node.isRecursive ? call : undefined,
      isFiltered: node.test !== undefined,
    });
    let isElse = true;
    for (let item = loop.next(); item !== undefined; item = loop.next()) {
      this.work.spend(LOOP_STEPS);
      const inner = new Scope(scope);
      this.assign(node.target, item, inner);
      inner.set("loop", loop.fields);
      const flow = this.block(node.body, inner, out);
      // As in Jinja2, `else` runs unless the body was finished once.
      if (flow === "next") isElse = false;
      if (flow === "break") break;
    }
    return isElse ? this.block(node.otherwise, new Scope(scope), out) : "next";
  }

  /** The items that pass the test, which is made when the item is asked for. */
  private *visited({ test, target }: For, source: JinjaValue, scope: Scope): Generator<JinjaValue, undefined> {
    for (const item of rest(iterate(source, this.work), this.work)) {
      const inner = new Scope(scope);
      if (test) this.assign(target, item, inner);
      if (!test || isTrue(this.value(test, inner))) yield item;
    }
  }

  private assign(target: AssignmentTarget, value: JinjaValue, scope: Scope): void {
    if (target.type === "Name") scope.set(target.name, value);
    else if (target.type === "Tuple") {
      const items = itemsOf(value, this.work);
      if (items.length !== target.items.length)
        throw new Error(`cannot unpack ${items.length} values into ${target.items.length} names`);
      for (const [i, each] of target.items.entries()) this.assign(each, items[i]!, scope);
    } else {
      const object = scope.get(target.object);
      if (!(object instanceof AttributeObject) || object.kind !== "Namespace")
        throw new Error("only names and attributes of a namespace can be set");
      object.values.set(target.name, value);
    }
  }

  /** A macro sees the names around its definition. */
  private macro(node: Macro, scope: Scope): PythonCallable {
    const { parameters, name, uses } = node;
    return (args, named) => {
      this.work.spend(1);
      const inner = new Scope(scope);
      const left = new Map(named);
      for (const [i, [key, fallback]] of parameters.entries()) {
        const arg = i < args.length ? args[i] : left.get(key);
        if (i >= args.length) left.delete(key);
        inner.set(key, arg === undefined && fallback ? this.value(fallback, inner) : orUndefined(arg, key));
      }
      const isOwn = parameters.some(([key]) => key === "caller");
      if (uses.has("caller") && !isOwn) inner.set("caller", orUndefined(left.get("caller"), "caller"));
      if (uses.has("caller")) left.delete("caller");
      if (uses.has("kwargs")) inner.set("kwargs", new Dict(left));
      else checkNames(name, left);
      if (uses.has("varargs")) inner.set("varargs", new Tuple(args.slice(parameters.length)));
      else if (args.length > parameters.length)
        throw new Error(`macro ${name} takes ${parameters.length} arguments (${args.length})`);
      return this.text(node.body, inner);
    };
  }

  /** The value of an expression. */
  private value(node: JinjaNode, scope: Scope): JinjaValue {
    this.work.spend(1);
    switch (node.type) {
      case "Text":
      case "Integer":
      case "Constant":
        return node.value;
      case "Float":
        return new PythonFloat(node.value);
      case "Name":
        return scope.get(node.name);
      case "List":
        return node.items.map((each) => this.value(each, scope));
      case "Tuple":
        return new Tuple(node.items.map((each) => this.value(each, scope)));
      case "Dict":
        return new Dict(node.pairs.map(([key, value]) => [this.value(key, scope), this.value(value, scope)]));
      case "Concat":
        return concatenated(
          node.parts.map((part) => this.value(part, scope)),
          this.work,
        );
      case "Compare":
        return this.comparison(node, scope);
      case "Binary":
        return binary(node.operator, [this.value(node.left, scope), this.value(node.right, scope)], this.work);
      case "And":
      case "Or": {
        const left = this.value(node.left, scope);
        return isTrue(left) === (node.type === "And") ? this.value(node.right, scope) : left;
      }
      case "Unary":
        return this.unary(node.operator, this.value(node.value, scope));
      case "Filter":
        return this.filtered(node, scope);
      case "Test": {
        const value = this.value(node.value, scope);
        const { args, named } = this.given(node, scope);
        return testOf(node.name, named)(value, args, this.work);
      }
      case "Conditional":
        if (isTrue(this.value(node.test, scope))) return this.value(node.yes, scope);
        return node.no ? this.value(node.no, scope) : new Undefined("the value without else");
      case "Attribute":
        return attribute(this.value(node.object, scope), node.name, this.work);
      case "Item": {
        const object = this.value(node.object, scope);
        if (node.key.type === "Slice") return sliced(object, this.bounds(node.key, scope), this.work);
        return subscript(object, this.value(node.key, scope), this.work);
      }
      case "Call": {
        const callee = this.value(node.callee, scope);
        const { args, named } = this.given(node, scope);
        return this.called(callee, args, named);
      }
      default:
        throw new Error(`${node.type} is not supported here`);
    }
  }

  /** Each comparison with the one before: `a < b < c` is `a < b and b < c`. */
  private comparison({ first, others }: Extract<Expression, { type: "Compare" }>, scope: Scope): boolean {
    let left = this.value(first, scope);
    return others.every(([operator, node]) => {
      const right = this.value(node, scope);
      const holds = compared(operator, [left, right], this.work);
      left = right;
      return holds;
    });
  }

  private unary(operator: string, value: JinjaValue): JinjaValue {
    if (operator === "not") return !isTrue(value);
    const number = numberIn(value);
    if (value instanceof Undefined) throw new Error(`'${value.name}' is undefined`);
    if (number === undefined) throw new Error(`bad operand type for unary ${operator}: '${typeName(value)}'`);
    if (value instanceof PythonFloat) return operator === "-" ? new PythonFloat(-value.value) : value;
    return operator === "-" ? whole(-BigInt(number)) : number;
  }

  private bounds({ start, stop, step }: Slice, scope: Scope): JinjaValue[] {
    return [start, stop, step].map((bound) => (bound ? this.value(bound, scope) : null));
  }

  /** `text` is what a filter without a value of its own changes. */
  private filtered(filter: FilterNode, scope: Scope, text = ""): JinjaValue {
    const value = filter.value
      ? filter.value.type === "Filter"
        ? this.filtered(filter.value, scope, text)
        : this.value(filter.value, scope)
      : text;
    const result = filterOf(filter.name)(value, { ...this.given(filter, scope), work: this.work });
    if (Array.isArray(result)) this.work.spend(result.length);
    return result;
  }

  private given(call: CallArguments, scope: Scope): Omit<FilterArguments, "work"> {
    const args = call.args.map((node) => this.value(node, scope));
    const named = new Map(call.named.map(([name, node]) => [name, this.value(node, scope)] as const));
    if (call.spread) args.push(...itemsOf(this.value(call.spread, scope), this.work));
    if (!call.namedSpread) return { args, named };
    const more = this.value(call.namedSpread, scope);
    if (!isDict(more)) throw new Error(`argument after ** must be a mapping, not ${typeName(more)}`);
    for (const [key, value] of more) {
      const name = textIn(key);
      if (name === undefined) throw new Error("keywords must be strings");
      if (named.has(name)) throw new Error(`got multiple values for keyword argument '${name}'`);
      named.set(name, value);
    }
    return { args, named };
  }

  private called(callee: JinjaValue, args: readonly JinjaValue[], named: ReadonlyMap<string, JinjaValue>): JinjaValue {
    if (callee instanceof Undefined) throw new Error(`'${callee.name}' is undefined`);
    const call = callee instanceof AttributeObject ? callee.call : callee;
    if (typeof call === "function") return call(args, named);
    if (callee instanceof AttributeObject && callee.kind === "LoopContext")
      throw new Error("a loop must be recursive to be called");
    throw new Error(`'${typeName(callee)}' object is not callable`);
  }
}

function checkNames(macro: string, left: ReadonlyMap<string, JinjaValue>): void {
  const [unknown] = left.keys();
  if (unknown !== undefined) throw new Error(`macro ${macro} has no argument ${unknown}`);
}

/** Steps of one iteration of a loop, which makes a scope and the values of `loop`. */
const LOOP_STEPS = 10;
