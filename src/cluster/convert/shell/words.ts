/** Expansion of words: variables, substitutions, quotes, splitting, braces. */
import { parse, type Word, type WordPart } from "unbash";
import { evaluateArithmetic } from "./arithmetic.ts";
import { expandBraces } from "./braces.ts";
import { type Expansion, expandParameter } from "./parameter.ts";
import type { PatternPiece } from "./pattern.ts";
import type { Shell, Texts } from "./shell.ts";
import { type Item, isKnown } from "./text.ts";

/** A word in parts, each quoted or not. */
export function expandPieces(shell: Shell, word: Texts, { isQuoted = false } = {}): PatternPiece[] {
  if (word.parts === undefined) {
    const text = "value" in word ? word.value : word.text;
    const isEscaped = word.type === "Word" && word.text !== word.value;
    return [{ text: tilde(shell, word, text), isQuoted: isQuoted || isEscaped }];
  }
  return word.parts.flatMap((part, i) => {
    const found = piecesOf(shell, part, isQuoted);
    if (i > 0 || part.type !== "Literal" || isQuoted) return found;
    return [{ ...found[0]!, text: tilde(shell, word, found[0]!.text) }];
  });
}

function piecesOf(shell: Shell, part: WordPart, isQuoted: boolean): PatternPiece[] {
  switch (part.type) {
    case "Literal":
      return [{ text: part.value, isQuoted: isQuoted || part.text !== part.value }];
    case "SingleQuoted":
    case "AnsiCQuoted":
      return [{ text: part.value, isQuoted: true }];
    case "DoubleQuoted":
    case "LocaleString":
      return part.parts.flatMap((inner) => piecesOf(shell, inner, true));
    case "Glob":
      return part.kind === "bracket" ? bracketPieces(shell, part, isQuoted) : [{ text: part.text, isQuoted }];
    case "ExtendedGlob":
    case "BraceExpansion":
      return [{ text: part.text, isQuoted }];
    default: {
      const found = expansion(shell, part, isQuoted);
      const pieces = found.pieces?.map((piece) => ({ ...piece, isQuoted: isQuoted || piece.isQuoted }));
      if (pieces) return pieces;
      const isWords = found.isList && isQuoted;
      if (!isWords) return [{ text: joined(found), isQuoted }];
      return found.items.map(({ text }, k) => ({ text, isQuoted, isNext: k > 0 }));
    }
  }
}

/** `[...]`, in which quotes and variables count as anywhere else. */
function bracketPieces(shell: Shell, part: Extract<WordPart, { type: "Glob"; kind: "bracket" }>, isQuoted: boolean) {
  const [first, last] = [part.parts[0], part.parts.at(-1)];
  if (first === undefined || last === undefined) return [{ text: part.text, isQuoted }];
  const inside = part.parts.flatMap((inner) => piecesOf(shell, inner, isQuoted));
  const open = { text: part.text.slice(0, first.pos - part.pos), isQuoted };
  const close = { text: part.text.slice(last.end - part.pos), isQuoted };
  return [open, ...inside, close];
}

function joined(found: Expansion): string {
  return found.items.map(({ text }) => text).join(" ");
}

function expansion(shell: Shell, part: WordPart, isQuoted: boolean): Expansion {
  const line = shell.lineAt(part.pos);
  switch (part.type) {
    case "SimpleExpansion":
    case "ParameterExpansion":
      return expandParameter(shell, part, isQuoted);
    case "CommandExpansion":
      return { items: [{ text: shell.capture(part.script, part), line }] };
    case "ArithmeticExpansion": {
      const value = evaluateArithmetic(shell, part.expression);
      const item = value === undefined ? shell.unknownFrom(part, part.text) : { text: String(value), line };
      return { items: [item] };
    }
    default:
      return { items: [shell.session.unknown(`\`${part.text}\``, line)] };
  }
}

/** `~` and `~/x`, where no quote keeps it. */
function tilde(shell: Shell, word: Texts, text: string): string {
  const isHome = word.type === "Word" && /^~(\/|$)/.test(word.text) && /^~(\/|$)/.test(text);
  return isHome ? `${shell.variableText("HOME", shell.lineAt(word.pos)) ?? ""}${text.slice(1)}` : text;
}

/** Words as the fields that a command gets: braces, then variables, then splitting at spaces. */
export function expandFields(shell: Shell, words: readonly Word[]): Item[] {
  return words.flatMap((word) => {
    const hasBraces = word.parts?.some((part) => part.type === "BraceExpansion") ?? false;
    if (!hasBraces) return fieldsOf(shell, word);
    const raw = expandBraces(word.text);
    if (raw.length === 1 && raw[0] === word.text) return fieldsOf(shell, word);
    return raw.flatMap((text) => {
      const [statement] = parse(`x ${text}`).commands;
      const inner = statement?.command.type === "Command" ? statement.command.suffix : [];
      return shell.withSource(`x ${text}`, word.pos, () =>
        inner.flatMap((part) => (part.type === "Word" ? fieldsOf(shell, part) : [])),
      );
    });
  });
}

function fieldsOf(shell: Shell, word: Word): Item[] {
  const fields = new Fields(shell, shell.lineAt(word.pos));
  if (word.parts === undefined) fields.append(tilde(shell, word, word.value));
  word.parts?.forEach((part, i) => {
    if (i === 0 && part.type === "Literal") fields.append(tilde(shell, word, part.value));
    else addPart(shell, fields, part);
  });
  return fields.end();
}

function addPart(shell: Shell, fields: Fields, part: WordPart): void {
  if (part.type === "DoubleQuoted" || part.type === "LocaleString") {
    const hasList = part.parts.some(isAllElements);
    if (!hasList) fields.append("");
    for (const inner of part.parts) {
      if (inner.type === "Literal") fields.append(inner.value);
      else {
        const found = expansion(shell, inner, true);
        const text = joined(found);
        if (found.isList) fields.list(found.items);
        else if (found.pieces?.some(({ isNext }) => isNext)) addExpansion(fields, found, shell.lineAt(inner.pos));
        else if (text !== "" || !hasList) fields.append(text);
      }
    }
    return;
  }
  const isExpansion = /^(Simple|Parameter|Command|Arithmetic)Expansion$|^ProcessSubstitution$/.test(part.type);
  if (!isExpansion) for (const { text } of piecesOf(shell, part, false)) fields.append(text);
  else addExpansion(fields, expansion(shell, part, false), shell.lineAt(part.pos));
}

/** An unquoted expansion; of a default, quoted parts stay whole. */
function addExpansion(fields: Fields, { items, pieces: parts }: Expansion, line: number): void {
  if (parts === undefined) for (const [i, item] of items.entries()) fields.split(item, i > 0);
  for (const { text, isQuoted, isNext } of parts ?? []) {
    if (isNext) fields.break();
    if (isQuoted) fields.append(text);
    else fields.split({ text, line }, false);
  }
}

/** `"$@"` and `"${LIST[@]}"`, which are no word at all where the list is empty. */
function isAllElements(part: WordPart): boolean {
  if (part.type === "SimpleExpansion") return part.text === "$@";
  return part.type === "ParameterExpansion" && (part.parameter === "@" || part.index?.value === "@");
}

class Fields {
  private readonly done: Item[] = [];
  private text: string | undefined;
  private readonly shell: Shell;
  private readonly line: number;
  private itemLine: number | undefined;

  constructor(shell: Shell, line: number) {
    this.shell = shell;
    this.line = line;
  }

  append(text: string): void {
    this.text = (this.text ?? "") + text;
  }

  /** Elements of a quoted list: the first continues the current word, and the next text continues the last. */
  list(items: readonly Item[]): void {
    items.forEach(({ text, line }, i) => {
      if (i > 0) this.break();
      if (this.text === undefined && items.length > 1) this.itemLine = line;
      this.append(text);
    });
  }

  /** An unquoted value: each run of spaces in it ends a word. */
  split({ text, line }: Item, isNext: boolean): void {
    if (isNext) this.break();
    if (!isKnown(text) && !/\s/.test(text)) {
      if (text !== "") this.append(text);
      return;
    }
    this.shell.checkSeparators(this.line);
    const parts = text.split(/[ \t\n]+/);
    if (text === "") return;
    parts.forEach((part, i) => {
      if (i > 0) this.break();
      if (part === "") return;
      if (this.text === undefined && parts.length > 1) this.itemLine = line;
      this.append(part);
    });
  }

  end(): Item[] {
    this.break();
    return this.done;
  }

  /** Ends the word so far. */
  break(): void {
    if (this.text !== undefined) this.done.push({ text: this.text, line: this.itemLine ?? this.line });
    this.text = undefined;
    this.itemLine = undefined;
  }
}
