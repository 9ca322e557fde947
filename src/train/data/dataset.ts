/** Data sets that a module makes, and the mark by which a checkpoint recognises its data. */
import { ConfigError } from "../../leaves/errors.ts";
import type { AnswerOptions } from "./answer.ts";
import { type PlacedRow, type PromptOptions, taskFromRow } from "./rows.ts";
import type { Task } from "./types.ts";

/** Part of a data set. */
export type Split = "train" | "val";

/** One row: the prompt, and whatever a reward needs. */
export type DatasetRow = Readonly<Record<string, unknown>>;

/** The rows of a data set, in order; they may arrive over time. */
export type DatasetRows = Iterable<DatasetRow> | AsyncIterable<DatasetRow>;

/** Finitely many rows, or a function of the split that returns them or a promise of them. */
export type Dataset = DatasetRows | ((split: Split) => DatasetRows | Promise<DatasetRows>);

export interface DatasetOptions extends PromptOptions, AnswerOptions {
  /** The registered name: used in messages and ids, and as the source of rows that name none. */
  readonly name: string;
  readonly split: Split;
}

/**
 * Makes one task of each row.
 * @throws {ConfigError} for a row that is not an object or has no prompt, naming the row; for a data set without rows
 */
export async function tasksFromDataset(dataset: Dataset, options: DatasetOptions): Promise<Task[]> {
  const { name, split, ...prompt } = options;
  const rows = await rowsOfDataset(dataset, { name, split });
  return rows.map(({ row, file, line }, index) => taskFromRow(row, { ...prompt, file, line, index }));
}

/**
 * The rows of a data set, placed by its name and their number.
 * @throws {ConfigError} for a row that is not an object, naming the row; for a data set without rows
 */
export async function rowsOfDataset(
  dataset: Dataset,
  { name, split }: Pick<DatasetOptions, "name" | "split">,
): Promise<PlacedRow[]> {
  const rows = typeof dataset === "function" ? await dataset(split) : dataset;
  if (!isIterable(rows)) {
    throw new ConfigError(
      `Cannot use the data set ${name}: it must be an array or an iterable of rows (${typeof rows}).`,
      { path: `data.${split}_files` },
    );
  }
  const placed: PlacedRow[] = [];
  for await (const row of rows) {
    const at = { file: name, line: placed.length + 1 };
    if (typeof row !== "object" || row === null) {
      throw new ConfigError(`Cannot read the row: it is not an object (${String(row)}).`, at);
    }
    placed.push({ row, ...at });
  }
  if (placed.length > 0) return placed;
  throw new ConfigError(
    `Cannot use the data set ${name}: it has no rows for ${split}. Return at least one, or name other files.`,
    { path: `data.${split}_files` },
  );
}

function isIterable(value: unknown): value is DatasetRows {
  return typeof value === "object" && value !== null && (Symbol.iterator in value || Symbol.asyncIterator in value);
}

/** Kept in checkpoints: the order of a run is a function of its rows, so a resumed run must see the same ones. */
export interface DataMark {
  readonly rows: number;
  /** Hash of every task's id, prompt and fields, in order; 16 hexadecimal digits. */
  readonly hash: string;
}

/** The mark of tasks: equal for equal tasks in the same order. */
export function markOf(tasks: readonly Task[]): DataMark {
  // FNV-1a in two 32-bit lanes: pages have no synchronous hash.
  let [a, b] = [0x811c9dc5, 0x01000193];
  for (const task of tasks) {
    const text = JSON.stringify(task, (_, value) => (typeof value === "bigint" ? `${value}n` : value));
    for (let i = 0; i < text.length; i++) {
      a = Math.imul(a ^ text.charCodeAt(i), 0x01000193);
      b = Math.imul(b ^ text.charCodeAt(i), 0x85ebca6b) + 1;
    }
  }
  const hash = [a, b].map((lane) => (lane >>> 0).toString(16).padStart(8, "0")).join("");
  return { rows: tasks.length, hash };
}
