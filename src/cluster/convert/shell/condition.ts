/** `[ ... ]`, `test` and `[[ ... ]]`: true, false, or not known. */
import type { TestExpression } from "unbash";
import { evaluateText } from "./arithmetic.ts";
import { type PatternPiece, patternSource } from "./pattern.ts";
import type { Shell } from "./shell.ts";
import type { ExitStatus } from "./state.ts";
import { equalTexts, type Item, isEmpty, isKnown } from "./text.ts";

export function testExpression(shell: Shell, expression: TestExpression): ExitStatus {
  switch (expression.type) {
    case "TestGroup":
      return testExpression(shell, expression.expression);
    case "TestNot": {
      const status = testExpression(shell, expression.operand);
      return expression.negations.length % 2 === 1 ? not(status) : status;
    }
    case "TestLogical": {
      const isAnd = expression.operator === "&&";
      let result: ExitStatus = isAnd;
      for (const operand of expression.operands) {
        const status = testExpression(shell, operand);
        if (status === !isAnd) return status;
        if (status === undefined) result = undefined;
      }
      return result;
    }
    case "TestUnary":
      return unary(shell, expression.operator, {
        text: shell.expandText(expression.operand),
        line: shell.lineAt(expression.pos),
      });
    default: {
      const { operator, left, right, pos } = expression;
      const a = shell.expandText(left);
      if (operator === "=" || operator === "==" || operator === "!=") {
        const pieces = shell.expandPieces(right);
        const isMatch = matches(a, pieces);
        return operator === "!=" ? not(isMatch) : isMatch;
      }
      return binary(shell, operator, { a, b: shell.expandText(right), pos });
    }
  }
}

/** Whether a pattern matches a text. */
export function matches(text: string, pieces: readonly PatternPiece[]): ExitStatus {
  const whole = pieces.map((piece) => piece.text).join("");
  const isPlain = pieces.every((piece) => piece.isQuoted || !/[*?[\]]/.test(piece.text));
  if (isPlain) return equalTexts(text, whole);
  if (/^\*+$/.test(whole)) return true;
  if (!isKnown(text) || !isKnown(whole)) return undefined;
  const source = patternSource(pieces);
  return source === undefined ? undefined : new RegExp(`^(?:${source})$`).test(text);
}

/** The words between `[` and `]`. */
export function testWords(shell: Shell, words: readonly Item[], pos: number): ExitStatus {
  const [first, second, third] = words.map(({ text }) => text);
  if (words.length === 0) return false;
  if (words.length === 1) return not(isEmpty(first!));
  const middle = words.length === 3 && isBinary(second!);
  if (middle) return binary(shell, second!, { a: first!, b: third!, pos });
  if (first === "!") return not(testWords(shell, words.slice(1), pos));
  if (words.length === 2) return unary(shell, first!, words[1]!);
  for (const [operator, isAnd] of [
    ["-o", false],
    ["-a", true],
  ] as const) {
    const at = words.findIndex(({ text }) => text === operator);
    if (at <= 0) continue;
    const [a, b] = [testWords(shell, words.slice(0, at), pos), testWords(shell, words.slice(at + 1), pos)];
    if (isAnd) return a === false || b === false ? false : a === undefined || b === undefined ? undefined : true;
    return a || b ? true : a === undefined || b === undefined ? undefined : false;
  }
  if (words.length === 3 && first === "(" && third === ")") return testWords(shell, [words[1]!], pos);
  return undefined;
}

function isBinary(operator: string): boolean {
  return /^(=|==|!=|<|>|-eq|-ne|-lt|-le|-gt|-ge|-nt|-ot|-ef)$/.test(operator);
}

function unary(shell: Shell, operator: string, { text, line }: Item): ExitStatus {
  if (operator === "-z") return isEmpty(text);
  if (operator === "-n") return not(isEmpty(text));
  if (operator === "-v" && /^\w+$/.test(text)) return shell.variable(text, line, { hasDefault: true }) !== undefined;
  return undefined;
}

function binary(shell: Shell, operator: string, { a, b, pos }: { a: string; b: string; pos: number }): ExitStatus {
  if (operator === "=" || operator === "==") return equalTexts(a, b);
  if (operator === "!=") return not(equalTexts(a, b));
  const isNumeric = /^-(eq|ne|lt|le|gt|ge)$/.test(operator);
  if (!isNumeric) {
    const isOrder = (operator === "<" || operator === ">") && isKnown(a) && isKnown(b);
    return isOrder ? (operator === "<" ? a < b : a > b) : undefined;
  }
  const [x, y] = [evaluateText(shell, a, pos), evaluateText(shell, b, pos)];
  if (x === undefined || y === undefined) return undefined;
  switch (operator) {
    case "-eq":
      return x === y;
    case "-ne":
      return x !== y;
    case "-lt":
      return x < y;
    case "-le":
      return x <= y;
    case "-gt":
      return x > y;
    default:
      return x >= y;
  }
}

function not(status: ExitStatus): ExitStatus {
  return status === undefined ? undefined : !status;
}
