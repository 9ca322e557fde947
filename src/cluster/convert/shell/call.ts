/** A call of a builtin. */
import type { Assignment, Command } from "unbash";
import type { Flow, Shell } from "./shell.ts";
import type { Item } from "./text.ts";

export interface ShellCall {
  readonly args: readonly Item[];
  readonly line: number;
  readonly node: Command;
  /** `NAME=value` of `export` and its like. */
  readonly assignments: readonly Assignment[];
  /** False where the output goes to a file. */
  readonly isPrinting: boolean;
}

export type Builtin = (shell: Shell, call: ShellCall) => Flow;

/** Variables that are read from a file or the terminal. */
export function forget(shell: Shell, { args, line, node }: ShellCall, command: string): Flow {
  const names = args.filter(({ text }) => /^[A-Za-z_]\w*$/.test(text));
  if (names.length === 0) return shell.refuse(`it reads into an unnamed variable (${command})`, node.pos);
  for (const { text } of names) shell.setVariable(text, shell.session.unknown(`what \`${command}\` reads`, line));
  return shell.succeed(undefined);
}
