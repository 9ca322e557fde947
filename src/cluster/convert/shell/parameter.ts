/** `$NAME`, `${NAME:-default}`, `"${LIST[@]}"` and the other forms of an expansion. */
import type { ParameterExpansionPart, ParameterOperation, SimpleExpansionPart, Word } from "unbash";
import { evaluateText } from "./arithmetic.ts";
import { joinPieces, type PatternPiece, removeMatch, replaceMatch } from "./pattern.ts";
import type { Shell } from "./shell.ts";
import { isShellArray, type Variable } from "./state.ts";
import { hasUnknown, type Item, isEmpty, isKnown, knownTail } from "./text.ts";

export interface Expansion {
  readonly items: readonly Item[];
  /** Each item is a separate word even in double quotes. */
  readonly isList?: boolean;
  /** The word of a default, whose quoted parts are not split. */
  readonly pieces?: readonly PatternPiece[];
}

type Part = SimpleExpansionPart | ParameterExpansionPart;
type Operation<T> = Extract<ParameterOperation, { type: T }>;

export function expandParameter(shell: Shell, part: Part, isQuoted: boolean): Expansion {
  const line = shell.lineAt(part.pos);
  if (part.type === "SimpleExpansion") return readPlace(shell, part.text.slice(1), { line });
  const { parameter, prefix, index, operation } = part;
  const subscript = index === undefined ? undefined : indexOf(shell, parameter, index);
  if (operation?.type === "Unknown" || operation?.type === "Transform" || operation?.type === "Names") {
    return shell.refuse(`${part.text} is not a known expansion`, part.pos);
  }
  if (prefix === "#") return lengthOf(shell, parameter, { line, subscript });
  if (prefix === "!") return indirect(shell, part, { line, subscript });
  const hasDefault = operation?.type === "Default" && !operation.operator.includes("?");
  const value = readPlace(shell, parameter, {
    line,
    subscript,
    hasDefault,
    isOptional: operation?.type === "Default",
  });
  if (operation === undefined) return value;
  if (operation.type === "Default") return withDefault(shell, { part, operation, value, isQuoted });
  if (operation.type === "Slice") return slice(shell, { part, operation, value });
  const items = value.items.map((item) => ({ ...item, text: changed(shell, item, { part, operation }) }));
  return { ...value, items };
}

/** An array's index: `@`, `*`, a key, or a sum that is a number. */
function indexOf(shell: Shell, name: string, index: Word): string {
  if (index.value === "@" || index.value === "*") return index.value;
  const text = shell.expandText(index);
  return shell.isMap(name) ? text : String(evaluateText(shell, text, index.pos) ?? "");
}

interface Place {
  readonly line: number;
  readonly subscript?: string | undefined;
  readonly hasDefault?: boolean;
  /** An unset variable is no error under `set -u`. */
  readonly isOptional?: boolean;
}

function readPlace(shell: Shell, name: string, { line, subscript, hasDefault, isOptional }: Place): Expansion {
  if (name === "@" || name === "*") return { items: shell.state.positional, isList: name === "@" };
  const special = shell.special(name, line);
  if (special !== undefined) return { items: [special] };
  const variable = shell.variable(name, line, { hasDefault });
  if (variable !== undefined && isShellArray(variable)) {
    if (subscript === "@" || subscript === "*") {
      return { items: [...variable.values()], isList: subscript === "@" };
    }
    const item = variable.get(subscript ?? "0");
    return item === undefined ? { items: [] } : { items: [{ ...item, line }] };
  }
  if (subscript === "@" || subscript === "*") {
    return { items: variable === undefined ? [] : [variable], isList: subscript === "@" };
  }
  const isOne = subscript === undefined || subscript === "0" || isOpenList(variable);
  if (variable !== undefined && isOne) return { items: [variable] };
  const isError = shell.state.isStrict && !isOptional && subscript === undefined;
  return isError ? shell.refuseAt(`${name} is not set, which ends a script with \`set -u\``, line) : { items: [] };
}

function lengthOf(shell: Shell, name: string, place: Place): Expansion {
  const { items, isList: isAll } = readPlace(shell, name, { ...place, isOptional: true });
  const isCount = isAll || place.subscript === "*" || name === "@" || name === "*";
  const [first] = items;
  if (isCount) {
    const isPositional = name === "@" || name === "*";
    const variable = shell.state.variables.get(name);
    const isOpen = isPositional ? shell.state.hasOpenArguments : isOpenList(variable);
    if (isOpen) return { items: [shell.session.unknown(`the number of elements of ${name}`, place.line)] };
    return { items: [{ text: String(items.length), line: place.line }] };
  }
  if (first !== undefined && !isKnown(first.text)) {
    return { items: [shell.session.unknown(`the length of ${name}`, place.line)] };
  }
  return { items: [{ text: String(first?.text.length ?? 0), line: place.line }] };
}

/** True for a list that an unknown condition changed: one unknown text represents all of it. */
function isOpenList(variable: Variable | undefined): boolean {
  return variable !== undefined && !isShellArray(variable) && hasUnknown(variable.text);
}

/** `${!NAME}` is the variable that NAME names, `${!LIST[@]}` the indexes of a list. */
function indirect(shell: Shell, part: ParameterExpansionPart, place: Place): Expansion {
  const variable = shell.variable(part.parameter, place.line);
  if (variable !== undefined && isShellArray(variable) && (place.subscript === "@" || place.subscript === "*")) {
    const items = [...variable.keys()].map((text) => ({ text, line: place.line }));
    return { items, isList: place.subscript === "@" };
  }
  const name = variable === undefined || isShellArray(variable) ? "" : variable.text;
  if (!/^\w+$/.test(name)) return shell.refuse(`the variable that ${part.text} names is unknown`, part.pos);
  if (part.operation !== undefined) return shell.refuse(`this reader does not support ${part.text}`, part.pos);
  return readPlace(shell, name, { line: place.line });
}

interface Change<T> {
  readonly part: ParameterExpansionPart;
  readonly operation: Operation<T>;
  readonly value: Expansion;
  readonly isQuoted?: boolean;
}

function withDefault(shell: Shell, { part, operation, value, isQuoted }: Change<"Default">): Expansion {
  const { operator, operand } = operation;
  const line = shell.lineAt(part.pos);
  const text = value.items.map((item) => item.text).join(" ");
  const isUnset = value.items.length === 0 && !(value.isList && part.parameter === "@");
  const isMissing = operator.startsWith(":") ? (isUnset ? true : isEmpty(text)) : isUnset;
  const other = (): Expansion => {
    const pieces = shell.expandPieces(operand, { isQuoted });
    return { items: [{ text: joinPieces(pieces), line }], pieces };
  };
  if (operator.endsWith("+")) return isMissing === false ? other() : isMissing ? { items: [] } : unknownOf(shell, part);
  if (isMissing === false) return value;
  if (isMissing === undefined) return unknownOf(shell, part);
  if (operator.endsWith("?")) return shell.refuse(`${part.parameter} is not set, and the script requires it`, part.pos);
  const result = other();
  if (!operator.endsWith("=")) return result;
  shell.setVariable(part.parameter, result.items[0]);
  return { items: result.items };
}

function unknownOf(shell: Shell, part: ParameterExpansionPart): Expansion {
  return { items: [shell.unknownFrom(part, part.text)] };
}

function slice(shell: Shell, { part, operation, value }: Change<"Slice">): Expansion {
  const [start, length] = [operation.offset, operation.length].map((word) =>
    word === undefined ? undefined : evaluateText(shell, shell.expandText(word), word.pos),
  );
  const isOpen = start === undefined || (operation.length !== undefined && length === undefined);
  if (isOpen) return unknownOf(shell, part);
  const [from, count] = [Number(start), length === undefined ? undefined : Number(length)];
  const isAll = value.isList || part.parameter === "*" || part.index?.value === "*";
  if (isAll) {
    const variable = shell.state.variables.get(part.parameter);
    const isPositional = part.parameter === "@" || part.parameter === "*";
    const isOpen = isPositional ? shell.state.hasOpenArguments : isOpenList(variable);
    if (isOpen) return unknownOf(shell, part);
    const keys = variable !== undefined && isShellArray(variable) ? [...variable.keys()].map(Number) : undefined;
    const items = isPositional ? [shell.self(part.pos), ...value.items] : value.items;
    // The offset counts indexes, of which a list may lack some.
    const last = keys === undefined ? items.length : (keys.at(-1) ?? -1) + 1;
    const first = from < 0 ? last + from : from;
    const at = keys === undefined ? first : keys.findIndex((key) => key >= first);
    if (at < 0) return { ...value, items: [] };
    return { ...value, items: items.slice(at, count === undefined ? undefined : at + count) };
  }
  const [item] = value.items;
  if (item === undefined) return value;
  if (!isKnown(item.text)) return unknownOf(shell, part);
  const first = from < 0 ? item.text.length + from : from;
  if (first < 0) return { items: [{ ...item, text: "" }] };
  const end = count === undefined ? undefined : count < 0 ? item.text.length + count : first + count;
  return { items: [{ ...item, text: item.text.slice(first, end) }] };
}

type TextChange = Operation<"Remove"> | Operation<"Replace"> | Operation<"CaseModification">;

function changed(
  shell: Shell,
  { text }: Item,
  { part, operation }: { part: ParameterExpansionPart; operation: TextChange },
): string {
  const result = changedText(shell, text, operation);
  return result ?? shell.unknownFrom(part, part.text).text;
}

function changedText(shell: Shell, text: string, operation: TextChange): string | undefined {
  if (operation.type === "CaseModification") {
    if (operation.operand !== undefined || !isKnown(text)) return undefined;
    const isUpper = operation.operator.startsWith("^");
    const [part, rest] = operation.operator.length === 2 ? [text, ""] : [text.slice(0, 1), text.slice(1)];
    return (isUpper ? part.toUpperCase() : part.toLowerCase()) + rest;
  }
  const pattern = shell.expandPieces(operation.type === "Remove" ? operation.operand : operation.pattern);
  if (!isKnown(pattern.map((piece) => piece.text).join(""))) return undefined;
  if (operation.type === "Remove") {
    // The last part of a path is known where only its beginning is not.
    const isName = operation.operator === "##" && pattern.map((piece) => piece.text).join("") === "*/";
    if (isName && knownTail(text).includes("/")) return text.slice(text.lastIndexOf("/") + 1);
    return isKnown(text) ? removeMatch(text, pattern, operation.operator) : undefined;
  }
  const replacement = shell.expandText(operation.replacement);
  if (!isKnown(text)) return undefined;
  return replaceMatch(text, pattern, { operator: operation.operator, replacement });
}
