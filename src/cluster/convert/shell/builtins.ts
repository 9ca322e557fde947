/** Builtins of the shell, as far as settings can depend on them. */
import { type Command, parse } from "unbash";
import { evaluateArithmetic } from "./arithmetic.ts";
import { assign } from "./assign.ts";
import { cat, echo, namePart, print, printf, seq } from "./builtin_output.ts";
import { type Builtin, forget, type ShellCall } from "./call.ts";
import { testWords } from "./condition.ts";
import type { Flow, Shell } from "./shell.ts";
import { isShellArray } from "./state.ts";
import { commandText, isKnown } from "./text.ts";

const nothing: Builtin = (shell) => shell.succeed(true);

export const BUILTINS: Readonly<Record<string, Builtin>> = {
  ":": nothing,
  true: nothing,
  false: (shell) => shell.succeed(false),
  shopt: nothing,
  trap: nothing,
  ulimit: nothing,
  umask: nothing,
  alias: nothing,
  wait: nothing,
  set: setOptions,
  shift,
  unset,
  export: declare,
  declare,
  typeset: declare,
  readonly: declare,
  local: declare,
  test: (shell, { args, node }) => shell.succeed(testWords(shell, args, node.pos)),
  "[": (shell, { args, node }) => shell.succeed(testWords(shell, args.slice(0, -1), node.pos)),
  let: (shell, call) => letSums(shell, call),
  exit: (shell, { line }) => {
    shell.session.ends.push(line);
    return "exit";
  },
  return: () => "return",
  break: (shell, call) => leave(shell, call, "break"),
  continue: (shell, call) => leave(shell, call, "continue"),
  cd: changeFolder,
  pushd: changeFolder,
  popd: changeFolder,
  pwd: (shell, call) => print(shell, call, `${shell.variableText("PWD", call.line) ?? ""}\n`),
  echo,
  printf,
  cat,
  basename: (shell, call) => namePart(shell, call, "basename"),
  dirname: (shell, call) => namePart(shell, call, "dirname"),
  seq,
  eval: (shell, call) => evalText(shell, call),
  source: (shell, call) => unknownEffect(shell, call, "source"),
  ".": (shell, call) => unknownEffect(shell, call, "source"),
  read: (shell, call) => forget(shell, call, "read"),
  mapfile: (shell, call) => forget(shell, call, "mapfile"),
  readarray: (shell, call) => forget(shell, call, "readarray"),
  getopts: (shell, call) => forget(shell, call, "getopts"),
};

function setOptions(shell: Shell, { args }: ShellCall): Flow {
  const end = args.findIndex(({ text }) => text === "--");
  const options = end < 0 ? args : args.slice(0, end);
  for (const { text } of options) {
    if (/^-[a-z]*u/.test(text) || text === "nounset") shell.state.isStrict = true;
    if (/^\+[a-z]*u/.test(text)) shell.state.isStrict = false;
  }
  if (end >= 0) shell.setArguments(args.slice(end + 1));
  else if (args.length > 0 && !/^[-+]/.test(args[0]!.text)) shell.setArguments(args);
  return shell.succeed(true);
}

function shift(shell: Shell, { args, node }: ShellCall): Flow {
  const count = Number(args[0]?.text ?? 1);
  if (!Number.isInteger(count)) return shell.refuse("it shifts by an unknown number", node.pos);
  const { positional, hasOpenArguments } = shell.state;
  if (hasOpenArguments) return shell.refuse("it shifts an unknown number of arguments", node.pos);
  if (count > positional.length) return shell.succeed(false);
  shell.state.positional = positional.slice(count);
  return shell.succeed(true);
}

function unset(shell: Shell, { args, line }: ShellCall): Flow {
  for (const { text } of args) {
    if (text.startsWith("-")) continue;
    if (!isKnown(text)) {
      forgetAll(shell, "what `unset` removes", line);
      continue;
    }
    const element = /^(\w+)\[(\w+)\]$/.exec(text);
    const list = element && shell.state.variables.get(element[1]!);
    if (element && list && isShellArray(list)) {
      shell.state.variables.set(element[1]!, new Map([...list].filter(([key]) => key !== element[2])));
    } else shell.state.variables.set(text, undefined);
    shell.state.functions.delete(text);
  }
  return shell.succeed(true);
}

function declare(shell: Shell, { args, node, assignments, line }: ShellCall): Flow {
  const command = node.name?.value ?? "";
  const flags = args.filter(({ text }) => text.startsWith("-")).map(({ text }) => text);
  const names = args.filter(({ text }) => !text.startsWith("-"));
  const has = (letter: string) => flags.some((flag) => flag.includes(letter));
  const isLocal = command === "local" || (/^(declare|typeset)$/.test(command) && !has("g"));
  const frame = isLocal ? shell.state.frames.at(-1) : undefined;
  const hide = (name: string) => {
    if (frame && !frame.has(name)) frame.set(name, shell.keep(name));
    if (command === "export" || has("x")) shell.state.exported.add(name);
    if (has("A")) shell.maps.add(name);
  };
  if (has("n")) return shell.refuse("it declares a reference to another variable (declare -n)", node.pos);
  shell.state.status = true;
  for (const { text } of names) {
    const split = /^(\w+)(\+?)=([\s\S]*)$/.exec(text);
    const name = split?.[1] ?? text;
    if (!/^\w+$/.test(name)) return shell.refuse("it declares a variable with an unknown name", node.pos);
    hide(name);
    if (split) shell.setVariable(name, { text: split[3]!, line });
    else if (frame) shell.state.variables.set(name, undefined);
    else if (/^(declare|typeset)$/.test(command) && !shell.state.variables.has(name) && (has("a") || has("A")))
      shell.state.variables.set(name, new Map());
  }
  if (has("i") && assignments.length > 0)
    return shell.refuse("it declares a variable that is evaluated as arithmetic (declare -i)", node.pos);
  for (const assignment of assignments) {
    hide(assignment.name);
    assign(shell, assignment);
  }
  return "next";
}

function letSums(shell: Shell, { args, node }: ShellCall): Flow {
  let value: bigint | undefined = 0n;
  for (const { text } of args) {
    const [statement] = parse(`((${text}))`).commands;
    const command = statement?.command;
    if (command?.type !== "ArithmeticCommand")
      return shell.refuse("it evaluates an invalid arithmetic expression", node.pos);
    value = shell.withSource(`((${text}))`, node.pos, () => evaluateArithmetic(shell, command.expression));
  }
  return shell.succeed(value === undefined ? undefined : value !== 0n);
}

function leave(shell: Shell, { args, node }: ShellCall, flow: "break" | "continue"): Flow {
  const depth = args[0]?.text ?? "1";
  return depth === "1" ? flow : shell.refuse(`it leaves ${depth} loops at once`, node.pos);
}

/** The folder is known where its path is absolute. */
function changeFolder(shell: Shell, { args, line }: ShellCall): Flow {
  const to = args.find(({ text }) => !/^-/.test(text))?.text;
  const isAbsolute = to !== undefined && isKnown(to) && to.startsWith("/");
  const item = isAbsolute ? { text: to, line } : shell.session.unknown("the folder that `cd` goes to", line);
  shell.setVariable("PWD", item);
  return shell.succeed(undefined);
}

function evalText(shell: Shell, call: ShellCall): Flow {
  const text = call.args.map((word) => word.text).join(" ");
  if (!isKnown(text)) return unknownEffect(shell, call, "eval");
  const script = parse(text);
  if (script.errors !== undefined) return shell.refuse("it evaluates a text that bash cannot parse", call.node.pos);
  return shell.withSource(text, call.node.pos, () => shell.runScript(script.commands));
}

/** Another file, or a text known only in a run, can change every variable. */
function unknownEffect(shell: Shell, call: ShellCall, command: string): Flow {
  if (isHarmless(call.node.suffix[0])) return shell.succeed(undefined);
  const what = `\`${command} ${commandText(call.args)}\``;
  forgetAll(shell, `what ${what} sets`, call.line);
  shell.session.remark(`what ${what} sets is not read`, call.line);
  return shell.succeed(undefined);
}

/** Conda and virtual environments set `PATH` and their own variables, never those of a script. */
function isHarmless(argument: Command["suffix"][number] | undefined): boolean {
  const text = argument?.type === "Word" ? argument.text : "";
  return /^"?\$\((\S*\/)?(conda|mamba|micromamba) shell\.\S+ hook\)"?$|\/bin\/activate"?$|\/etc\/profile\.d\/conda\.sh"?$/.test(
    text,
  );
}

function forgetAll(shell: Shell, why: string, line: number): void {
  for (const name of shell.state.variables.keys()) shell.state.variables.set(name, shell.session.unknown(why, line));
}
