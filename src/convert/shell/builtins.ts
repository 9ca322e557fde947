/** What the shell does itself, as far as settings can depend on it. */
import { type Assignment, type Command, parse } from "unbash";
import { evaluate } from "./arithmetic.ts";
import { assign, commandText } from "./commands.ts";
import { testWords } from "./condition.ts";
import type { Flow, Shell } from "./shell.ts";
import { isList } from "./state.ts";
import { runScript } from "./statements.ts";
import { type Item, isKnown, knownTail } from "./text.ts";
import { expandText } from "./words.ts";

export interface Call {
  readonly args: readonly Item[];
  readonly line: number;
  readonly node: Command;
  /** `NAME=value` of `export` and its like. */
  readonly assignments: readonly Assignment[];
  /** False where the output goes to a file. */
  readonly isPrinting: boolean;
}

type Builtin = (shell: Shell, call: Call) => Flow;

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

function print(shell: Shell, { isPrinting }: Call, text: string): Flow {
  if (isPrinting) shell.print(text);
  return shell.succeed(true);
}

function setOptions(shell: Shell, { args }: Call): Flow {
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

function shift(shell: Shell, { args, node }: Call): Flow {
  const count = Number(args[0]?.text ?? 1);
  if (!Number.isInteger(count)) return shell.refuse("it shifts by what is not known", node.pos);
  const { positional, hasOpenArguments } = shell.state;
  if (hasOpenArguments) return shell.refuse("it shifts arguments whose number is not known", node.pos);
  if (count > positional.length) return shell.succeed(false);
  shell.state.positional = positional.slice(count);
  return shell.succeed(true);
}

function unset(shell: Shell, { args, line }: Call): Flow {
  for (const { text } of args) {
    if (text.startsWith("-")) continue;
    if (!isKnown(text)) {
      forgetAll(shell, "what `unset` removes", line);
      continue;
    }
    const element = /^(\w+)\[(\w+)\]$/.exec(text);
    const list = element && shell.state.variables.get(element[1]!);
    if (element && list && isList(list)) {
      shell.state.variables.set(element[1]!, new Map([...list].filter(([key]) => key !== element[2])));
    } else shell.state.variables.set(text, undefined);
    shell.state.functions.delete(text);
  }
  return shell.succeed(true);
}

function declare(shell: Shell, { args, node, assignments, line }: Call): Flow {
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
  if (has("n")) return shell.refuse("it declares a variable that is a name for another", node.pos);
  shell.state.status = true;
  for (const { text } of names) {
    const split = /^(\w+)(\+?)=([\s\S]*)$/.exec(text);
    const name = split?.[1] ?? text;
    if (!/^\w+$/.test(name)) return shell.refuse("it declares a variable whose name is not known", node.pos);
    hide(name);
    if (split) shell.setVariable(name, { text: split[3]!, line });
    else if (frame) shell.state.variables.set(name, undefined);
    else if (
      /^(declare|typeset)$/.test(command) &&
      !shell.state.variables.has(name) &&
      (has("a") || has("A"))
    )
      shell.state.variables.set(name, new Map());
  }
  if (has("i") && assignments.length > 0)
    return shell.refuse("it declares a variable that computes (declare -i)", node.pos);
  for (const assignment of assignments) {
    hide(assignment.name);
    assign(shell, assignment);
  }
  return "next";
}

function letSums(shell: Shell, { args, node }: Call): Flow {
  let value: bigint | undefined = 0n;
  for (const { text } of args) {
    const [statement] = parse(`((${text}))`).commands;
    const command = statement?.command;
    if (command?.type !== "ArithmeticCommand") return shell.refuse("it computes what is no sum", node.pos);
    value = shell.withSource(`((${text}))`, node.pos, () => evaluate(shell, command.expression));
  }
  return shell.succeed(value === undefined ? undefined : value !== 0n);
}

function leave(shell: Shell, { args, node }: Call, flow: "break" | "continue"): Flow {
  const depth = args[0]?.text ?? "1";
  return depth === "1" ? flow : shell.refuse(`it leaves ${depth} loops at once`, node.pos);
}

/** The folder is known where its path is absolute. */
function changeFolder(shell: Shell, { args, line }: Call): Flow {
  const to = args.find(({ text }) => !/^-/.test(text))?.text;
  const isAbsolute = to !== undefined && isKnown(to) && to.startsWith("/");
  const item = isAbsolute ? { text: to, line } : shell.session.unknown("the folder that `cd` goes to", line);
  shell.setVariable("PWD", item);
  return shell.succeed(undefined);
}

function echo(shell: Shell, call: Call): Flow {
  const flags = call.args.findIndex(({ text }) => !/^-[neE]+$/.test(text));
  const count = flags < 0 ? call.args.length : flags;
  const options = call.args
    .slice(0, count)
    .map(({ text }) => text)
    .join("");
  const text = call.args
    .slice(count)
    .map((word) => word.text)
    .join(" ");
  const isEscaped = options.includes("e") && text.includes("\\");
  if (isEscaped) return print(shell, call, shell.session.unknown("the output of `echo -e`", call.line).text);
  return print(shell, call, options.includes("n") ? text : `${text}\n`);
}

function printf(shell: Shell, call: Call): Flow {
  const [format, ...values] = call.args.map(({ text }) => text);
  if (format === "-v" || format === undefined) return forget(shell, call, "printf");
  const places = format.match(/%[sd%]/g) ?? [];
  const isPlain = !/%[^sd%]/.test(format) && !/\\[^n]/.test(format);
  const isOnce = values.length === places.filter((place) => place !== "%%").length;
  if (!isPlain || !isOnce)
    return print(shell, call, shell.session.unknown("the output of `printf`", call.line).text);
  let next = 0;
  const text = format.replace(/%[sd%]/g, (place) => (place === "%%" ? "%" : values[next++]!));
  return print(shell, call, text.replaceAll("\\n", "\n"));
}

/** `cat <<EOF`: the text itself. */
function cat(shell: Shell, call: Call): Flow {
  const document = call.node.redirects.find((it) => it.type === "HereDoc" || it.type === "HereString");
  if (document === undefined || call.args.length > 0) {
    return print(
      shell,
      call,
      shell.session.unknown(`the output of \`cat ${commandText(call.args)}\``, call.line).text,
    );
  }
  if (document.type === "HereString") {
    const text = document.target === undefined ? "" : expandText(shell, document.target);
    return print(shell, call, `${text}\n`);
  }
  const { body, delimiter, operator } = document;
  const text = delimiter?.quoted ? body.text : expandText(shell, body);
  return print(shell, call, operator === "<<-" ? text.replace(/^\t+/gm, "") : text);
}

function namePart(shell: Shell, call: Call, command: "basename" | "dirname"): Flow {
  const [path, suffix, more] = call.args.map(({ text }) => text);
  const unknown = () =>
    print(
      shell,
      call,
      shell.session.unknown(`the output of \`${command} ${commandText(call.args)}\``, call.line).text,
    );
  const isPlain = path !== undefined && more === undefined && !path.startsWith("-") && !/\/$/.test(path);
  if (!isPlain || !knownTail(path).includes("/")) {
    if (!isPlain || !isKnown(path)) return unknown();
    return print(shell, call, `${command === "basename" ? withoutSuffix(path, suffix) : "."}\n`);
  }
  const slash = path.lastIndexOf("/");
  if (command === "dirname") {
    const folder = path.slice(0, slash).replace(/\/+$/, "");
    return print(shell, call, `${folder === "" ? "/" : folder}\n`);
  }
  return print(shell, call, `${withoutSuffix(path.slice(slash + 1), suffix)}\n`);
}

function withoutSuffix(name: string, suffix: string | undefined): string {
  return suffix && name !== suffix && name.endsWith(suffix) ? name.slice(0, -suffix.length) : name;
}

function seq(shell: Shell, call: Call): Flow {
  const numbers = call.args.map(({ text }) => (/^-?\d+$/.test(text) ? Number(text) : Number.NaN));
  const [first, step, last] =
    numbers.length === 1 ? [1, 1, numbers[0]] : numbers.length === 2 ? [numbers[0], 1, numbers[1]] : numbers;
  const count = Math.floor((last! - first!) / step) + 1;
  if (!(count >= 0 && count <= 10_000)) {
    return print(shell, call, shell.session.unknown("the output of `seq`", call.line).text);
  }
  return print(shell, call, Array.from({ length: count }, (_, i) => `${first! + i * step}\n`).join(""));
}

function evalText(shell: Shell, call: Call): Flow {
  const text = call.args.map((word) => word.text).join(" ");
  if (!isKnown(text)) return unknownEffect(shell, call, "eval");
  const script = parse(text);
  if (script.errors !== undefined) return shell.refuse("it evaluates what bash cannot read", call.node.pos);
  return shell.withSource(text, call.node.pos, () => runScript(shell, script.commands));
}

/** Another file, or text that only a run knows, can change every variable. */
function unknownEffect(shell: Shell, call: Call, command: string): Flow {
  if (isHarmless(call.node.suffix[0])) return shell.succeed(undefined);
  const what = `\`${command} ${commandText(call.args)}\``;
  forgetAll(shell, `what ${what} sets`, call.line);
  shell.session.remark(`what ${what} sets is not read`, call.line);
  return shell.succeed(undefined);
}

/** Conda and virtual environments set `PATH` and variables of their own, never a script's. */
function isHarmless(argument: Command["suffix"][number] | undefined): boolean {
  const text = argument?.type === "Word" ? argument.text : "";
  return /^"?\$\((\S*\/)?(conda|mamba|micromamba) shell\.\S+ hook\)"?$|\/bin\/activate"?$|\/etc\/profile\.d\/conda\.sh"?$/.test(
    text,
  );
}

function forgetAll(shell: Shell, why: string, line: number): void {
  for (const name of shell.state.variables.keys())
    shell.state.variables.set(name, shell.session.unknown(why, line));
}

/** Variables that are read from a file or a person. */
function forget(shell: Shell, { args, line, node }: Call, command: string): Flow {
  const names = args.filter(({ text }) => /^[A-Za-z_]\w*$/.test(text));
  if (names.length === 0)
    return shell.refuse(`it reads into a variable that is not named (${command})`, node.pos);
  for (const { text } of names)
    shell.setVariable(text, shell.session.unknown(`what \`${command}\` reads`, line));
  return shell.succeed(undefined);
}
