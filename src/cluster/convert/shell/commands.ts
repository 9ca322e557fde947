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
  const assignments = node.prefix.filter((part) => part.type === "Assignment");
  const name = node.name === undefined ? [] : expandFields(shell, [node.name]);
  const rest = node.suffix.filter((part) => part.type === "Word" || part.type === "Assignment");
  const words = name.length === 0 ? [] : [...name, ...expandArguments(shell, name[0]!.text, rest)];
  if (words.length === 0) return assignAll(shell, assignments);
  const [{ text }, ...args] = words as [Item, ...Item[]];
  const body = shell.state.functions.get(text);
  if (body === "unknown") return shell.refuseAt(`it calls ${text}, which depends on an unknown condition`, line);
  if (body !== undefined) return withEnvironment(shell, assignments, () => shell.call(body, args, line));
  const builtin = Object.hasOwn(BUILTINS, text) ? BUILTINS[text] : undefined;
  if (builtin) {
    const isPrinting = node.redirects.every(
      (redirect) => redirect.type !== "Redirect" || redirect.operator === "<" || isErrors(redirect),
    );
    const assigned = rest.filter((part) => part.type === "Assignment");
    return withEnvironment(shell, assignments, () =>
      builtin(shell, { args, line, node, assignments: assigned, isPrinting }),
    );
  }
  for (const assignment of assignments) shell.state.exported.add(assignment.name);
  if (!isKnown(text) && !isLaunch(words))
    shell.session.remark(`starts ${render(text, (variable) => `$${variable}`)}`, line);
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
  return rest.flatMap((part) => {
    if (part.type === "Word") return expandFields(shell, [part]);
    const hasBraces = part.value.type === "Word" && part.value.parts?.some(({ type }) => type === "BraceExpansion");
    if (hasBraces) return shell.refuse(`it passes braces to ${name}, which bash expands to several words`, part.pos);
    if (DECLARATIONS.has(name)) return [];
    const value = part.value.type === "Word" ? shell.expandText(part.value) : "";
    const isPlain = part.index === undefined && part.value.type === "Word";
    const text = isPlain ? `${part.name}${part.append ? "+" : ""}=${value}` : part.text;
    return [{ text, line: shell.lineAt(part.pos) }];
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
