/** The words of a launch script, as a shell would see them; nothing is run. */

export interface ShellWord {
  readonly text: string;
  readonly line: number;
}

/**
 * Splits a script into words: quotes, continuation lines, comments, and variables that the script itself assigns.
 * `$HOME` and other variables of the environment become `${oc.env:NAME}`; `$@` and `$1` vanish.
 */
export function shellWords(script: string): ShellWord[] {
  const variables = new Map<string, string>();
  const words: ShellWord[] = [];
  for (const { text, line } of logicalLines(script)) {
    const found = splitLine(text, variables);
    const isAssignment =
      found.length > 0 &&
      found.every((word) => /^(export|readonly|declare|local)$|^[A-Za-z_]\w*=/.test(word));
    for (const word of found) {
      const assignment = /^([A-Za-z_]\w*)=([\s\S]*)$/.exec(word);
      if (isAssignment && assignment) variables.set(assignment[1], assignment[2]);
      else words.push({ text: word, line: line + lineWithin(text, word) });
    }
  }
  return words;
}

function logicalLines(script: string): ShellWord[] {
  const lines: ShellWord[] = [];
  let pending = "";
  let start = 1;
  script.split("\n").forEach((raw, i) => {
    if (pending === "") start = i + 1;
    const line = raw.replace(/\r$/, "");
    if (line.endsWith("\\")) pending += `${line.slice(0, -1)}\n`;
    else {
      lines.push({ text: pending + line, line: start });
      pending = "";
    }
  });
  if (pending !== "") lines.push({ text: pending, line: start });
  return lines;
}

/** Which of the physical lines of a continued line a word stands on. */
function lineWithin(text: string, word: string): number {
  const key = word.split("=")[0];
  const at = text.indexOf(`${key}=`);
  return at < 0 ? 0 : text.slice(0, at).split("\n").length - 1;
}

function splitLine(line: string, variables: ReadonlyMap<string, string>): string[] {
  const words: string[] = [];
  let word: string | undefined;
  let quote: string | undefined;
  for (let i = 0; i < line.length; i++) {
    const char = line[i];
    if (quote === "'") {
      if (char === "'") quote = undefined;
      else word += char;
    } else if (char === quote) quote = undefined;
    else if (char === "\\" && i + 1 < line.length) word = (word ?? "") + line[++i];
    else if (char === "$") {
      const { text, length } = expand(line.slice(i), variables);
      word = (word ?? "") + text;
      i += length - 1;
    } else if (quote) word += char;
    else if (char === "'" || char === '"') {
      quote = char;
      word ??= "";
    } else if (/\s/.test(char)) {
      if (word !== undefined) words.push(word);
      word = undefined;
    } else if (char === "#" && word === undefined) break;
    else word = (word ?? "") + char;
  }
  if (word !== undefined) words.push(word);
  return words.filter((text) => text !== "");
}

function expand(text: string, variables: ReadonlyMap<string, string>): { text: string; length: number } {
  const positional = /^\$(?:\{[@*#\d][^}]*\}|[@*#?$!\d-])/.exec(text);
  if (positional) return { text: "", length: positional[0].length };
  const interpolation = /^\$\{[\w.]+(?:\.[\w.]+|:[^}-][^}]*)\}/.exec(text);
  if (interpolation) return { text: interpolation[0], length: interpolation[0].length };
  const named = /^\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))/.exec(text);
  if (!named) return { text: "$", length: 1 };
  const name = named[1] ?? named[3];
  const known = variables.get(name);
  if (known !== undefined) return { text: known, length: named[0].length };
  const fallback = named[2] === undefined ? "" : `,${named[2]}`;
  return { text: `\${oc.env:${name}${fallback}}`, length: named[0].length };
}
