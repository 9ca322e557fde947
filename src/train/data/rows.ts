/** Reads the rows of a data file, and makes tasks of them. */

import { readMessages } from "../../chat/messages.ts";
import type { ChatMessage } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { mergedJson, numberText, parseJson, withBigInts } from "../../leaves/json.ts";
import { type AnswerOptions, withAnswer } from "./answer.ts";
import { parquetRows } from "./parquet_rows.ts";
import type { Task } from "./types.ts";

/** How a row's prompt is read. */
export interface PromptOptions {
  /** Field that holds the prompt, as text or a list of messages; then `instruction` and `question` are tried. Default `prompt`. */
  readonly promptKey?: string;
  /** `messages` turns a text prompt into one user message. Default `plaintext`. */
  readonly promptType?: "plaintext" | "messages";
  /** Inserted before conversations without a system message. */
  readonly systemPrompt?: string | undefined;
}

export interface RowOptions extends PromptOptions, AnswerOptions {
  /** Used in error messages, and as the source of rows that name none. */
  readonly file: string;
  /** `data_source` of rows that name none. Default: the file's name. */
  readonly source?: string | undefined;
}

export type Row = Readonly<Record<string, unknown>>;

/** Tried after the named one. */
export const OTHER_PROMPT_KEYS = ["instruction", "question"];

/** A row of a data file, and its place there. */
export interface PlacedRow {
  readonly row: Row;
  readonly file: string;
  /** Line from 1; in a Parquet file the number of the row. */
  readonly line: number;
}

/**
 * The rows of a JSONL file, each a JSON object on a line of its own; empty lines are skipped. Integers above 2^53 are bigints.
 * @throws {ConfigError} for a line that is not a JSON object, naming it; for a file without rows
 */
export function rowsOfJsonl(text: string, file: string): PlacedRow[] {
  const rows = text.split("\n").flatMap((content, i): PlacedRow[] => {
    if (content.trim() === "") return [];
    const at = { file, line: i + 1 };
    return [{ row: parseRow(content, at), ...at }];
  });
  if (rows.length > 0) return rows;
  throw noRows(file);
}

/**
 * The rows of a Parquet file, uncompressed or with Snappy. Integers above 2^53 are bigints.
 * @throws {ConfigError} for a file that is not Parquet or has no rows, for text that is not UTF-8, naming the row
 */
export async function rowsOfParquet(bytes: ArrayBuffer, file: string): Promise<PlacedRow[]> {
  if (!isParquet(bytes))
    throw new ConfigError("Cannot read the file as Parquet: it does not begin and end with PAR1.", { file });
  const rows = await parquetRows(bytes, file);
  if (rows.length === 0) throw noRows(file);
  return rows.map((row, index) => ({ row, file, line: index + 1 }));
}

function noRows(file: string): ConfigError {
  return new ConfigError("Cannot use the data file: it has no rows. Add some, or name another file.", { file });
}

/**
 * One task per row of a JSONL file.
 * @throws {ConfigError} as {@link rowsOfJsonl}, and for a row without a prompt, naming it
 */
export function tasksFromJsonl(text: string, options: RowOptions): Task[] {
  return tasksOf(rowsOfJsonl(text, options.file), options);
}

/**
 * One task per row of a Parquet file.
 * @throws {ConfigError} as {@link rowsOfParquet}, and for a row without a prompt, naming it
 */
export async function tasksFromParquet(file: ArrayBuffer, options: RowOptions): Promise<Task[]> {
  return tasksOf(await rowsOfParquet(file, options.file), options);
}

function tasksOf(rows: readonly PlacedRow[], options: RowOptions): Task[] {
  return rows.map(({ row, line }, index) => taskFromRow(row, { ...options, line, index }));
}

function isParquet(file: ArrayBuffer): boolean {
  const isMark = (bytes: ArrayBuffer) => new TextDecoder().decode(bytes) === "PAR1";
  return file.byteLength >= 12 && isMark(file.slice(0, 4)) && isMark(file.slice(-4));
}

function parseRow(line: string, at: { file: string; line: number }): Row {
  let row: unknown;
  try {
    row = withBigInts(parseJson(line));
  } catch (cause) {
    const why = cause instanceof RangeError ? "it is nested too deep" : `it is not JSON (${(cause as Error).message})`;
    throw new ConfigError(`Cannot read the row: ${why}.`, at);
  }
  if (typeof row === "object" && row !== null && !Array.isArray(row)) return row as Row;
  throw new ConfigError(`Cannot read the row: it is not a JSON object (${line.slice(0, 80)}).`, at);
}

/**
 * The task of one row.
 * @throws {ConfigError} for a row without a prompt, with a list that holds anything but messages, or as {@link withAnswer}
 */
export function taskFromRow(row: Row, options: RowOptions & { line?: number; index: number }): Task {
  const { file, line, index, promptKey = "prompt" } = options;
  const key = [promptKey, ...OTHER_PROMPT_KEYS].find(
    (name) => typeof row[name] === "string" || Array.isArray(row[name]),
  );
  if (key === undefined) {
    const fields = Object.keys(row).join(", ");
    throw new ConfigError(
      `Cannot make a task of the row: it has no field "${promptKey}" with text or messages (it has ${fields}). Name the field with data.prompt_key.`,
      { file, line },
    );
  }
  const messages = messagesOf(row[key], options);
  const source = row.data_source ?? options.source ?? baseName(file);
  return {
    id: numberText(row, "id") ?? String(row.id ?? `${baseName(file)}-${index}`),
    instruction: messages ? lastOfUser(messages) : (row[key] as string),
    ...(messages && { messages }),
    metadata: mergedJson(withAnswer(row, options, { file, line }), { data_source: source }),
  };
}

/** Undefined for a prompt that stays text. */
function messagesOf(prompt: unknown, options: RowOptions & { line?: number }): ChatMessage[] | undefined {
  const { promptType, systemPrompt, file, line } = options;
  if (typeof prompt === "string" && promptType !== "messages") return undefined;
  const messages = typeof prompt === "string" ? [{ role: "user", content: prompt }] : readAt(prompt, { file, line });
  if (systemPrompt === undefined || messages[0]!.role === "system") return messages;
  return [{ role: "system", content: systemPrompt }, ...messages];
}

/** The messages of a row. @throws {ConfigError} as {@link readMessages}, with the place of the row */
export function readAt(prompt: unknown, at: { file: string; line?: number | undefined }): ChatMessage[] {
  try {
    return readMessages(prompt);
  } catch (error) {
    throw error instanceof ConfigError ? new ConfigError(error.message, at) : error;
  }
}

function lastOfUser(messages: readonly ChatMessage[]): string {
  return (messages.findLast(({ role }) => role === "user") ?? messages[messages.length - 1]!).content;
}

function baseName(file: string): string {
  return (file.split(/[\\/]/).at(-1) ?? file).replace(/\.[^.]*$/, "");
}
