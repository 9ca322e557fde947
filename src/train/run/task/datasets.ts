/** Rows that `data.train_files` and `data.val_files` name: files, folders, or data sets that a module registered. */
import { existsSync, readdirSync, statSync } from "node:fs";
import { join, relative, resolve, sep } from "node:path";
import { ConfigError } from "../../../leaves/errors.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { AnswerOptions, NeedsAnswer } from "../../data/answer.ts";
import { rowsOfDataset, type Split, tasksFromDataset } from "../../data/dataset.ts";
import { filesOfSplit } from "../../data/folder_split.ts";
import {
  type PlacedRow,
  type PromptOptions,
  type RowOptions,
  rowsOfJsonl,
  rowsOfParquet,
  tasksFromJsonl,
  tasksFromParquet,
} from "../../data/rows.ts";
import type { Task } from "../../data/types.ts";
import { datasets } from "../../task/registered.ts";
import { locate, readBytes, readText } from "../files.ts";

interface TaskSource {
  readonly split: Split;
  readonly shipped?: string | undefined;
  /** Whether the user names the setting, as opposed to a default. */
  readonly isGiven?: ((path: string) => boolean) | undefined;
  /** Judges of the tasks: rows must have the answers that they need. */
  readonly judges?: readonly NeedsAnswer[] | undefined;
}

/**
 * The tasks of a split, in the order of the names given.
 * @param source.shipped the environment's own file, where the configuration names none
 * @throws {ConfigError} naming the file, folder or row that cannot be used.
 */
export async function readTasks(config: Tree, source: TaskSource): Promise<Task[]> {
  const { split, shipped = [], isGiven = () => true, judges } = source;
  const named = split === "train" ? setting(config, "data.train_files") : setting(config, "data.val_files");
  // verl's tree has paths of its own authors' as defaults.
  const files = isGiven(`data.${split}_files`) ? named : null;
  const prompt = {
    promptKey: setting(config, "data.prompt_key") ?? undefined,
    promptType: setting(config, "data.prompt_type"),
    systemPrompt: setting(config, "data.system_prompt") ?? undefined,
    answerKey: setting(config, "data.answer_key") ?? undefined,
    judges,
  };
  const tasks: Task[] = [];
  for (const name of [files ?? shipped].flat()) {
    const dataset = datasets.get(name);
    const more = dataset
      ? await tasksFromDataset(dataset, { ...prompt, name, split })
      : await tasksFromPath(name, { split, prompt });
    // One by one: a spread of a million rows overflows the stack.
    for (const task of more) tasks.push(task);
  }
  return tasks;
}

/**
 * The rows that files, folders and data sets hold, in the order of the names.
 * @throws {ConfigError} naming the file, folder or row that cannot be used.
 */
export async function readRows(names: readonly string[], split: Split): Promise<PlacedRow[]> {
  const rows: PlacedRow[] = [];
  for (const name of names) {
    const dataset = datasets.get(name);
    const files = dataset ? [] : filesAt(name, split).map(({ file }) => file);
    const more = dataset
      ? await rowsOfDataset(dataset, { name, split })
      : (await Promise.all(files.map(rowsOfFile))).flat();
    for (const row of more) rows.push(row);
  }
  return rows;
}

function rowsOfFile(file: string): Promise<PlacedRow[]> | PlacedRow[] {
  if (file.endsWith(".parquet")) return rowsOfParquet(readBytes(file, "data file"), file);
  return rowsOfJsonl(readText(file, `data file${knownDatasets()}`), file);
}

async function tasksFromPath(
  path: string,
  options: { split: Split; prompt: PromptOptions & AnswerOptions },
): Promise<Task[]> {
  const tasks: Task[] = [];
  for (const place of filesAt(path, options.split))
    for (const task of await tasksFromFile({ ...options.prompt, ...place })) tasks.push(task);
  return tasks;
}

/** A file, or those of a folder, which is then their source. */
function filesAt(path: string, split: Split): { file: string; source?: string | undefined }[] {
  const place = locate(path);
  if (!existsSync(place) || !statSync(place).isDirectory()) return [{ file: path }];
  const source = resolve(place).split(sep).at(-1);
  return dataFiles(place, split).map((name) => ({ file: join(place, name), source }));
}

function tasksFromFile(options: RowOptions): Promise<Task[]> | Task[] {
  const { file } = options;
  if (file.endsWith(".parquet")) return tasksFromParquet(readBytes(file, "data file"), options);
  return tasksFromJsonl(readText(file, `data file${knownDatasets()}`), options);
}

function knownDatasets(): string {
  const names = datasets.names();
  return names.length > 0 ? ` (nor data set: registered are ${names.join(", ")})` : "";
}

/** JSONL and Parquet files of a folder and the folders in it, by name, for a split. Hidden ones are left out. */
function dataFiles(folder: string, split: Split): readonly string[] {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const paths = entries
    .filter((entry) => entry.isFile() && /\.(jsonl|parquet)$/.test(entry.name))
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)).split(sep).join("/"))
    .filter((path) => !/(^|\/)\./.test(path))
    .sort();
  const path = `data.${split}_files`;
  if (paths.length === 0) {
    throw new ConfigError(
      `Cannot use the folder as data: it holds no .jsonl and no .parquet file (${folder}). Name another folder, or files.`,
      { path },
    );
  }
  const files = filesOfSplit(paths, split);
  if (files.length > 0) return files;
  throw new ConfigError(
    `Cannot use the folder ${folder} for ${split}: its files are named for other splits (${paths.slice(0, 5).join(", ")}). Name files of it instead.`,
    { path },
  );
}
