/** Patterns of the shell (`*`, `?`, `[a-z]`) as regular expressions. */

/** A part of a word, and whether it is quoted. */
export interface PatternPiece {
  readonly text: string;
  readonly isQuoted: boolean;
  /** Begins another word: an element of a quoted list. */
  readonly isNext?: boolean;
}

/** Parts as one text. */
export function joinPieces(pieces: readonly PatternPiece[]): string {
  return pieces.map(({ text, isNext }) => (isNext ? ` ${text}` : text)).join("");
}

/** The source of a regular expression that matches what the pattern matches; undefined for extended patterns. */
export function patternSource(pieces: readonly PatternPiece[]): string | undefined {
  const chars = pieces.flatMap(({ text, isQuoted }) => [...text].map((char) => ({ char, isQuoted })));
  const plain = chars.map(({ char, isQuoted }) => (isQuoted ? "_" : char)).join("");
  if (/[?*+@!]\(|\[\[?[:.=]/.test(plain)) return undefined;
  let source = "";
  for (let i = 0; i < chars.length; i++) {
    const { char, isQuoted } = chars[i]!;
    const end = !isQuoted && char === "[" ? endOfBracket(chars, i) : -1;
    if (end > 0) {
      source += bracketSource(chars.slice(i + 1, end));
      i = end;
    } else if (isQuoted) source += escaped(char);
    else source += char === "*" ? "[\\s\\S]*" : char === "?" ? "[\\s\\S]" : escaped(char);
  }
  return source;
}

interface PatternChar {
  readonly char: string;
  readonly isQuoted: boolean;
}

/** The place of the `]`, which may also be the first member. */
function endOfBracket(chars: readonly PatternChar[], start: number): number {
  const isNegated = /[!^]/.test(chars[start + 1]?.char ?? "");
  const first = start + (isNegated ? 2 : 1);
  return chars.findIndex(({ char, isQuoted }, i) => i > first && char === "]" && !isQuoted);
}

function bracketSource(chars: readonly PatternChar[]): string {
  const isNegated = /^[!^]$/.test(chars[0]?.char ?? "") && !chars[0]!.isQuoted;
  const members = chars.slice(isNegated ? 1 : 0).map(({ char, isQuoted }) => {
    const isRange = char === "-" && !isQuoted;
    return isRange ? "-" : escaped(char);
  });
  return `[${isNegated ? "^" : ""}${members.join("")}]`;
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");
}

/** Removes what a pattern matches at the start (`#`, `##`) or the end (`%`, `%%`) of a text. */
export function removeMatch(text: string, pieces: readonly PatternPiece[], operator: string): string | undefined {
  const source = patternSource(pieces);
  if (source === undefined) return undefined;
  const whole = new RegExp(`^(?:${source})$`);
  const isStart = operator.startsWith("#");
  const isLongest = operator.length === 2;
  const lengths = Array.from({ length: text.length + 1 }, (_, i) => (isLongest ? text.length - i : i));
  for (const length of lengths) {
    const part = isStart ? text.slice(0, length) : text.slice(text.length - length);
    if (whole.test(part)) return isStart ? text.slice(length) : text.slice(0, text.length - length);
  }
  return text;
}

/** `${text/pattern/with}` and its forms for all matches, the start and the end. */
export function replaceMatch(
  text: string,
  pieces: readonly PatternPiece[],
  { operator, replacement }: { operator: string; replacement: string },
): string | undefined {
  const source = patternSource(pieces);
  if (source === undefined) return undefined;
  if (source === "") return text;
  const [before, after] = [operator === "/#" ? "^" : "", operator === "/%" ? "$" : ""];
  const found = new RegExp(`${before}(?:${source})${after}`, operator === "//" ? "g" : "");
  return text.replace(found, () => replacement);
}
