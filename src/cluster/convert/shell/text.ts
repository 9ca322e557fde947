/**
 * Text of a shell that is only partly known. What cannot be known stays in the text as a mark: a variable of the
 * environment (`HOME`), or something known only in a run (the output of a program, a branch on an unknown condition).
 */
const OPEN = "\uE000";
const CLOSE = "\uE001";
const ENVIRONMENT = "e";
const UNKNOWN = "u";
const MARK = /\uE000([eu])([^\uE001]*)\uE001/g;

/** A piece of text with the line that wrote it. */
export interface Item {
  readonly text: string;
  readonly line: number;
}

/** True when a script holds characters that this reader reserves for its marks. */
export function hasReserved(script: string): boolean {
  return script.includes(OPEN) || script.includes(CLOSE);
}

/** The value of a variable of the environment, which is set where the run starts. */
export function environmentMark(name: string): string {
  return `${OPEN}${ENVIRONMENT}${name}${CLOSE}`;
}

/** A value that reading cannot determine; `reason` is an index into the reader's reasons. */
export function unknownMark(reason: number): string {
  return `${OPEN}${UNKNOWN}${reason}${CLOSE}`;
}

/** True when the text has no mark. */
export function isKnown(text: string): boolean {
  return !text.includes(OPEN);
}

/** True when part of the text is known only in a run; variables of the environment do not count. */
export function hasUnknown(text: string): boolean {
  return text.includes(OPEN + UNKNOWN);
}

/** The reasons of the unknown parts of a text. */
export function unknownReasons(text: string): number[] {
  return [...text.matchAll(MARK)].filter(([, kind]) => kind === UNKNOWN).map(([, , id]) => Number(id));
}

/** The name, where the whole text is one variable of the environment. */
export function onlyEnvironment(text: string): string | undefined {
  const [match, kind, name] = [...text.matchAll(MARK)][0] ?? [];
  return match === text && kind === ENVIRONMENT ? name : undefined;
}

/** Set in every shell that starts a run. */
export const ALWAYS_SET: ReadonlySet<string> = new Set(["HOME", "PWD", "USER", "PATH", "HOSTNAME", "SHELL", "LOGNAME"]);

/** Whether the text is empty; undefined where that depends on a mark. */
export function isEmpty(text: string): boolean | undefined {
  if (text === "") return true;
  const rest = text.replace(MARK, (_, kind, name) => (kind === ENVIRONMENT && ALWAYS_SET.has(name) ? name : ""));
  return rest === "" ? undefined : false;
}

/** Whether two texts are equal; undefined where marks leave it open. */
export function equalTexts(a: string, b: string): boolean | undefined {
  if (a === b) return hasUnknown(a) ? undefined : true;
  return isKnown(a) && isKnown(b) ? false : undefined;
}

/** The text with each variable of the environment as `write` has it. Unknown parts become `?`. */
export function render(text: string, write: (name: string) => string): string {
  return text.replace(MARK, (_, kind, name) => (kind === ENVIRONMENT ? write(name) : "?"));
}

/** The part behind the last mark: all of a known text. */
export function knownTail(text: string): string {
  return text.slice(text.lastIndexOf(CLOSE) + 1);
}

/** A command as a message quotes it: at most 60 characters. */
export function commandText(words: readonly Item[]): string {
  const text = words.map((word) => render(word.text, (name) => `$${name}`)).join(" ");
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}
