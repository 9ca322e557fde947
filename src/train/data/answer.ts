/** The right answer of a row, for rewards that compare a response with it. */
import { ConfigError } from "../../leaves/errors.ts";
import { jsonField, mergedJson, numberText } from "../../leaves/json.ts";
import type { Task } from "./types.ts";

/**
 * Keys of an answer, in the order in which they are tried: the first place that holds one counts. verl's, TRL's and
 * published data sets' names.
 */
export const ANSWER_KEYS: readonly string[] = [
  "answer",
  "reward_model.ground_truth",
  "ground_truth",
  "solution",
  "extra_info.answer",
  "expected_answer",
  "final_answer",
  "label",
  "target",
];

/**
 * Needs of a reward, an evaluator or an environment: whether it compares with the row's answer. A function decides
 * whether an answer can be read. Rows without one are then an error before the first step.
 */
export interface NeedsAnswer {
  readonly needsAnswer?: boolean | ((answer: string) => boolean) | undefined;
}

/** How a row's answer is found, and who needs it. */
export interface AnswerOptions {
  /** `data.answer_key`: a field, or a path of names and places with dots. Default: {@link ANSWER_KEYS}. */
  readonly answerKey?: string | undefined;
  /** All that judge the row's task. */
  readonly judges?: readonly NeedsAnswer[] | undefined;
}

type Row = Readonly<Record<string, unknown>>;

/**
 * The answer of a task as text.
 * @throws {ConfigError} for a task without one
 */
export function answerOf({ id, metadata }: Task): string {
  const { text } = findAnswer(metadata);
  if (text !== undefined) return text;
  throw new ConfigError(
    `Cannot judge the task ${id}: its row has no answer (${lookedFor(metadata)}). Add one, or name its field with data.answer_key.`,
    { kind: "data" },
  );
}

/** The answer of a task as text; undefined where the row has none. */
export function maybeAnswerOf({ metadata }: Pick<Task, "metadata">): string | undefined {
  return findAnswer(metadata).text;
}

/**
 * The row for tasks: with `answerKey`, its answer is `answer` as well.
 * @throws {ConfigError} for a row without an answer that is asked for or needed, and for one that a judge cannot read
 */
export function withAnswer(
  row: Row,
  { answerKey, judges = [] }: AnswerOptions,
  at: { readonly file: string; readonly line?: number | undefined },
): Row {
  const needing = judges.flatMap(({ needsAnswer }) => (needsAnswer ? [needsAnswer] : []));
  if (answerKey === undefined && needing.length === 0) return row;
  const keys = answerKey === undefined ? ANSWER_KEYS : [answerKey];
  const { text, value } = findAnswer(row, keys);
  if (text === undefined)
    throw new ConfigError(
      `Cannot use the row: ${answerKey === undefined ? "its reward needs an answer, and there is none" : `it has no answer in data.answer_key=${answerKey}`} (${lookedFor(row, keys)}). Add one, or name its field with data.answer_key, for instance extra_info.answer.`,
      at,
    );
  if (needing.some((reads) => typeof reads === "function" && !reads(text)))
    throw new ConfigError(
      `Cannot use the row: its reward can read no answer in ${shown(value)}. Correct the row, or name another field with data.answer_key.`,
      at,
    );
  return answerKey === undefined
    ? row
    : mergedJson(row, typeof value === "number" ? jsonField("answer", text) : { answer: value });
}

function findAnswer(row: Row, keys = ANSWER_KEYS): { readonly text?: string; readonly value?: unknown } {
  for (const key of keys) {
    const { holder, name } = placeOf(row, key);
    const value = valueAt(row, key);
    const text = textOf(value, holder && numberText(holder, name));
    if (text !== undefined) return { text, value };
  }
  return {};
}

function valueAt(row: Row, key: string): unknown {
  const { holder, name } = placeOf(row, key);
  return holder?.[name];
}

/** A field of that very name, else the object or list that the names and places lead to; no holder where they lead nowhere. */
function placeOf(row: Row, key: string): { readonly holder: Row | undefined; readonly name: string } {
  if (Object.hasOwn(row, key)) return { holder: row, name: key };
  const names = key.split(".");
  const name = names.pop()!;
  let holder: Row | undefined = row;
  for (const each of names) holder = holder && rowOf(holder, each);
  return { holder: holder && Object.hasOwn(holder, name) ? holder : undefined, name };
}

function rowOf(row: Row, name: string): Row | undefined {
  const value = Object.hasOwn(row, name) ? row[name] : undefined;
  return typeof value === "object" && value !== null ? (value as Row) : undefined;
}

/**
 * Undefined for what is no answer: nothing, a blank text, NaN, a list, an object.
 * @param source the number as its file wrote it, where JavaScript writes it in another way
 */
function textOf(value: unknown, source: string | undefined): string | undefined {
  if (typeof value === "string") return value.trim() === "" ? undefined : value;
  if (typeof value === "number") return Number.isNaN(value) ? undefined : (source ?? String(value));
  return typeof value === "bigint" || typeof value === "boolean" ? String(value) : undefined;
}

/** `answer is null, label is [1,2]; it has prompt, answer, label`. */
function lookedFor(row: Row, keys = ANSWER_KEYS): string {
  const found = keys.map((key) => [key, valueAt(row, key)] as const).filter(([, value]) => value !== undefined);
  const unusable = found.map(([key, value]) => `${key} is ${shown(value)}`).join(", ");
  return `${unusable || `looked for ${keys.join(", ")}`}; it has ${Object.keys(row).join(", ")}`;
}

function shown(value: unknown): string {
  if (typeof value === "number") return String(value);
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `${each}` : each)) ?? String(value);
  return text.length > 80 ? `${text.slice(0, 80)}...` : text;
}
