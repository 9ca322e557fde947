/** Data sets that a module makes, and what tells one data set from another. */
import { ConfigError } from "../errors.ts";
import { type PromptOptions, taskFromRow } from "./rows.ts";
import type { Task } from "./types.ts";

/** Which part of a data set is asked for. */
export type Split = "train" | "val";

/** One row: the prompt, and whatever a reward needs. */
export type DatasetRow = Readonly<Record<string, unknown>>;

/** The rows of a data set, in order; they may arrive over time. */
export type DatasetRows = Iterable<DatasetRow> | AsyncIterable<DatasetRow>;

/** Rows (finitely many), or a function that makes those of a split, at once or later. */
export type Dataset = DatasetRows | ((split: Split) => DatasetRows | Promise<DatasetRows>);

export interface DatasetOptions extends PromptOptions {
  /** The registered name: in messages and ids, and the source of rows that name none. */
  readonly name: string;
  readonly split: Split;
}

/**
 * One task a row.
 * @throws {ConfigError} naming the row that is no object or has no prompt, or when there is no row.
 */
export async function tasksFromDataset(dataset: Dataset, options: DatasetOptions): Promise<Task[]> {
  const { name, split, ...prompt } = options;
  const rows = typeof dataset === "function" ? await dataset(split) : dataset;
  if (!isIterable(rows)) {
    throw new ConfigError(
      `Cannot use the data set ${name} as it must give an array or an iterable of rows: ${typeof rows}`,
      { path: `data.${split}_files` },
    );
  }
  const tasks: Task[] = [];
  for await (const row of rows) {
    const index = tasks.length;
    if (typeof row !== "object" || row === null) {
      throw new ConfigError(`Cannot read the row as it is no object: ${String(row)}`, {
        file: name,
        line: index + 1,
      });
    }
    tasks.push(taskFromRow(row, { ...prompt, file: name, line: index + 1, index }));
  }
  if (tasks.length > 0) return tasks;
  throw new ConfigError(`Cannot use the data set ${name} as it has no rows for ${split}`, {
    path: `data.${split}_files`,
  });
}

function isIterable(value: unknown): value is DatasetRows {
  return (
    typeof value === "object" && value !== null && (Symbol.iterator in value || Symbol.asyncIterator in value)
  );
}

/** What a checkpoint keeps of the data it was trained on: the order of a run is a function of these rows. */
export interface DataMark {
  readonly rows: number;
  /** Of every task's id, prompt and fields, in order. */
  readonly hash: string;
}

export function markOf(tasks: readonly Task[]): DataMark {
  // FNV-1a over two lanes: 64 bits, in a page as well.
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
