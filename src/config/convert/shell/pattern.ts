/** Patterns of the shell (`*`, `?`, `[a-z]`) as regular expressions. */

/** A character of a pattern, and whether quotes take its meaning away. */
export interface PatternPiece {
  readonly text: string;
  readonly isQuoted: boolean;
}

/** The source of a regular expression that matches what the pattern matches; undefined for extended patterns. */
export function patternSource(pieces: readonly PatternPiece[], { isLazy = false } = {}): string | undefined {
  let source = "";
  for (const { text, isQuoted } of pieces) {
    const part = isQuoted ? escaped(text) : unquotedSource(text, isLazy);
    if (part === undefined) return undefined;
    source += part;
  }
  return source;
}

function unquotedSource(text: string, isLazy: boolean): string | undefined {
  if (/[?*+@!]\(/.test(text)) return undefined;
  let source = "";
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    if (char === "*") source += isLazy ? "[\\s\\S]*?" : "[\\s\\S]*";
    else if (char === "?") source += "[\\s\\S]";
    else if (char === "[") {
      const bracket = /^\[([!^]?)(\]?[^\]]*)\]/.exec(text.slice(i));
      if (bracket?.[2].includes("[:")) return undefined;
      if (bracket) {
        source += `[${bracket[1] ? "^" : ""}${bracket[2].replace(/[\\\]^[]/g, "\\$&")}]`;
        i += bracket[0].length - 1;
      } else source += "\\[";
    } else source += escaped(char);
  }
  return source;
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");
}

/** Removes what a pattern matches at the start (`#`, `##`) or the end (`%`, `%%`) of a text. */
export function removeMatch(
  text: string,
  pieces: readonly PatternPiece[],
  operator: string,
): string | undefined {
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
