/** `{a,b}` and `{1..3}`, which bash expands first, on the raw text. */

/** The words that a word with braces expands to; the word itself if its braces are plain text. */
export function expandBraces(word: string): string[] {
  for (let i = 0; i < word.length; i = next(word, i)) {
    if (word[i] !== "{" || word[i - 1] === "$") continue;
    const found = alternatives(word, i);
    if (found === undefined) continue;
    const [before, rest] = [word.slice(0, i), expandBraces(word.slice(found.end))];
    return found.words.flatMap(expandBraces).flatMap((middle) => rest.map((after) => before + middle + after));
  }
  return [word];
}

/** The place behind a character, a quoted text, an escape or an expansion. */
function next(word: string, i: number): number {
  if (word[i] === "\\") return i + 2;
  if (word[i] === "'") return past(word, i, "'");
  if (word[i] === '"') return past(word, i, '"');
  if (word[i] === "$" && /[{(]/.test(word[i + 1] ?? "")) return closing(word, i + 1);
  return i + 1;
}

function past(word: string, i: number, quote: string): number {
  for (let j = i + 1; j < word.length; j++) {
    if (quote === '"' && word[j] === "\\") j++;
    else if (word[j] === quote) return j + 1;
  }
  return word.length;
}

function closing(word: string, i: number): number {
  const [open, close] = word[i] === "{" ? ["{", "}"] : ["(", ")"];
  let depth = 0;
  for (let j = i; j < word.length; j = next(word, j)) {
    if (word[j] === open) depth++;
    else if (word[j] === close && --depth === 0) return j + 1;
  }
  return word.length;
}

function alternatives(word: string, start: number): { words: string[]; end: number } | undefined {
  const commas: number[] = [];
  let depth = 0;
  for (let i = start; i < word.length; i = next(word, i)) {
    if (word[i] === "{") depth++;
    else if (word[i] === "," && depth === 1) commas.push(i);
    else if (word[i] === "}" && --depth === 0) {
      const inside = word.slice(start + 1, i);
      if (commas.length === 0) return sequence(inside, i + 1);
      const cuts = [start, ...commas, i];
      return { words: cuts.slice(1).map((cut, k) => word.slice(cuts[k]! + 1, cut)), end: i + 1 };
    }
  }
  return undefined;
}

function sequence(inside: string, end: number): { words: string[]; end: number } | undefined {
  const match = /^(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?$/.exec(inside);
  if (!match) return undefined;
  const [from, to] = [Number(match[1]), Number(match[2])];
  const step = (Math.abs(Number(match[3] ?? 1)) || 1) * (from <= to ? 1 : -1);
  const isPadded = [match[1]!, match[2]!].some((text) => /^-?0\d/.test(text));
  const width = isPadded ? Math.max(match[1]!.length, match[2]!.length) : 0;
  const count = Math.floor((to - from) / step) + 1;
  if (count > 10_000) return undefined;
  const words = Array.from({ length: count }, (_, i) => String(from + i * step).padStart(width, "0"));
  return { words, end };
}
