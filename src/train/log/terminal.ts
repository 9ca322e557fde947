/** The terminal's properties, and text made safe for it: prompts, samples, keys and foreign errors may hold control characters. */

/** Destination of lines for people. */
export interface Screen {
  /** Adds no newline. */
  err(text: string): void;
  /** True when `err` is a terminal that may be redrawn. */
  readonly isTerminal: boolean;
  /** True when color is wanted (`NO_COLOR` unset and a terminal). */
  readonly color: boolean;
  readonly columns: number;
}

const DEFAULT_COLUMNS = 100;

/** This process's standard error. */
export function processScreen(): Screen {
  const { env, stderr, stdout } = process;
  const isTerminal = stderr.isTTY === true && env.TERM !== "dumb";
  return {
    err: (text) => void stderr.write(forTerminal(text)),
    isTerminal,
    color: isTerminal && !env.NO_COLOR,
    get columns() {
      return stderr.columns ?? stdout.columns ?? DEFAULT_COLUMNS;
    },
  };
}

/** Colors that this program prints: bold, dim, green, cyan, reset. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is about control characters
const OWN_COLOR = /\x1b\[(?:0|1|2|32|36)m/;
/** Its redraw of a line, only at the start of a write. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is about control characters
const OWN_REDRAW = /^\r\x1b\[2K/;
/** Control characters except tab, LF and CRLF, and marks that reorder text. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is about control characters
const UNSAFE = /\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;

/** The text with every character that would steer a terminal spelled out: `\x1b`, `\r`, `\u202e`. */
export function forTerminal(text: string): string {
  const redraw = OWN_REDRAW.exec(text)?.[0] ?? "";
  return (
    redraw +
    text
      .slice(redraw.length)
      .split(new RegExp(`(${OWN_COLOR.source})`))
      .map((part, i) => (i % 2 === 1 ? part : part.replace(UNSAFE, spelled)))
      .join("")
  );
}

function spelled(text: string): string {
  if (text === "\r\n") return text;
  if (text === "\r") return "\\r";
  const code = text.charCodeAt(0).toString(16);
  return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
}
