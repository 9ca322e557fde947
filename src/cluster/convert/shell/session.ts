/** State shared by all branches of one reading: the environment, the reasons, the runs that the script starts. */
import { ALWAYS_SET, environmentMark, type Item, unknownMark } from "./text.ts";

/** Reason why a script cannot be followed, with its line. */
export class BadScript extends Error {
  readonly line: number;
  constructor(message: string, line: number) {
    super(message);
    this.line = line;
  }
}

export interface Reason {
  /** The unknown part: `the output of \`date\``. */
  readonly why: string;
  readonly line: number;
}

/** A program that the script starts with settings. */
export interface Launch {
  readonly words: readonly Item[];
  readonly line: number;
  /** Unknown conditions that it depends on. */
  readonly when: readonly Reason[];
  /** Variables that the script exports before. */
  readonly exported: readonly string[];
}

/** Set by the shell itself; the value is known only in a run. */
const OF_THE_SHELL =
  /^(BASH.*|RANDOM|SRANDOM|SECONDS|EPOCH.*|LINENO|PPID|UID|EUID|OLDPWD|PIPESTATUS|REPLY|FUNCNAME|OSTYPE|MACHTYPE|HOSTTYPE)$/;
/** More commands than any launch script runs; more mean an endless loop. */
const MOST_COMMANDS = 100_000;

export class ShellSession {
  readonly launches: Launch[] = [];
  readonly reasons: Reason[] = [];
  /** Variables whose default in the script counts, because nothing sets them. */
  readonly unset = new Set<string>();
  /** Variables that stay variables of the environment. */
  readonly open = new Set<string>();
  /** Unknown conditions around the command that is read. */
  readonly when: Reason[] = [];
  /** Lines of `exit`. */
  readonly ends: number[] = [];
  /** Files whose effect on variables is not known. */
  readonly remarks: { readonly message: string; readonly line: number }[] = [];
  /** False while a loop body is only looked at. */
  isCounting = true;
  readonly given: ReadonlyMap<string, string>;
  private commands = 0;

  constructor(environment: ReadonlyMap<string, string>) {
    this.given = environment;
  }

  /** The value that the environment gives a variable; undefined where it is unset. */
  environment(name: string, line: number, { hasDefault = false } = {}): string | undefined {
    const value = this.given.get(name);
    if (value !== undefined) return value;
    if (OF_THE_SHELL.test(name)) return this.unknown(`$${name}`, line).text;
    if (this.unset.has(name)) return undefined;
    if (hasDefault && !ALWAYS_SET.has(name) && !this.open.has(name)) {
      this.unset.add(name);
      return undefined;
    }
    this.open.add(name);
    return environmentMark(name);
  }

  unknown(why: string, line: number): Item {
    this.reasons.push({ why, line });
    return { text: unknownMark(this.reasons.length - 1), line };
  }

  launch(words: readonly Item[], line: number, exported: Iterable<string>): void {
    if (this.isCounting) this.launches.push({ words, line, when: [...this.when], exported: [...exported] });
  }

  remark(message: string, line: number): void {
    if (this.isCounting) this.remarks.push({ message, line });
  }

  count(line: number): void {
    this.commands++;
    if (this.commands > MOST_COMMANDS)
      throw new BadScript(`it runs more than ${MOST_COMMANDS} commands in a loop`, line);
  }
}
