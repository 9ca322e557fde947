/** Finds the answer in a response. Each pass is linear in its length: a response may be long, and is whatever a model wrote. */
import { firstNumeral, lastNumeral } from "./numerals.ts";

/** A stated answer is shorter. */
const MOST_CHARACTERS = 1000;

/** The number right after the last `####`, as GSM8K's answers have it; else the last number. `#### Step 2` is a heading. */
export function gsm8kNumber(text: string): string | undefined {
  const at = text.lastIndexOf("####");
  const after = at < 0 ? "" : text.slice(at).replace(/^#+/, "");
  const first = firstNumeral(after);
  if (first && !/[\p{L}\p{N}]/u.test(after.slice(0, first.at))) return first.text;
  return lastNumeral(text);
}

interface Box {
  readonly at: number;
  readonly content: string;
}

/**
 * The content of the last whole `\boxed{...}` or `\fbox{...}`, with balanced braces; of `\boxed 5`, the word after it. A box that is cut
 * off is none.
 */
export function lastBoxed(text: string): string | undefined {
  const open: { readonly at: number; readonly from: number | undefined }[] = [];
  let last: Box | undefined;
  const keep = (box: Box) => {
    if (!last || box.at > last.at) last = box;
  };
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "{") open.push({ at: i, from: undefined });
    else if (text[i] === "}") {
      const group = open.pop();
      if (group?.from !== undefined) keep({ at: group.at, content: text.slice(group.from, i) });
    } else if (text[i] === "\\") {
      const box = boxAt(text, i);
      if (box?.hasBrace) open.push({ at: i, from: box.from });
      else if (box?.word !== undefined) keep({ at: i, content: box.word });
      i = box ? box.from - 1 : i + 1;
    }
  }
  return last?.content;
}

/** A box's command at this backslash, and what follows it. */
function boxAt(text: string, at: number): { from: number; hasBrace: boolean; word: string | undefined } | undefined {
  const head = /^\\(?:boxed|fbox)(?![a-zA-Z])\s{0,4}(\{?)/.exec(text.slice(at, at + 12));
  if (!head) return undefined;
  const from = at + head[0].length;
  const word = head[1] ? undefined : /^[^\s$}]+/.exec(text.slice(from, from + 100))?.[0];
  return { from, hasBrace: head[1] === "{", word };
}

/**
 * The answer of a solution to a MATH problem: the last boxed content; else what `<answer>` holds; else what follows `answer is` or
 * `answer:`; else the text itself where it is one short line without a sentence.
 */
export function mathAnswer(text: string): string | undefined {
  const boxed = lastBoxed(text);
  if (boxed !== undefined || /\\(?:boxed|fbox)/.test(text)) return boxed;
  const found = tagged(text) ?? stated(text) ?? shortLine(text);
  const answer = found === undefined || found.length > MOST_CHARACTERS ? found : withoutEmphasis(found);
  return answer || undefined;
}

function tagged(text: string): string | undefined {
  const end = text.lastIndexOf("</answer>");
  const start = end < 0 ? -1 : text.lastIndexOf("<answer>", end);
  return start < 0 ? undefined : text.slice(start + "<answer>".length, end).trim();
}

/** `answer` with `is` or a colon before what it is. */
const STATED = /answer(?:[ \t]{1,4}is|\*{0,2}[ \t]{0,4}[:=])(?:\*\*)?\s{0,16}[:=]?/gi;

function stated(text: string): string | undefined {
  let end: number | undefined;
  for (const match of text.matchAll(STATED)) end = match.index + match[0].length;
  if (end === undefined) return undefined;
  const [line = ""] = text
    .slice(end, end + MOST_CHARACTERS)
    .trimStart()
    .split("\n", 1);
  return line.split(/\.\s|\.?\s{0,4}I hope it is correct/, 1)[0];
}

function shortLine(text: string): string | undefined {
  const line = text.trim();
  const isAnswer = line.length > 0 && line.length <= 100 && !line.includes("\n") && !/[a-z]{2,} [a-z]{2,}/i.test(line);
  return isAnswer ? line : undefined;
}

/** `**5**.` is 5, and so are `$5$` and `\(5\)`. */
function withoutEmphasis(answer: string): string {
  let inner = answer.trim();
  for (let before = ""; before !== inner; ) {
    before = inner;
    if (inner.endsWith(".")) inner = inner.slice(0, -1).trim();
    for (const [open, close] of EMPHASIS)
      if (inner.length > open.length + close.length && inner.startsWith(open) && inner.endsWith(close))
        inner = inner.slice(open.length, inner.length - close.length).trim();
  }
  return inner;
}

const EMPHASIS = [
  ["**", "**"],
  ["*", "*"],
  ["`", "`"],
  ["\\(", "\\)"],
  ["\\[", "\\]"],
  ["$$", "$$"],
  ["$", "$"],
] as const;
