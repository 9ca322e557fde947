/** Statements, conditions and loops. If a condition is unknown, both branches are followed and merged. */
import type { AndOr, Case, For, If, Pipeline, Statement, While } from "unbash";
import { evaluateArithmetic } from "./arithmetic.ts";
import { runCommand } from "./commands.ts";
import { matches, testExpression } from "./condition.ts";
import type { Reason } from "./session.ts";
import type { Flow, Shell } from "./shell.ts";
import { type FunctionBody, mergeStates, type ShellState } from "./state.ts";
import { isKnown } from "./text.ts";
import { expandFields } from "./words.ts";

type Node = Statement["command"];

export function runScript(shell: Shell, statements: readonly Statement[]): Flow {
  for (const { command, background } of statements) {
    if (background) {
      runApart(shell, () => runNode(shell, command));
      shell.state.status = true;
      continue;
    }
    const flow = runNode(shell, command);
    if (flow !== "next") return flow;
  }
  return "next";
}

export function runBody(shell: Shell, body: FunctionBody): Flow {
  return body.type === "CompoundList" ? runScript(shell, body.commands) : runNode(shell, body);
}

function runNode(shell: Shell, node: Node): Flow {
  shell.session.count(shell.lineAt(node.pos));
  switch (node.type) {
    case "Command":
      return runCommand(shell, node);
    case "AndOr":
      return runAndOr(shell, node, 0);
    case "Pipeline":
      return runPipeline(shell, node);
    case "If":
      return runIf(shell, [node, ...node.elif], node.else);
    case "Case":
      return runCase(shell, node);
    case "For":
      return runFor(shell, node);
    case "While":
      return runWhile(shell, node);
    case "ArithmeticFor":
      evaluateArithmetic(shell, node.initialize);
      return runLoop(shell, {
        pos: node.pos,
        test: () => truth(evaluateArithmetic(shell, node.test ?? undefined), node.test === undefined),
        body: () => runScript(shell, node.body.commands),
        update: () => void evaluateArithmetic(shell, node.update),
      });
    case "Redirected":
      return runNode(shell, node.command);
    case "BraceGroup":
      return runScript(shell, node.body.commands);
    case "Subshell":
      return runApart(shell, () => runScript(shell, node.body.commands));
    case "Function":
      shell.state.functions.set(node.name.value, node.body);
      return shell.succeed(true);
    case "TestCommand":
      return shell.succeed(testExpression(shell, node.expression));
    case "ArithmeticCommand":
      return shell.succeed(truth(evaluateArithmetic(shell, node.expression)));
    default:
      return shell.refuse(`it uses ${node.type.toLowerCase()}, which this reader does not follow`, node.pos);
  }
}

function truth(value: bigint | undefined, isAbsent = false): boolean | undefined {
  if (isAbsent) return true;
  return value === undefined ? undefined : value !== 0n;
}

/** Runs in a copy of the shell: assignments are discarded, starts and output are kept. */
function runApart(shell: Shell, run: () => Flow): Flow {
  const outer = shell.state;
  shell.state = outer.clone();
  run();
  // A branch inside replaces the state.
  const { status, output } = shell.state;
  shell.state = outer;
  outer.status = status;
  outer.output = output;
  return "next";
}

function runPipeline(shell: Shell, { commands, prefixes }: Pipeline): Flow {
  const isNegated = prefixes.filter(({ type }) => type === "Negation").length % 2 === 1;
  let flow: Flow = "next";
  if (commands.length === 1) flow = runNode(shell, commands[0]!);
  else {
    const printed = shell.state.output;
    commands.forEach((command, i) => {
      if (i > 0) shell.state.output = printed;
      runApart(shell, () => runNode(shell, command));
    });
    // The output of the last command depends on its input.
    if (shell.state.output !== printed) {
      const { text } = shell.session.unknown("the output of a pipeline", shell.lineAt(commands[0]!.pos));
      shell.state.output = printed + text;
    }
    shell.state.status = undefined;
  }
  const { status } = shell.state;
  if (isNegated) shell.state.status = status === undefined ? undefined : !status;
  return flow;
}

function runAndOr(shell: Shell, node: AndOr, at: number): Flow {
  const flow = runNode(shell, node.commands[at]!);
  return flow === "next" ? goOn(shell, node, at) : flow;
}

/** The operators behind a command of `a && b || c`. */
function goOn(shell: Shell, node: AndOr, at: number): Flow {
  if (at + 1 >= node.commands.length) return "next";
  const wanted = node.operators[at] === "&&";
  const { status } = shell.state;
  if (status === wanted) return runAndOr(shell, node, at + 1);
  if (status === !wanted) return goOn(shell, node, at + 1);
  const command = node.commands[at]!;
  return fork(shell, { why: "whether a command succeeds", line: shell.lineAt(command.pos) }, [
    () => {
      shell.state.status = wanted;
      return runAndOr(shell, node, at + 1);
    },
    () => {
      shell.state.status = !wanted;
      return goOn(shell, node, at + 1);
    },
  ]);
}

interface Way {
  readonly state: ShellState;
  readonly flow: Flow;
}

/** Follows both branches. One that exits is ignored, because no run starts on it. */
function fork(shell: Shell, reason: Reason, ways: readonly [() => Flow, () => Flow]): Flow {
  const before = shell.state;
  const [a, b] = ways.map((run): Way => {
    shell.state = before.clone();
    shell.session.when.push(reason);
    const flow = run();
    shell.session.when.pop();
    return { state: shell.state, flow };
  });
  if (a!.flow === "exit" || b!.flow === "exit") {
    const left = a!.flow === "exit" ? b : a;
    shell.state = left!.state;
    return left!.flow;
  }
  if (a!.flow !== b!.flow)
    shell.refuseAt(`${reason.why} is unknown, and the rest of the script depends on it`, reason.line);
  shell.state = mergeStates(a!.state, b!.state, () => shell.session.unknown(reason.why, reason.line));
  return a!.flow;
}

function runIf(shell: Shell, clauses: readonly Pick<If, "clause" | "then">[], last: If["else"]): Flow {
  const [first, ...others] = clauses;
  if (first === undefined) return last === undefined ? shell.succeed(true) : runScript(shell, last.commands);
  const flow = runScript(shell, first.clause.commands);
  if (flow !== "next") return flow;
  const { status } = shell.state;
  const yes = () => runScript(shell, first.then.commands);
  const no = () => runIf(shell, others, last);
  if (status !== undefined) return status ? yes() : no();
  return fork(shell, { why: "the condition", line: shell.lineAt(first.clause.pos) }, [yes, no]);
}

function runCase(shell: Shell, node: Case): Flow {
  const text = shell.expandText(node.word);
  const from = (i: number): Flow => {
    const item = node.items[i];
    if (item === undefined) return shell.succeed(true);
    const found = item.pattern.map((word) => matches(text, shell.expandPieces(word)));
    const isMatch = found.includes(true) ? true : found.includes(undefined) ? undefined : false;
    if (isMatch === false) return from(i + 1);
    if (isMatch) return take(i);
    const reason = { why: "the condition", line: shell.lineAt(item.pos) };
    return fork(shell, reason, [() => take(i), () => from(i + 1)]);
  };
  const take = (i: number): Flow => {
    const { body, terminator } = node.items[i]!;
    const flow = runScript(shell, body.commands);
    if (flow !== "next" || i + 1 >= node.items.length) return flow;
    if (terminator === ";&") return take(i + 1);
    return terminator === ";;&" ? from(i + 1) : flow;
  };
  return from(0);
}

function runFor(shell: Shell, { name, wordlist, body, pos }: For): Flow {
  const items = wordlist === undefined ? shell.state.positional : expandFields(shell, wordlist);
  const hasGlob = wordlist?.some((word) => word.parts?.some(({ type }) => type === "Glob")) ?? false;
  const isOpen = hasGlob || items.some(({ text }) => !isKnown(text));
  const list = isOpen ? undefined : items;
  let at = 0;
  return runLoop(shell, {
    pos,
    test: () => (list === undefined ? undefined : at < list.length),
    body: () => {
      const line = shell.lineAt(pos);
      const item = list?.[at] ?? shell.session.unknown(`the loop over ${name.value}`, line);
      shell.setVariable(name.value, item);
      at++;
      return runScript(shell, body.commands);
    },
  });
}

function runWhile(shell: Shell, { kind, clause, body, pos }: While): Flow {
  return runLoop(shell, {
    pos,
    test: () => {
      runScript(shell, clause.commands);
      const { status } = shell.state;
      return status === undefined ? undefined : status === (kind === "while");
    },
    body: () => runScript(shell, body.commands),
  });
}

interface Loop {
  readonly pos: number;
  readonly test: () => boolean | undefined;
  readonly body: () => Flow;
  readonly update?: (() => void) | undefined;
}

function runLoop(shell: Shell, { pos, test, body, update }: Loop): Flow {
  for (;;) {
    shell.session.count(shell.lineAt(pos));
    const status = test();
    if (status === false) return shell.succeed(true);
    if (status === undefined) return runOpenLoop(shell, { pos, test, body, update });
    const flow = body();
    if (flow === "break") return shell.succeed(true);
    if (flow === "return" || flow === "exit") return flow;
    update?.();
  }
}

/** A loop of unknown length: everything that its body changes is unknown, in the body and after it. */
function runOpenLoop(shell: Shell, { pos, body, update }: Loop): Flow {
  const reason = { why: "the number of turns of a loop", line: shell.lineAt(pos) };
  const { isCounting } = shell.session;
  const [before, first] = [shell.state, shell.state.clone()];
  shell.state = first;
  shell.session.isCounting = false;
  body();
  update?.();
  shell.session.isCounting = isCounting;
  const blurred = mergeStates(before, first, () => shell.session.unknown(reason.why, reason.line));
  shell.state = blurred;
  return fork(shell, reason, [
    () => {
      const flow = body();
      return flow === "break" || flow === "continue" ? "next" : flow;
    },
    () => "next",
  ]);
}
