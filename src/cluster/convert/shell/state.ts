/** The state of a shell: variables, functions, arguments; copied at a branch and merged after it. */
import type { CompoundCommand, CompoundList, Redirected } from "unbash";
import { hasUnknown, type Item } from "./text.ts";

/** A text, or the elements of an array by index or key. */
export type Variable = Item | ReadonlyMap<string, Item>;
/** A kept value: undefined if the script had not used the name, `{ value: undefined }` if the name was unset. */
export type SavedVariable = { readonly value: Variable | undefined } | undefined;
export type FunctionBody = CompoundCommand | Redirected | CompoundList;

/** Success of the last command; undefined if known only in a run. */
export type ExitStatus = boolean | undefined;

export function isShellArray(variable: Variable): variable is ReadonlyMap<string, Item> {
  return variable instanceof Map;
}

export class ShellState {
  variables = new Map<string, Variable | undefined>();
  functions = new Map<string, FunctionBody | "unknown">();
  exported = new Set<string>();
  positional: readonly Item[] = [];
  /** An unknown condition decides the number of arguments: one represents all. */
  hasOpenArguments = false;
  /** Variables that `local` hides, per running function. */
  frames: Map<string, SavedVariable>[] = [];
  status: ExitStatus = true;
  /** Output of a command substitution so far. */
  output = "";
  /** `set -u`. */
  isStrict = false;

  clone(): ShellState {
    const copy = new ShellState();
    copy.variables = new Map(this.variables);
    copy.functions = new Map(this.functions);
    copy.exported = new Set(this.exported);
    copy.positional = this.positional;
    copy.hasOpenArguments = this.hasOpenArguments;
    copy.frames = this.frames.map((frame) => new Map(frame));
    copy.status = this.status;
    copy.output = this.output;
    copy.isStrict = this.isStrict;
    return copy;
  }
}

/** Merges two possible states of a script: differences become unknown. */
export function mergeStates(a: ShellState, b: ShellState, unknown: () => Item): ShellState {
  const merged = a.clone();
  for (const name of new Set([...a.variables.keys(), ...b.variables.keys()])) {
    const isSame =
      a.variables.has(name) === b.variables.has(name) && equalVariables(a.variables.get(name), b.variables.get(name));
    if (!isSame) merged.variables.set(name, unknown());
  }
  for (const name of new Set([...a.functions.keys(), ...b.functions.keys()])) {
    if (a.functions.get(name) !== b.functions.get(name)) merged.functions.set(name, "unknown");
  }
  for (const name of b.exported) merged.exported.add(name);
  if (!equalItems(a.positional, b.positional)) {
    merged.positional = [unknown()];
    merged.hasOpenArguments = true;
  }
  merged.status = a.status === b.status ? a.status : undefined;
  if (a.output !== b.output) merged.output = unknown().text;
  return merged;
}

function equalVariables(a: Variable | undefined, b: Variable | undefined): boolean {
  if (a === b) return true;
  if (a === undefined || b === undefined || isShellArray(a) !== isShellArray(b)) return false;
  if (!isShellArray(a) || !isShellArray(b)) return equalItem(a as Item, b as Item);
  return a.size === b.size && [...a].every(([key, item]) => equalItem(item, b.get(key)));
}

function equalItem(a: Item, b: Item | undefined): boolean {
  return b !== undefined && a.text === b.text && !hasUnknown(a.text);
}

function equalItems(a: readonly Item[], b: readonly Item[]): boolean {
  return a.length === b.length && a.every((item, i) => equalItem(item, b[i]));
}
