/** Drives `Command` values with commander: parsing, help, nearest names, and one line for what went wrong. */
import { CommanderError, Command as Parser, Option as ParserOption } from "commander";
import { ConfigError, fileError, RemoteError, ShaderError, UnsupportedError } from "../leaves/errors.ts";
import type { Command, Input, Io, Option } from "./command.ts";
import { EXIT_FAILED, EXIT_OK, EXIT_USAGE, EXITS, Fault, failedStatus, interruptedStatus } from "./process/exit.ts";

export interface CommandProgram {
  readonly name: string;
  readonly version: string;
  readonly summary: string;
  readonly commands: readonly Command[];
  /** Subjects of groups such as `grpu model`, by the first word of the commands in them. */
  readonly groups: Readonly<Record<string, string>>;
  readonly examples: readonly string[];
}

/** Folders 700, files 600: runs, traces, samples and reports hold what people said to a model. */
const PRIVATE = 0o077;

/** Runs one command line. Never throws: what goes wrong is a message on `io.err` and an exit code. */
export async function runProgram(program: CommandProgram, argv: readonly string[], io: Io): Promise<number> {
  let code: number = EXIT_OK;
  const parser = buildParser(program, io, async (command, input) => {
    io.begin?.();
    const before = command.writesForOthers ? undefined : process.umask(PRIVATE);
    try {
      code = (await command.run(input, io)) ?? EXIT_OK;
    } finally {
      if (before !== undefined) process.umask(before);
    }
  });
  try {
    await parser.parseAsync(argv, { from: "user" });
    return io.signal.reason instanceof Fault ? EXIT_FAILED : code;
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT_OK : EXIT_USAGE;
    if (isInterruption(error, io.signal)) return interruptedStatus(io.signal);
    io.err(explain(error, { name: program.name, io }));
    return io.signal.aborted ? interruptedStatus(io.signal) : failedStatus(error);
  }
}

/** True for the signal's reason and for the AbortError that a client of the runtime makes of it. Other errors are reported. */
function isInterruption(error: unknown, { aborted, reason }: AbortSignal): boolean {
  if (!aborted) return false;
  const { name, cause } = error as Partial<Error>;
  return error === reason || name === "AbortError" || (cause !== undefined && cause === reason);
}

type Action = (command: Command, input: Input) => Promise<void>;

function buildParser(program: CommandProgram, io: Io, act: Action): Parser {
  const root = settle(new Parser(program.name), { io, name: program.name })
    .description(program.summary)
    .version(program.version, "-V, --version", "print the version")
    .helpOption("-h, --help", "print help")
    .helpCommand(false);
  root.addHelpText("after", examplesText(program.examples) + exitsText());
  const groups = new Map<string, Parser>();
  for (const command of program.commands) {
    const words = command.path.split(" ");
    const parent = words.length === 1 ? root : groupOf(words[0]!, { root, groups, program, io });
    addCommand(parent, command, { program, io, act });
  }
  return root;
}

interface GroupContext {
  readonly root: Parser;
  readonly groups: Map<string, Parser>;
  readonly program: CommandProgram;
  readonly io: Io;
}

function groupOf(word: string, { root, groups, program, io }: GroupContext): Parser {
  const existing = groups.get(word);
  if (existing) return existing;
  const group = settle(root.command(word), { io, name: program.name }).description(program.groups[word] ?? "");
  group.helpOption("-h, --help", "print help").helpCommand(false);
  groups.set(word, group);
  return group;
}

function addCommand(parent: Parser, command: Command, context: { program: CommandProgram; io: Io; act: Action }): void {
  const parser = settle(parent.command(command.path.split(" ").at(-1) as string), {
    io: context.io,
    name: context.program.name,
  })
    .description(command.summary)
    .usage([command.options?.length ? "[options]" : "", command.args ?? ""].filter(Boolean).join(" "))
    .helpOption("-h, --help", "print help");
  parser.argument("[args...]", "").allowExcessArguments(true);
  parser.configureHelp({ visibleArguments: () => [], subcommandTerm: (each) => each.name() });
  for (const option of command.options ?? []) parser.addOption(toParserOption(option));
  const notes = command.notes ? `\n${wrapped(command.notes, helpWidth(context.io))}\n` : "";
  parser.addHelpText("after", notes + examplesText(command.examples));
  parser.action(async (args: string[], options: Input["options"]) => {
    if (!command.args && args.length > 0) parser.error(`error: ${command.path} takes no argument: ${args[0]}`);
    await context.act(command, { args, options });
  });
}

function settle(parser: Parser, { io, name }: { io: Io; name: string }): Parser {
  return parser
    .exitOverride()
    .showSuggestionAfterError(true)
    .configureOutput({
      // Help that was asked for is the output; help after a mistake is not.
      writeOut: (text) => io.out(text),
      writeErr: (text) => io.err(text),
      outputError: (text, write) => write(`${name}: ${text.replace(/^error: /, "")}`),
      getOutHelpWidth: () => helpWidth(io),
      getErrHelpWidth: () => helpWidth(io),
      getOutHasColors: () => false,
      getErrHasColors: () => false,
    });
}

const helpWidth = ({ columns }: Io) => Math.min(columns, 110);

/** Folds each line at spaces. */
function wrapped(text: string, width: number): string {
  return text.replace(new RegExp(`(.{1,${width - 1}})( +|$)`, "gm"), (_, line, gap) => line + (gap && "\n"));
}

function toParserOption(option: Option): ParserOption {
  const flags = option.value === undefined ? option.flag : `${option.flag} <${option.value}>`;
  const made = new ParserOption(flags, option.describe);
  if (option.choices) made.choices(option.choices);
  if (option.default !== undefined) made.default(option.repeat ? [option.default] : option.default);
  if (option.required) made.makeOptionMandatory(true);
  if (option.repeat) {
    made.argParser((value: string, before: unknown) => [...(Array.isArray(before) ? before : []), value]);
  }
  return made;
}

function examplesText(examples: readonly string[]): string {
  if (examples.length === 0) return "";
  return `\nExamples:\n${examples.map((example) => `  ${example}`).join("\n")}\n`;
}

function exitsText(): string {
  return `\nExit statuses:\n${EXITS.map(([status, meaning]) => `  ${status.padEnd(8)}${meaning}`).join("\n")}\n`;
}

const OUR_ERRORS = [ConfigError, ShaderError, UnsupportedError, RemoteError];

/** One message. An error of another class is a fault of grpu or of a user's module, so it mentions the stack. */
function explain(error: unknown, { name, io }: { name: string; io: Io }): string {
  if (!(error instanceof Error)) return `${name}: ${String(error)}\n`;
  if (io.env.GRPU_DEBUG) return `${name}: ${error.stack}\n`;
  const file = fileError(error);
  if (file) return `${name}: ${file.message}\n`;
  const isOurs = OUR_ERRORS.some((kind) => error instanceof kind) || error.message.startsWith("Cannot ");
  return isOurs
    ? `${name}: ${error.message}\n`
    : `${name}: ${error.name}: ${error.message} (GRPU_DEBUG=1 prints the stack)\n`;
}
