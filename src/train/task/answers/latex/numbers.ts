/** Numerals: thousands, repeating decimals. */
import { type TokenCursor, Unreadable } from "./cursor.ts";
import { call, integerNode, type LatexNode, numberNode } from "./nodes.ts";

const GROUP = /^\d{3}(?:\.\d+)?$/;

export function parseNumber(cursor: TokenCursor): LatexNode {
  const digits = cursor.next().text + restOfThousands(cursor);
  return repeating(cursor, digits) ?? numberNode(digits);
}

/**
 * The groups after the first: of `1,000` where no bracket is open, because `(1,100)` is a pair; of `1{,}000` everywhere.
 * `0,180` and `1,00,0` are lists.
 */
function restOfThousands(cursor: TokenCursor): string {
  const first = cursor.peek(-1)!.text;
  if (!/^\d{1,3}$/.test(first)) return "";
  const separator = separatorOf(cursor, first);
  if (!separator) return "";
  let count = 0;
  while (isGroup(cursor, 2 * count, separator) && !cursor.peek(2 * count - 1)?.text.includes(".")) count++;
  // A group of another length: none of them groups thousands.
  const isList = separator === "," && cursor.mark(2 * count) === "," && isUnspacedNumber(cursor, 2 * count + 1);
  if (count === 0 || isList) return "";
  const groups = Array.from({ length: count }, (_, i) => cursor.peek(2 * i + 1)!.text);
  cursor.skip(2 * count);
  return groups.join("");
}

function separatorOf(cursor: TokenCursor, first: string): string | undefined {
  const mark = cursor.mark();
  if (mark === "{,}") return mark;
  return mark === "," && !cursor.peek()!.isSpaced && cursor.brackets === 0 && !first.startsWith("0") ? mark : undefined;
}

function isGroup(cursor: TokenCursor, ahead: number, separator: string): boolean {
  const group = cursor.peek(ahead + 1);
  if (cursor.mark(ahead) !== separator || group?.kind !== "number" || !GROUP.test(group.text)) return false;
  return separator === "{,}" || !group.isSpaced;
}

function isUnspacedNumber(cursor: TokenCursor, ahead: number): boolean {
  const token = cursor.peek(ahead);
  return token?.kind === "number" && !token.isSpaced;
}

/** `0.1\overline{6}` is 1/6: 16 - 1 over 90. */
function repeating(cursor: TokenCursor, digits: string): LatexNode | undefined {
  const isWhole = cursor.mark() === "." && isRepeat(cursor.command(1));
  if (!isWhole && !(digits.includes(".") && isRepeat(cursor.command()))) return undefined;
  cursor.skip(isWhole ? 2 : 1);
  const hasBraces = cursor.take("{");
  const period = hasBraces ? cursor.next().text : cursor.split(1);
  if (hasBraces) cursor.expect("}");
  if (!/^\d+$/.test(period)) throw new Unreadable();
  const [, fixed = ""] = digits.split(".");
  const start = BigInt(digits.replace(".", ""));
  const numerator = BigInt(`${start}${period}`) - start;
  const scale = BigInt(`${"9".repeat(period.length)}${"0".repeat(fixed.length)}`);
  return call("divide", { ...integerNode(0), digits: numerator }, { ...integerNode(0), digits: scale });
}

function isRepeat(command: string): boolean {
  return command === "overline" || command === "bar" || command === "dot";
}
