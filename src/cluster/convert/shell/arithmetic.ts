/** `$((...))`: 64-bit integers, as bash counts. */
import { type ArithmeticExpression, parse } from "unbash";
import type { Shell } from "./shell.ts";
import { isKnown } from "./text.ts";

/** The value of an expression; undefined where a variable in it is not known. */
export function evaluateArithmetic(shell: Shell, expression: ArithmeticExpression | undefined): bigint | undefined {
  if (expression === undefined) return 0n;
  switch (expression.type) {
    case "ArithmeticGroup":
      return evaluateArithmetic(shell, expression.expression);
    case "ArithmeticWord":
      return evaluateText(shell, wordText(shell, expression), expression.pos);
    case "ArithmeticUnary":
      return unary(shell, expression);
    case "ArithmeticTernary": {
      const test = evaluateArithmetic(shell, expression.test);
      if (test === undefined) return undefined;
      return evaluateArithmetic(shell, test !== 0n ? expression.consequent : expression.alternate);
    }
    case "ArithmeticBinary":
      return binary(shell, expression);
    default:
      return evaluateText(shell, shell.capture(expression.script, expression), expression.pos);
  }
}

/** The parser does not expand a variable inside a sum. */
function wordText(shell: Shell, word: Extract<ArithmeticExpression, { type: "ArithmeticWord" }>): string {
  if (word.parts !== undefined || !/[$`]/.test(word.value)) return shell.expandText(word);
  const source = `x "${word.value}"`;
  const [statement] = parse(source).commands;
  const inner = statement?.command.type === "Command" ? statement.command.suffix[0] : undefined;
  if (inner?.type !== "Word") return shell.refuse(`its arithmetic uses ${word.value}`, word.pos);
  return shell.withSource(source, word.pos, () => shell.expandText(inner));
}

const NUMBER = /^(?:0[xX][\da-fA-F]+|\d+)$/;
const NAME = /^[A-Za-z_]\w*(?:\[\w+\])?$/;

/** A number, a variable, or text that is an expression itself. */
export function evaluateText(shell: Shell, text: string, pos: number, depth = 0): bigint | undefined {
  const word = text.trim();
  if (!isKnown(word) || depth > 20) return undefined;
  if (word === "") return 0n;
  if (NUMBER.test(word)) return readNumber(word);
  const based = /^(\d+)#(\w+)$/.exec(word);
  if (based) return wrap(BigInt(Number.parseInt(based[2]!, Number(based[1]))));
  if (NAME.test(word)) {
    const value = shell.variableText(word, shell.lineAt(pos), { hasDefault: true });
    return value === undefined ? 0n : evaluateText(shell, value, pos, depth + 1);
  }
  const [statement] = parse(`((${word}))`).commands;
  const inner = statement?.command.type === "ArithmeticCommand" ? statement.command.expression : undefined;
  return inner === undefined || inner.type === "ArithmeticWord"
    ? shell.refuse(`its arithmetic uses "${word}", which is not a number`, pos)
    : shell.withSource(word, pos, () => evaluateArithmetic(shell, inner));
}

function readNumber(word: string): bigint {
  const isOctal = /^0\d/.test(word);
  return wrap(BigInt(isOctal ? `0o${word.slice(1)}` : word));
}

function wrap(value: bigint): bigint {
  return BigInt.asIntN(64, value);
}

function unary(
  shell: Shell,
  { operator, operand, prefix, pos }: Extract<ArithmeticExpression, { type: "ArithmeticUnary" }>,
): bigint | undefined {
  const value = evaluateArithmetic(shell, operand);
  if (operator === "++" || operator === "--") {
    const next = value === undefined ? undefined : wrap(value + (operator === "++" ? 1n : -1n));
    assign(shell, operand, next, pos);
    return prefix ? next : value;
  }
  if (value === undefined) return undefined;
  if (operator === "-") return wrap(-value);
  if (operator === "!") return value === 0n ? 1n : 0n;
  return operator === "~" ? ~value : value;
}

function binary(
  shell: Shell,
  { operator, left, right, pos }: Extract<ArithmeticExpression, { type: "ArithmeticBinary" }>,
): bigint | undefined {
  if (operator === ",") {
    evaluateArithmetic(shell, left);
    return evaluateArithmetic(shell, right);
  }
  if (operator === "&&" || operator === "||") return logical(shell, operator, left, right);
  const isAssignment = /^(?:[-+*/%&|^]|<<|>>)?=$/.test(operator);
  const b = evaluateArithmetic(shell, right);
  const a = operator === "=" ? 0n : evaluateArithmetic(shell, left);
  const plain = isAssignment ? operator.slice(0, -1) : operator;
  const value = a === undefined || b === undefined ? undefined : plain === "" ? b : compute(shell, plain, [a, b], pos);
  if (isAssignment) assign(shell, left, value, pos);
  return value;
}

function logical(
  shell: Shell,
  operator: string,
  left: ArithmeticExpression,
  right: ArithmeticExpression,
): bigint | undefined {
  const a = evaluateArithmetic(shell, left);
  if (a === undefined) return undefined;
  if ((a !== 0n) === (operator === "||")) return operator === "||" ? 1n : 0n;
  const b = evaluateArithmetic(shell, right);
  return b === undefined ? undefined : b !== 0n ? 1n : 0n;
}

function compute(shell: Shell, operator: string, [a, b]: readonly [bigint, bigint], pos: number): bigint {
  const yes = (is: boolean) => (is ? 1n : 0n);
  if ((operator === "/" || operator === "%") && b === 0n) return shell.refuse("it divides by 0", pos);
  switch (operator) {
    case "+":
      return wrap(a + b);
    case "-":
      return wrap(a - b);
    case "*":
      return wrap(a * b);
    case "/":
      return wrap(a / b);
    case "%":
      return a % b;
    case "**":
      return b < 0n ? shell.refuse("it raises to a negative power", pos) : wrap(a ** b);
    case "<<":
      return wrap(a << (b & 63n));
    case ">>":
      return a >> (b & 63n);
    case "&":
      return a & b;
    case "|":
      return a | b;
    case "^":
      return a ^ b;
    case "<":
      return yes(a < b);
    case "<=":
      return yes(a <= b);
    case ">":
      return yes(a > b);
    case ">=":
      return yes(a >= b);
    case "==":
      return yes(a === b);
    case "!=":
      return yes(a !== b);
    default:
      return shell.refuse(`its arithmetic uses the operator ${operator}`, pos);
  }
}

function assign(shell: Shell, target: ArithmeticExpression, value: bigint | undefined, pos: number): void {
  const name = target.type === "ArithmeticWord" ? shell.expandText(target).trim() : "";
  if (!NAME.test(name)) shell.refuse("its arithmetic assigns to something other than a variable", pos);
  const line = shell.lineAt(pos);
  const item = value === undefined ? shell.session.unknown(`the sum in ${name}`, line) : { text: String(value), line };
  shell.setVariable(name, item);
}
