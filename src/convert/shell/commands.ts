/** Simple commands: assignments, functions, builtins and programs. */
import type { Assignment, Command } from "unbash";
import { assign } from "./assign.ts";
import { BUILTINS } from "./builtins.ts";
import { isLaunch } from "./launch.ts";
import type { Flow, Shell } from "./shell.ts";
import { commandText, type Item, isKnown, render } from "./text.ts";
import { expandFields } from "./words.ts";

export function runCommand(shell: Shell, node: Command): Flow {
  const line = shell.lineAt(node.pos);
  const assignments = node.prefix.filter((it) => it.type === "Assignment");
  const name = node.name === undefined ? [] : expandFields(shell, [node.name]);
  const rest = node.suffix.filter((it) => it.type === "Word" || it.type === "Assignment");
  const words = name.length === 0 ? [] : [...name, ...expandArguments(shell, name[0]!.text, rest)];
  if (words.length === 0) return assignAll(shell, assignments);
  const [{ text }, ...args] = words as [Item, ...Item[]];
  const own = shell.state.functions.get(text);
  if (own === "unknown") return shell.refuseAt(`it calls ${text}, which depends on an unknown condition`, line);
  if (own !== undefined) return withEnvironment(shell, assignments, () => shell.call(own, args, line));
  const builtin = Object.hasOwn(BUILTINS, text) ? BUILTINS[text] : undefined;
  if (builtin) {
    const isPrinting = node.redirects.every((it) => it.type !== "Redirect" || it.operator === "<" || isErrors(it));
    const assigned = rest.filter((it) => it.type === "Assignment");
    return withEnvironment(shell, assignments, () =>
      builtin(shell, { args, line, node, assignments: assigned, isPrinting }),
    );
  }
  for (const assignment of assignments) shell.state.exported.add(assignment.name);
  if (!isKnown(text) && !isLaunch(words)) shell.session.remark(`starts ${render(text, (it) => `$${it}`)}`, line);
  if (isLaunch(words)) shell.session.launch(words, line, shell.state.exported);
  shell.print(shell.session.unknown(`the output of \`${commandText(words)}\``, line).text);
  return shell.succeed(undefined);
}

function isErrors({
  descriptor,
}: {
  readonly descriptor?: { readonly type: string; readonly value?: unknown } | undefined;
}): boolean {
  return descriptor?.type === "FileDescriptor" && descriptor.value === 2;
}

const DECLARATIONS = new Set(["export", "declare", "typeset", "local", "readonly"]);

/** Words behind a command; of a declaration the assignments are kept apart. */
function expandArguments(shell: Shell, name: string, rest: readonly Command["args"][number][]): Item[] {
  return rest.flatMap((it) => {
    if (it.type === "Word") return expandFields(shell, [it]);
    const hasBraces = it.value.type === "Word" && it.value.parts?.some(({ type }) => type === "BraceExpansion");
    if (hasBraces) return shell.refuse(`it passes braces to ${name}, which bash expands to several words`, it.pos);
    if (DECLARATIONS.has(name)) return [];
    const value = it.value.type === "Word" ? shell.expandText(it.value) : "";
    const isPlain = it.index === undefined && it.value.type === "Word";
    const text = isPlain ? `${it.name}${it.append ? "+" : ""}=${value}` : it.text;
    return [{ text, line: shell.lineAt(it.pos) }];
  });
}

function assignAll(shell: Shell, assignments: readonly Assignment[]): Flow {
  shell.state.status = true;
  for (const assignment of assignments) assign(shell, assignment);
  return "next";
}

/** Assignments before a command hold for that command alone. */
function withEnvironment(shell: Shell, assignments: readonly Assignment[], run: () => Flow): Flow {
  if (assignments.length === 0) return run();
  const old = assignments.map(({ name }) => [name, shell.keep(name)] as const);
  for (const assignment of assignments) assign(shell, assignment);
  const flow = run();
  for (const [name, kept] of old) shell.restore(name, kept);
  return flow;
}
