/** Finds the answer in a response. */

/** A sign counts where it does not subtract: `12-5` holds 12 and 5. */
const NUMBER = /(?:(?<![\w.)\]}])-)?(?:\d[\d,]*(?:\.\d+)?|(?<![\d\w])\.\d+)/g;

/** The numbers in a text, without thousands separators. */
export function numbersIn(text: string): number[] {
  return (text.match(NUMBER) ?? []).map((number) => Number(number.replaceAll(",", "")));
}

/** The first number after the last `####`, as GSM8K's answers have it; else the last number. */
export function gsm8kNumber(text: string): number | undefined {
  const marked = text.split("####");
  const after = marked.length > 1 ? numbersIn(marked.at(-1)!)[0] : undefined;
  return after ?? numbersIn(text).at(-1);
}

/** The content of the last `\boxed{...}` or `\fbox{...}`, with balanced braces; of `\boxed 5`, the word after it. */
export function lastBoxed(text: string): string | undefined {
  const at = Math.max(text.lastIndexOf("\\boxed"), text.lastIndexOf("\\fbox"));
  if (at < 0) return undefined;
  const rest = text.slice(at).replace(/^\\(boxed|fbox)/, "");
  if (!rest.startsWith("{")) return /^\s+([^\s$]+)/.exec(rest)?.[1];
  let depth = 0;
  for (let i = 0; i < rest.length; i++) {
    if (rest[i] === "{" && rest[i - 1] !== "\\") depth++;
    if (rest[i] === "}" && rest[i - 1] !== "\\") depth--;
    if (depth === 0) return rest.slice(1, i);
  }
  return undefined;
}

/**
 * The answer of a solution to a MATH problem: the last boxed content; else what follows `The final answer is`, or `The answer is`;
 * else the text itself where it is one short line without a sentence.
 */
export function mathAnswer(text: string): string | undefined {
  const boxed = lastBoxed(text);
  if (boxed !== undefined || /\\(?:boxed|fbox)/.test(text)) return boxed;
  const stated = [
    ...text.matchAll(/(?:final answer|answer)(?: is)?\s*:?\s*(.+?)(?:\.?\s*I hope it is correct|\.\s|\.?$)/gim),
  ];
  if (stated.length > 0) return stated.at(-1)![1];
  const line = text.trim();
  return line.length > 0 && line.length <= 100 && !line.includes("\n") && !/[a-z]{2,} [a-z]{2,}/i.test(line)
    ? line
    : undefined;
}
