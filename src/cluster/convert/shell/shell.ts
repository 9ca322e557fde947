/** An interpreter that follows a script as bash does but starts no program. */
import type { ArithmeticExpression, CommandExpansionPart, HereDocBody, Script, Statement, Word } from "unbash";
import { joinPieces, type PatternPiece } from "./pattern.ts";
import { BadScript, type ShellSession } from "./session.ts";
import {
  type ExitStatus,
  type FunctionBody,
  isShellArray,
  type SavedVariable,
  ShellState,
  type Variable,
} from "./state.ts";
import type { Item } from "./text.ts";

/** How a command ends: with the next one, or by leaving a loop, a function or the script. */
export type Flow = "next" | "break" | "continue" | "return" | "exit";

/** Syntax nodes with text to expand. */
export type Texts = Word | HereDocBody | Extract<ArithmeticExpression, { type: "ArithmeticWord" }>;

/** The two halves of reading, which need each other: statements expand words, and words hold statements (`$(...)`). */
export interface Interpreter {
  readonly runScript: (shell: Shell, statements: readonly Statement[]) => Flow;
  readonly runBody: (shell: Shell, body: FunctionBody) => Flow;
  readonly expandPieces: (shell: Shell, word: Texts, options?: { isQuoted?: boolean | undefined }) => PatternPiece[];
}

/** Deeper calls mean endless recursion. */
const DEEPEST_CALL = 200;

export class Shell {
  state = new ShellState();
  readonly session: ShellSession;
  private readonly interpreter: Interpreter;
  private source: string;
  /** Set while reading a text that the script does not contain literally. */
  private fixedLine: number | undefined;

  constructor(source: string, session: ShellSession, interpreter: Interpreter) {
    this.source = source;
    this.session = session;
    this.interpreter = interpreter;
  }

  runScript(statements: readonly Statement[]): Flow {
    return this.interpreter.runScript(this, statements);
  }

  /** A word in parts, each quoted or not; quoted parts of a pattern match literally. */
  expandPieces(word: Texts, options?: { isQuoted?: boolean | undefined }): PatternPiece[] {
    return this.interpreter.expandPieces(this, word, options);
  }

  /** A word as one text, without splitting: the value of an assignment, the operand of a test. */
  expandText(word: Texts): string {
    return joinPieces(this.expandPieces(word));
  }

  lineAt(pos: number): number {
    if (this.fixedLine !== undefined) return this.fixedLine;
    let line = 1;
    for (let at = this.source.indexOf("\n"); at >= 0 && at < pos; at = this.source.indexOf("\n", at + 1)) line++;
    return line;
  }

  /** Reads a text in place of the one at `pos`; its parts have the line of `pos`. */
  withSource<T>(source: string, pos: number, read: () => T): T {
    const [outer, line] = [this.source, this.fixedLine];
    this.fixedLine = this.lineAt(pos);
    this.source = source;
    try {
      return read();
    } finally {
      this.source = outer;
      this.fixedLine = line;
    }
  }

  refuse(what: string, pos: number): never {
    return this.refuseAt(what, this.lineAt(pos));
  }

  refuseAt(what: string, line: number): never {
    throw new BadScript(what, line);
  }

  unknownFrom(node: { readonly pos: number }, text: string): Item {
    return this.session.unknown(`\`${text.replace(/\s+/g, " ")}\``, this.lineAt(node.pos));
  }

  /** A variable of the script, or of the environment. */
  variable(name: string, line: number, { hasDefault = false } = {}): Variable | undefined {
    if (/^\d+$/.test(name))
      return name === "0" ? this.session.unknown("$0", line) : this.state.positional[Number(name) - 1];
    if (this.state.variables.has(name)) return this.state.variables.get(name);
    const text = this.session.environment(name, line, { hasDefault });
    return text === undefined ? undefined : { text, line };
  }

  /** The text of a variable, or of one element of a list: `NAME[2]`. */
  variableText(name: string, line: number, options: { hasDefault?: boolean } = {}): string | undefined {
    const element = /^(\w+)\[(\w+)\]$/.exec(name);
    const variable = this.variable(element?.[1] ?? name, line, options);
    if (variable === undefined || !isShellArray(variable)) return variable?.text;
    return variable.get(element?.[2] ?? "0")?.text;
  }

  setVariable(name: string, value: Variable | undefined): void {
    const element = /^(\w+)\[(\w+)\]$/.exec(name);
    if (element === null || value === undefined || isShellArray(value)) this.state.variables.set(name, value);
    else this.setElement(element[1]!, element[2]!, value);
  }

  setElement(name: string, key: string, item: Item): void {
    const old = this.state.variables.get(name);
    const elements = new Map(old === undefined ? [] : isShellArray(old) ? old : [["0", old]]);
    elements.set(key, item);
    const isIndexed = [...elements.keys()].every((index) => /^\d+$/.test(index));
    const sorted = isIndexed ? [...elements].sort(([a], [b]) => Number(a) - Number(b)) : elements;
    this.state.variables.set(name, new Map(sorted));
  }

  /** True for arrays whose keys are texts (`declare -A`). */
  isMap(name: string): boolean {
    return this.maps.has(name);
  }
  readonly maps = new Set<string>();

  /** `$#`, `$?` and their like. */
  special(name: string, line: number): Item | undefined {
    if (name === "#") {
      if (this.state.hasOpenArguments) return this.session.unknown("the number of arguments", line);
      return { text: String(this.state.positional.length), line };
    }
    if (name === "?") {
      const { status } = this.state;
      return status === true ? { text: "0", line } : this.session.unknown("the status of a command", line);
    }
    return /^[$!-]$/.test(name) ? this.session.unknown(`$${name}`, line) : undefined;
  }

  /** `$0`. */
  self(pos: number): Item {
    return this.session.unknown("$0", this.lineAt(pos));
  }

  /** Words are split at spaces; another `IFS` is not followed. */
  checkSeparators(line: number): void {
    const separators = this.state.variables.get("IFS");
    if (separators !== undefined) this.refuseAt("it changes IFS, which splits words", line);
  }

  /** The output of a command substitution without trailing line ends. */
  capture(script: Script | undefined, node: { readonly pos: number; readonly text: string }): string {
    if (script === undefined) return "";
    const inner = script as NonNullable<CommandExpansionPart["script"]>;
    if (inner.errors !== undefined) this.refuse("bash cannot parse it", node.pos);
    const outer = this.state;
    this.state = outer.clone();
    this.state.output = "";
    const source = inner.source;
    if (source === undefined) this.runScript(inner.commands);
    else this.withSource(source, node.pos, () => this.runScript(inner.commands));
    // A branch inside replaces the state.
    const { output, status } = this.state;
    this.state = outer;
    this.state.status = status;
    return output.replace(/\n+$/, "");
  }

  print(text: string): void {
    this.state.output += text;
  }

  /** Calls a function of the script. */
  call(body: FunctionBody, words: readonly Item[], line: number): Flow {
    if (this.state.frames.length >= DEEPEST_CALL) this.refuseAt("its functions call each other endlessly", line);
    const { positional, hasOpenArguments } = this.state;
    this.setArguments(words);
    this.state.frames.push(new Map());
    const flow = this.interpreter.runBody(this, body);
    for (const [name, kept] of this.state.frames.pop() ?? []) this.restore(name, kept);
    this.state.positional = positional;
    this.state.hasOpenArguments = hasOpenArguments;
    return flow === "return" ? "next" : flow;
  }

  setArguments(words: readonly Item[]): void {
    this.state.positional = words;
    this.state.hasOpenArguments = false;
  }

  /** Restores the value of a name. */
  restore(name: string, kept: SavedVariable): void {
    if (kept === undefined) this.state.variables.delete(name);
    else this.state.variables.set(name, kept.value);
  }

  /** The current value of a name, for `restore`. */
  keep(name: string): SavedVariable {
    const { variables } = this.state;
    return variables.has(name) ? { value: variables.get(name) } : undefined;
  }

  succeed(status: ExitStatus): Flow {
    this.state.status = status;
    return "next";
  }
}
