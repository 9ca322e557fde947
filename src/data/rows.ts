/** Makes tasks of the rows of a data file. */
import type { ChatMessage } from "../contract/text.ts";
import { ConfigError } from "../errors.ts";
import { readMessages } from "./messages.ts";
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

export interface RowOptions extends PromptOptions {
  /** Used in error messages, and as the source of rows that name none. */
  readonly file: string;
  /** `data_source` of rows that name none. Default: the file's name. */
  readonly source?: string | undefined;
}

type Row = Readonly<Record<string, unknown>>;

const OTHER_PROMPT_KEYS = ["instruction", "question"];

/**
 * One task per line, each a JSON object; empty lines are skipped.
 * @throws {ConfigError} for a line that is not a JSON object or has no prompt, naming it; for a file without rows
 */
export function tasksFromJsonl(text: string, options: RowOptions): Task[] {
  const tasks: Task[] = [];
  text.split("\n").forEach((line, i) => {
    if (line.trim() === "") return;
    const row = parseRow(line, { file: options.file, line: i + 1 });
    tasks.push(taskFromRow(row, { ...options, line: i + 1, index: tasks.length }));
  });
  if (tasks.length > 0) return tasks;
  throw noRows(options.file);
}

function noRows(file: string): ConfigError {
  return new ConfigError("Cannot use the data file: it has no rows. Add some, or name another file.", {
    file,
  });
}

/**
 * One task per row of a Parquet file, uncompressed or with Snappy.
 * @throws {ConfigError} for a row without a prompt, naming it; for a file that is not Parquet or has no rows
 */
export async function tasksFromParquet(file: ArrayBuffer, options: RowOptions): Promise<Task[]> {
  if (!isParquet(file))
    throw new ConfigError("Cannot read the file as Parquet: it does not begin and end with PAR1.", {
      file: options.file,
    });
  const { parquetReadObjects } = await import("hyparquet");
  const rows = await parquetReadObjects({ file }).catch((cause: Error) => {
    throw new ConfigError(`Cannot read the Parquet file: ${cause.message}.`, { file: options.file });
  });
  if (rows.length === 0) throw noRows(options.file);
  return rows.map((row, index) => taskFromRow(plain(row) as Row, { ...options, line: index + 1, index }));
}

function isParquet(file: ArrayBuffer): boolean {
  const isMark = (bytes: ArrayBuffer) => new TextDecoder().decode(bytes) === "PAR1";
  return file.byteLength >= 12 && isMark(file.slice(0, 4)) && isMark(file.slice(-4));
}

/** 64-bit integers as numbers, so that rows can be written as JSON. */
function plain(value: unknown): unknown {
  if (typeof value === "bigint") return Number(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null || value instanceof Date) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]));
}

function parseRow(line: string, at: { file: string; line: number }): Row {
  let row: unknown;
  try {
    row = JSON.parse(line);
  } catch (cause) {
    throw new ConfigError(`Cannot read the row: it is not JSON (${(cause as Error).message}).`, at);
  }
  if (typeof row === "object" && row !== null && !Array.isArray(row)) return row as Row;
  throw new ConfigError(`Cannot read the row: it is not a JSON object (${line.slice(0, 80)}).`, at);
}

/**
 * The task of one row.
 * @throws {ConfigError} for a row without a prompt, or with a list that holds anything but messages
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
    id: String(row.id ?? `${baseName(file)}-${index}`),
    instruction: messages ? lastOfUser(messages) : (row[key] as string),
    ...(messages && { messages }),
    metadata: { ...row, data_source: source },
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

function readAt(prompt: unknown, at: { file: string; line?: number | undefined }): ChatMessage[] {
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
