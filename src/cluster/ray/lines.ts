/** Complete lines of a log that arrives in pieces. */
import type { LineListener, LogLine } from "./contract.ts";

/** Most of one line that is kept, in UTF-16 units. The rest is counted and left out. */
export const MOST_OF_A_LINE = 2 ** 20;

/** Cuts pieces of text into lines. Keeps at most {@link MOST_OF_A_LINE} of an unfinished one. */
export class LineSplitter {
  private readonly listener: LineListener;
  private readonly parts: string[] = [];
  private kept = 0;
  private left = 0;

  constructor(listener: LineListener) {
    this.listener = listener;
  }

  feed(text: string): void {
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      this.add(text.slice(start, end));
      this.flush();
      start = end + 1;
    }
    this.add(text.slice(start));
  }

  /** The log is over: what follows its last line feed is a line too. */
  end(): void {
    if (this.kept > 0) this.flush();
  }

  private add(text: string): void {
    const fits = text.slice(0, MOST_OF_A_LINE - this.kept);
    this.left += text.length - fits.length;
    this.kept += fits.length;
    // A slice would keep the whole message alive while the line is unfinished; a copy of a megabyte is paid once a line.
    if (fits !== "") this.parts.push(fits);
  }

  private flush(): void {
    const more = this.left > 0 ? ` ... (${this.left} more characters)` : "";
    const line = this.parts.join("") + more;
    this.parts.length = 0;
    this.kept = 0;
    this.left = 0;
    this.listener(parseLine(line));
  }
}

/** CSI sequences (colours, cursor), OSC sequences (titles, links), and other escapes of two characters. */
const ESCAPES = // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])/g;

export function withoutEscapes(text: string): string {
  return text.includes("\x1b") ? text.replace(ESCAPES, "") : text;
}

/** `(TaskRunner pid=812, ip=10.0.0.7) ` */
const PREFIX = /^\((?:([^()]*?) )?pid=(\d+)(?:, ip=([^\s,)]+))?\) ?/;

/** A line of the log as it stands there. */
export function parseLine(line: string): LogLine {
  const text = withoutEscapes(line);
  const found = text.startsWith("(") ? PREFIX.exec(text) : null;
  if (!found) return { text };
  const [prefix, name = "", pid, ip] = found;
  return { text: text.slice(prefix.length), worker: { name, pid: Number(pid), ip } };
}
