/** Standard input line by line: a terminal with history and Ctrl-C, or what another program pipes in. */
import { createInterface, type Interface } from "node:readline";
import type { Typed, Typing } from "../command.ts";

/** Lines that arrive within this time after each other were pasted together, ms. */
const PASTE_MS = 25;
const MOST_HISTORY = 1000;
const CTRL_C = 3;

export interface TypingOptions {
  /** Earlier entries, the latest first. */
  readonly history: readonly string[];
  /** Ends the input. */
  readonly signal: AbortSignal;
}

/** Opens this process's standard input. */
export function openTyping(options: TypingOptions): Typing {
  return process.stdin.isTTY === true ? new TerminalTyping(options) : new PipedTyping(options.signal);
}

/** Prompts go to standard error, so that standard output holds replies alone. */
class TerminalTyping implements Typing {
  readonly isTerminal = true;
  history: string[];
  private readonly signal: AbortSignal;
  private reading: Interface | undefined;

  constructor({ history, signal }: TypingOptions) {
    this.history = [...history];
    this.signal = signal;
  }

  /** A reader for each line: between them the keys belong to {@link during}. */
  async next(prompt: string): Promise<Typed> {
    const reader = createInterface({
      input: process.stdin,
      output: process.stderr,
      terminal: true,
      history: [...this.history],
      historySize: MOST_HISTORY,
      removeHistoryDuplicates: true,
      prompt,
    });
    this.reading = reader;
    reader.on("history", (entries: string[]) => {
      this.history = entries;
    });
    reader.prompt();
    try {
      return await typed(reader, this.signal);
    } finally {
      reader.close();
      this.reading = undefined;
    }
  }

  async during<T>(work: () => Promise<T>, onInterrupt: () => void): Promise<T> {
    const { stdin } = process;
    // In raw mode Ctrl-C is a key and no signal; other keys are dropped, so that none lands in the middle of a reply.
    const onData = (keys: Buffer) => {
      if (keys.includes(CTRL_C)) onInterrupt();
    };
    stdin.setRawMode(true);
    stdin.on("data", onData);
    stdin.resume();
    try {
      return await work();
    } finally {
      stdin.off("data", onData);
      stdin.pause();
      stdin.setRawMode(false);
    }
  }

  close(): void {
    this.reading?.close();
    process.stdin.pause();
  }
}

function typed(reader: Interface, signal: AbortSignal): Promise<Typed> {
  return new Promise((resolve) => {
    const lines: string[] = [];
    let timer: NodeJS.Timeout | undefined;
    const settle = (typed: Typed) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
      resolve(typed);
    };
    const onAbort = () => settle({ kind: "end" });
    const whole = () => settle({ kind: "text", text: lines.join("\n") });
    reader.on("line", (line) => {
      lines.push(line);
      clearTimeout(timer);
      timer = setTimeout(whole, PASTE_MS);
    });
    reader.on("SIGINT", () => settle({ kind: "interrupt" }));
    reader.on("close", () => (lines.length > 0 ? whole() : settle({ kind: "end" })));
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
  });
}

/** One reader for the whole input: a second one would miss what the first has read ahead. */
class PipedTyping implements Typing {
  readonly isTerminal = false;
  readonly history: readonly string[] = [];
  private readonly reader: Interface;
  private readonly lines: AsyncIterator<string>;
  private readonly aborted: Promise<undefined>;
  private readonly signal: AbortSignal;

  constructor(signal: AbortSignal) {
    // One listener for all lines: a signal warns of more than ten.
    this.aborted = new Promise((resolve) => {
      if (signal.aborted) resolve(undefined);
      signal.addEventListener("abort", () => resolve(undefined), { once: true });
    });
    this.signal = signal;
    this.reader = createInterface({ input: process.stdin, terminal: false });
    this.lines = this.reader[Symbol.asyncIterator]();
  }

  async next(): Promise<Typed> {
    const line = await Promise.race([this.lines.next(), this.aborted]);
    return line === undefined || line.done ? { kind: "end" } : { kind: "text", text: line.value };
  }

  /** Signals come to the process, which ends. */
  async during<T>(work: () => Promise<T>, onInterrupt: () => void): Promise<T> {
    this.signal.addEventListener("abort", onInterrupt, { once: true });
    try {
      return await work();
    } finally {
      this.signal.removeEventListener("abort", onInterrupt);
    }
  }

  close(): void {
    this.reader.close();
  }
}
