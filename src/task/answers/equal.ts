/** Whether two answers are equal: as text, as lists, as numbers, as expressions. */
import { expressionsEqual } from "./expression.ts";
import { normalizeAnswer } from "./normalize.ts";

/** Longer answers are compared as texts. */
const MOST_CHARACTERS = 400;

/**
 * Compares normalised texts first; then sets in any order, tuples and intervals member by member with the same brackets, and
 * expressions by their value (see {@link expressionsEqual}). Units and percent signs are ignored, as MATH's own check does.
 */
export async function answersEqual(one: string, other: string): Promise<boolean> {
  const [a, b] = [normalizeAnswer(one), normalizeAnswer(other)];
  if (a === b) return a !== "";
  if (Math.max(a.length, b.length) > MOST_CHARACTERS) return false;
  return listsEqual(readList(a), readList(b));
}

interface List {
  /** `[`, `(`, `{` for a set; empty for members without brackets. */
  readonly open: string;
  readonly close: string;
  readonly members: readonly string[];
}

/** `5`, `1, 2`, `(1, 2]`, `\{1, 2\}`. Brackets around one member are parentheses of an expression. */
function readList(text: string): List {
  const set = /^\\\{(.*)\\\}$/.exec(text);
  if (set) return { open: "{", close: "}", members: split(set[1]!) };
  const inner = /^[([](.*)[)\]]$/.exec(text)?.[1];
  const members = inner === undefined ? [] : split(inner);
  if (members.length > 1 && isBalanced(inner!)) return { open: text[0]!, close: text.at(-1)!, members };
  const bare = split(text);
  return bare.length > 1 ? { open: "", close: "", members: bare } : { open: "", close: "", members: [text] };
}

/** At commas outside of brackets. */
function split(text: string): string[] {
  const members = [""];
  let depth = 0;
  for (const letter of text) {
    if ("([{".includes(letter)) depth++;
    if (")]}".includes(letter)) depth--;
    if (letter === "," && depth === 0) members.push("");
    else members[members.length - 1] += letter;
  }
  return members;
}

function isBalanced(text: string): boolean {
  let depth = 0;
  for (const letter of text) {
    if ("([".includes(letter)) depth++;
    if (")]".includes(letter)) depth--;
    if (depth < 0) return false;
  }
  return depth === 0;
}

async function listsEqual(a: List, b: List): Promise<boolean> {
  if (a.members.length !== b.members.length) return false;
  const isOrdered = a.open === "(" || a.open === "[" || b.open === "(" || b.open === "[";
  if (isOrdered && (a.open !== b.open || a.close !== b.close)) return false;
  return isOrdered || a.members.length === 1 ? inOrder(a.members, b.members) : inAnyOrder(a.members, b.members);
}

async function inOrder(a: readonly string[], b: readonly string[]): Promise<boolean> {
  for (const [i, member] of a.entries()) if (!(await memberEqual(member, b[i]!))) return false;
  return true;
}

async function inAnyOrder(a: readonly string[], b: readonly string[]): Promise<boolean> {
  const left = [...b];
  for (const member of a) {
    const equal = await Promise.all(left.map((each) => memberEqual(member, each)));
    const at = equal.indexOf(true);
    if (at < 0) return false;
    left.splice(at, 1);
  }
  return true;
}

/** An equation equals another with the same sides, in either order. */
async function memberEqual(a: string, b: string): Promise<boolean> {
  if (a === b) return true;
  const [left, right] = [a.split("="), b.split("=")];
  if (left.length !== right.length || left.length > 2 || /[<>]/.test(a + b)) return false;
  if (left.length === 1) return expressionsEqual(a, b);
  const [[p, q], [r, s]] = [left, right] as [[string, string], [string, string]];
  return expressionsEqual(`(${p})-(${q})`, `(${r})-(${s})`, { upToSign: true });
}
