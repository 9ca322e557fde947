/** A command as plain data. One small file, front.ts, drives commands with commander; another library needs no other change. */
import type { RunIo } from "../train/run/io.ts";

/** The process as a command sees it: `err` takes everything for people. Tests pass their own. */
export interface Io extends RunIo {
  /** Machine-readable output and nothing else. Adds no newline. */
  out(text: string): void;
  /** Called before a command runs: signals end the process from here on, whatever JavaScript runs. */
  begin?(): void;
  /** Aborts on Ctrl-C or SIGTERM; a second one ends the process at once. */
  readonly signal: AbortSignal;
  /** Names work that would be lost: a second signal waits for it, most of a second; a third does not. */
  finishing?(work: Promise<unknown>): void;
  /** Whole text of standard input. */
  stdin(): Promise<string>;
  /** Standard input line by line. Absent where nothing can be typed. */
  typing?(history: readonly string[]): Typing;
}

/** Input that a person types, or another program pipes in. */
export interface Typing {
  /** Someone sits at a terminal: prompts are shown, and keys are read. */
  readonly isTerminal: boolean;
  /** Earlier entries, the latest first. */
  readonly history: readonly string[];
  /** The next line, or several that were pasted at once. */
  next(prompt: string): Promise<Typed>;
  /** Runs work, during which Ctrl-C calls `onInterrupt` instead of ending the process. */
  during<T>(work: () => Promise<T>, onInterrupt: () => void): Promise<T>;
  close(): void;
}

export type Typed =
  | { readonly kind: "text"; readonly text: string }
  /** Ctrl-C */
  | { readonly kind: "interrupt" }
  /** Ctrl-D, or the end of a file. */
  | { readonly kind: "end" };

/** One `--flag`. Without `value` it is a boolean. */
export interface Option {
  /** Long name with dashes: `--max-tokens`. */
  readonly flag: string;
  readonly describe: string;
  /** Placeholder of the value: `N`, `DIR`, `key=value`. */
  readonly value?: string;
  /** May be given several times; the parsed value is then a list. */
  readonly repeat?: boolean;
  readonly required?: boolean;
  readonly choices?: readonly string[];
  readonly default?: string;
}

/** Arguments and options of the command line. Option keys are camelCase (`--max-tokens` is `maxTokens`). */
export interface Input {
  readonly args: readonly string[];
  readonly options: Readonly<Record<string, string | boolean | readonly string[] | undefined>>;
}

export interface Command {
  /** Words that select it: `config show`. */
  readonly path: string;
  readonly summary: string;
  /** Positional arguments in usage form: `[config.yaml] [key=value ...]`. `...` means any number. */
  readonly args?: string;
  readonly options?: readonly Option[];
  /** Whole command lines, shown by `--help`. */
  readonly examples: readonly string[];
  /** Extra text under the options in `--help`. */
  readonly notes?: string;
  /**
   * Whether the files that the command writes have the usual permissions, because they hold nobody's conversations.
   * Default: false; only this user can read them.
   */
  readonly writesForOthers?: boolean;
  /** Loads what it needs on demand, so that starting the CLI stays quick. Returns the exit code (0 if nothing). */
  run(input: Input, io: Io): Promise<number | undefined> | Promise<void>;
}
