/** One-place mistakes in WGSL: operators, comparisons, constants, `min` and `max`, selections, conditions. */

/** Binary operators and what each becomes. Longer ones come first, so that `<=` is not read as `<`. */
const OPERATORS: readonly (readonly [string, string])[] = [
  ["+=", "-="],
  ["-=", "+="],
  ["*=", "/="],
  ["<=", "<"],
  [">=", ">"],
  ["==", "!="],
  ["!=", "=="],
  ["&&", "||"],
  ["||", "&&"],
  ["<", "<="],
  [">", ">="],
  ["+", "-"],
  ["-", "+"],
  ["*", "/"],
  ["/", "*"],
];
const FUNCTIONS: Readonly<Record<string, string>> = { min: "max", max: "min", exp: "log", sqrt: "abs" };
/** Surrounded by spaces, as the code is written, an operator is binary: templates (`array<f32>`) and signs have none. */
const BINARY = new RegExp(` (${OPERATORS.map(([from]) => from.replace(/[+*|/]/g, "\\$&")).join("|")}) `, "g");
const FLOAT = /(?<![\w.])\d+\.\d*(?:e[-+]?\d+)?f?(?![\w.])/g;
const CALL = /\b(min|max|exp|sqrt)\(/g;
const SELECT = /\bselect\(/g;
const CONDITION = /\bif \((?=[^\n]*\) \{)/g;

export interface WgslMutant {
  readonly line: number;
  readonly mutator: string;
  /** The line before and after. */
  readonly from: string;
  readonly to: string;
  /** The whole changed module. */
  readonly text: string;
}

interface Edit {
  readonly at: number;
  readonly from: string;
  readonly to: string;
  readonly mutator: string;
}

/** WGSL in a TypeScript file. */
const EMBEDDED = /(?<=\/\* wgsl \*\/ `)[^`]*/g;

/** The text with everything that is no WGSL blanked out, so that places stay: of TypeScript, all but its WGSL literals. */
function wgslOf(text: string, isTypeScript: boolean): string {
  if (!isTypeScript) return text;
  const code = text.replace(/[^\n]/g, " ").split("");
  for (const { 0: literal, index } of text.matchAll(EMBEDDED))
    code.splice(index, literal.length, ...literal.replace(/\$\{[^}]*\}/g, (hole) => " ".repeat(hole.length)));
  return code.join("");
}

/** Every mistake that can be made in one place of a module, or of the WGSL in a TypeScript file, in its order. */
export function mutantsOf(text: string, { isTypeScript = false } = {}): WgslMutant[] {
  const code = blankComments(wgslOf(text, isTypeScript));
  const edits = [...operators(code), ...floats(code), ...calls(code), ...selections(code), ...conditions(code)];
  return edits
    .filter(({ at }) => !isInLoopHeader(code, at) && !isDeclaration(code, at))
    .sort((a, b) => a.at - b.at)
    .map(({ at, from, to, mutator }) => {
      const changed = text.slice(0, at) + to + text.slice(at + from.length);
      const line = text.slice(0, at).split("\n").length;
      return { line, mutator, from: lineAt(text, at), to: lineAt(changed, at), text: changed };
    });
}

function* operators(code: string): Generator<Edit> {
  const replacement = new Map(OPERATORS);
  for (const { 1: from = "", index } of code.matchAll(BINARY))
    yield { at: index + 1, from, to: replacement.get(from)!, mutator: "operator" };
}

function* floats(code: string): Generator<Edit> {
  for (const { 0: from, index } of code.matchAll(FLOAT)) {
    const isFloat = from.endsWith("f");
    const value = Number(isFloat ? from.slice(0, -1) : from);
    const to = value === 0 ? "1.0" : literal(2 * value);
    yield { at: index, from, to: isFloat ? `${to}f` : to, mutator: "constant" };
  }
}

function literal(value: number): string {
  return Number.isInteger(value) && value < 1e9 ? `${value}.0` : value.toExponential();
}

function* calls(code: string): Generator<Edit> {
  for (const { 1: from = "", index } of code.matchAll(CALL))
    yield { at: index, from, to: FUNCTIONS[from]!, mutator: "function" };
}

/** `select(a, b, c)` becomes `select(b, a, c)`: a mask that does the opposite. */
function* selections(code: string): Generator<Edit> {
  for (const { 0: head, index } of code.matchAll(SELECT)) {
    const [first, second] = argumentsAt(code, index + head.length);
    if (!second) continue;
    const from = code.slice(first!.start, second.end);
    const to = `${second.text.trim()}, ${first!.text.trim()}`;
    yield { at: first!.start, from, to, mutator: "selection" };
  }
}

/** `if (c) {` becomes `if (true || (c)) {`: the condition no longer counts, and the module stays valid. */
function* conditions(code: string): Generator<Edit> {
  for (const { 0: head, index } of code.matchAll(CONDITION)) {
    const [condition] = argumentsAt(code, index + head.length, /[)]/);
    if (!condition) continue;
    yield { at: condition.start, from: condition.text, to: "true", mutator: "condition" };
    yield { at: condition.start, from: condition.text, to: "false", mutator: "condition" };
  }
}

/** The arguments of a call whose opening bracket ends at `at`. */
function argumentsAt(code: string, at: number, separator = /[,)]/): { start: number; end: number; text: string }[] {
  const found = [];
  let depth = 0;
  let start = at;
  for (let i = at; i < code.length; i++) {
    const character = code[i]!;
    if (depth === 0 && separator.test(character)) {
      found.push({ start, end: i, text: code.slice(start, i) });
      start = i + 1;
      if (character === ")") break;
    } else if ("([".includes(character)) depth++;
    else if (")]".includes(character)) depth--;
  }
  return found;
}

/** Mistakes in a loop's header can make it endless, which hangs a driver instead of failing a test. */
function isInLoopHeader(code: string, at: number): boolean {
  const start = code.lastIndexOf("\n", at) + 1;
  const line = code.slice(start, code.indexOf("\n", at));
  return /^\s*(for|while|loop)\b/.test(line);
}

/** Constants of the module's head are sizes of arrays and workgroups: changed, nothing compiles. */
function isDeclaration(code: string, at: number): boolean {
  const start = code.lastIndexOf("\n", at) + 1;
  return /^(@|const|override|alias|var<|struct|enable|diagnostic)/.test(code.slice(start));
}

/** The same length, comments turned to spaces. */
function blankComments(text: string): string {
  return text.replace(/\/\/[^\n]*|\/\*[\s\S]*?\*\//g, (comment) => comment.replace(/[^\n]/g, " "));
}

function lineAt(text: string, at: number): string {
  const start = text.lastIndexOf("\n", at - 1) + 1;
  const end = text.indexOf("\n", at);
  return text.slice(start, end < 0 ? undefined : end).trim();
}
