/** Reads the settings of the run that a launch script starts, as bash would pass them, without running anything. */
import { parse } from "unbash";
import type { Problem } from "../../../train/config/problem.ts";
import type { Note } from "../contract.ts";
import { programOf, readArguments } from "./launch.ts";
import { BadScript, type Launch, ShellSession } from "./session.ts";
import { Shell } from "./shell.ts";
import { runBody, runScript } from "./statements.ts";
import { hasReserved, hasUnknown, type Item, onlyEnvironment, render, unknownReasons } from "./text.ts";
import { expandPieces } from "./words.ts";

export interface ShellOptions {
  /** Variables of the environment, as `--env NAME=VALUE` gives them. */
  readonly env?: ReadonlyMap<string, string>;
  /** `$1`, `$2` and so on. */
  readonly args?: readonly string[];
}

export interface ShellWord extends Item {
  /** Reason why the value is not known. */
  readonly unread?: string | undefined;
}

export interface ShellRun {
  /** Overrides in their order, with `${oc.env:NAME}` for what the environment of the run sets. */
  readonly words: readonly ShellWord[];
  /** Program that the script starts, and where. */
  readonly program?: string | undefined;
  readonly line?: number;
  /** The configuration below the overrides, where it is not the program's own. */
  readonly configName?: Item | undefined;
  readonly notes: readonly Note[];
  readonly problems: readonly Problem[];
}

/** Follows a script to the one run that it starts; a problem says why a script cannot be followed. */
export function readShell(script: string, options: ShellOptions = {}): ShellRun {
  const refuse = (message: string, line?: number): ShellRun => ({
    words: [],
    notes: [],
    problems: [{ severity: "error", message, line }],
  });
  try {
    const { session, launch } = follow(script.replace(/\r\n/g, "\n"), options);
    return readLaunch(session, launch);
  } catch (error) {
    if (error instanceof BadScript) {
      return refuse(`Cannot follow the script: ${error.message}. Write the settings as key=value lines.`, error.line);
    }
    throw error;
  }
}

const INTERPRETER = { runScript, runBody, expandPieces };

/** Every command with overrides that a script starts, in order. @throws {BadScript} with the line. */
export function launchesOf(script: string, { env = new Map(), args = [] }: ShellOptions = {}): ShellSession {
  const session = new ShellSession(env);
  if (hasReserved(script)) throw new BadScript("it contains private-use characters (U+E000)", 1);
  const { commands, errors } = parse(script);
  const shell = new Shell(script, session, INTERPRETER);
  if (errors?.[0]) throw new BadScript(`bash cannot parse it (${errors[0].message})`, shell.lineAt(errors[0].pos));
  shell.state.positional = args.map((text) => ({ text, line: 1 }));
  runScript(shell, commands);
  return session;
}

function follow(script: string, options: ShellOptions): { session: ShellSession; launch: Launch } {
  const session = launchesOf(script, options);
  const [launch, second] = session.launches;
  if (launch === undefined) {
    const [end] = session.ends;
    if (end === undefined) throw new BadScript("it starts no run with settings (section.key=value)", 1);
    const wants = (options.args ?? []).length === 0 ? "; give its arguments with --arg" : "";
    throw new BadScript(`it ends before it starts a run${wants}`, end);
  }
  if (second !== undefined) {
    const isTail = programOf(second.words).name === undefined;
    if (isTail)
      throw new BadScript(
        `a command ends in the line before (a missing \\ or a comment after it), so "${shown(second.words[0]!.text)}" is a separate command`,
        second.line,
      );
    throw new BadScript(`it starts more than one run: lines ${launch.line} and ${second.line}`, second.line);
  }
  return { session, launch };
}

function readLaunch(session: ShellSession, { words, line, when, exported }: Launch): ShellRun {
  const program = programOf(words);
  const found = readArguments(program.words);
  const optional = found.others.filter(({ text }) => onlyEnvironment(text) !== undefined);
  const strange = found.others.filter((word) => !optional.includes(word));
  const problems: Problem[] = strange.map((word) => ({
    severity: "error",
    message: `Cannot read ${whyUnread(session, word.text) ?? `"${shown(word.text)}"`}: it is not a setting. Write key=value.`,
    line: word.line,
  }));
  return {
    words: found.overrides.map((word) => ({
      ...word,
      text: render(word.text, asInterpolation),
      unread: whyUnread(session, word.text),
    })),
    line,
    program: program.name === undefined ? undefined : shown(program.name),
    configName: found.configName,
    notes: notesOf(session, { optional, line, when, exported }),
    problems,
  };
}

/** `the output of \`date\` (line 3)`, where a part of the text is not known. */
function whyUnread(session: ShellSession, text: string): string | undefined {
  if (!hasUnknown(text)) return undefined;
  const reasons = unknownReasons(text).map((id) => session.reasons[id]!);
  return [...new Set(reasons.map(({ why, line }) => `${why} (line ${line})`))].join(", ");
}

function asInterpolation(name: string): string {
  return `\${oc.env:${name}}`;
}

function shown(text: string): string {
  return render(text, (name) => `$${name}`);
}

interface LaunchSummary extends Pick<Launch, "line" | "when" | "exported"> {
  readonly optional: readonly Item[];
}

function notesOf(session: ShellSession, { optional, line, when, exported }: LaunchSummary): Note[] {
  const notes: Note[] = [];
  const check = (message: string, at?: number) => notes.push({ kind: "check", message, line: at });
  const absent = new Set(optional.map(({ text }) => onlyEnvironment(text) as string));
  const open = [...session.open].filter((name) => !absent.has(name));
  if (session.unset.size > 0) {
    check(`treated as unset, so the script's defaults apply: ${list(session.unset)} (--env NAME=VALUE sets one)`);
  }
  if (absent.size > 0) check(`treated as empty: ${list(absent)} (--env NAME=VALUE sets one)`);
  if (open.length > 0) check(`read from the environment where the run starts: ${list(open)}`);
  if (exported.length > 0)
    check(`environment variables of the run, not settings. Set them where the run starts: ${list(exported)}`);
  for (const reason of when.filter(({ why }) => why === "the condition")) {
    check("the run starts only if this condition is true, or only if it is false", reason.line);
  }
  for (const { message, line: at } of session.remarks) if (at <= line) check(message, at);
  return notes;
}

function list(names: Iterable<string>): string {
  return [...names].sort().join(", ");
}
