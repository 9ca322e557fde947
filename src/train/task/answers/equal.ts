/** Whether two answers are equal. */

import { RecentCache } from "../../../leaves/recent_cache.ts";
import { Comparison } from "./comparison.ts";
import { wordsOf } from "./latex/atoms.ts";
import type { LatexNode } from "./latex/nodes.ts";
import { parseLatex } from "./latex/parse.ts";
import { isAndOr, type LatexToken, tokensOf } from "./latex/tokens.ts";
import { NoValue } from "./value/budget.ts";

/** Longer answers are compared as texts. */
const MOST_CHARACTERS = 1000;
/** Answers that were read: majorities compare each with many. */
const READ = new RecentCache<string, Answer>(1000);

/** An answer that has been read. */
interface Answer {
  /** Text without spaces and what only changes its look. */
  readonly text: string;
  /** The letters where there is nothing else: `\text{yes}` is yes. */
  readonly letters: string | undefined;
  readonly node: LatexNode | undefined;
}

/**
 * Sets and lists in any order; tuples, intervals and matrices member by member; equations and inequalities by their sides; names by
 * their letters; expressions by value. Integers and ratios are compared exactly, other numbers with 40 digits. A unit after a number
 * is ignored, and `50\%` is 50 and 1/2. What cannot be read, or would take too much work, equals only the same text.
 */
export function answersEqual(answer: string, other: string): boolean {
  const [a, b] = [answer, other].map((each) => READ.get(each, () => readAnswer(each))) as [Answer, Answer];
  if (a.text === b.text) return a.text !== "";
  if (!a.node || !b.node) return false;
  if (a.node.kind === "text" || b.node.kind === "text")
    if (a.letters !== undefined && a.letters === b.letters) return true;
  try {
    return new Comparison().same(a.node, b.node);
  } catch (error) {
    if (error instanceof NoValue) return false;
    throw error;
  }
}

function readAnswer(answer: string): Answer {
  const trimmed = answer.trim();
  if (trimmed.length > MOST_CHARACTERS)
    return { text: trimmed.replace(/\s+/g, ""), letters: undefined, node: undefined };
  const tokens = tokensOf(trimmed);
  const [first, ...others] = tokens;
  // Inside of `\text` everything is as it is outside: `\text{June 5}`.
  if (first?.kind === "text" && others.length === 0 && /[^\p{L}\s]/u.test(first.text)) return readAnswer(first.text);
  const text = tokens.map(({ kind, text }) => (kind === "command" ? `\\${text} ` : text)).join("");
  const letters = lettersOf(tokens);
  return { text, letters, node: letters && isName(tokens) ? { kind: "text", text: letters } : parseLatex(tokens) };
}

function lettersOf(tokens: readonly LatexToken[]): string | undefined {
  const isLetters = tokens.every(
    ({ kind, text }) => kind === "word" || (kind === "text" && /\p{L}/u.test(text)) || /^[-'.]$/.test(text),
  );
  return isLetters ? tokens.map(({ text }) => wordsOf(text)).join("") : undefined;
}

/** Words, one of which is long: `\text{Evelyn}`, `no solution`, but not `xyz` or `x and y`. */
function isName(tokens: readonly LatexToken[]): boolean {
  const words = tokens.map(({ text }) => wordsOf(text)).filter((word) => word !== "");
  const isLong = words.some((word) => word.length > 3 && word !== "infinity" && word !== "infty");
  return isLong && words.every((word) => word.length > 1 && !isAndOr(word));
}
