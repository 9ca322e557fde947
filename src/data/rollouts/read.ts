/** Rollouts from JSONL and Parquet. Text and bytes come from the caller, so that a page can read them too. */
import { ConfigError, type Source } from "../../errors.ts";
import { RolloutsBuilder } from "./builder.ts";
import type { Precision, RolloutRow, Rollouts } from "./rollouts.ts";

/** How a file of rollouts is read. */
export interface ReadOptions {
  /** Name of the file, for messages. */
  readonly file?: string;
  readonly precision?: Precision;
}

/** Text in pieces: a whole file, or a stream's chunks cut anywhere. */
export type TextChunks = string | Iterable<string> | AsyncIterable<string>;

/** Cuts chunks into lines; a last line without a line break counts. */
export async function* linesOf(chunks: TextChunks): AsyncGenerator<string> {
  let rest = "";
  for await (const chunk of typeof chunks === "string" ? [chunks] : chunks) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop()!;
    yield* lines;
  }
  if (rest) yield rest;
}

/**
 * Rows of a JSONL file with where they came from; blank lines are skipped.
 * @throws ConfigError for a line that is not a JSON object
 */
export async function* jsonlRows(
  chunks: TextChunks,
  file?: string,
): AsyncGenerator<{ row: RolloutRow; source: Source }> {
  let line = 0;
  for await (const text of linesOf(chunks)) {
    line++;
    if (text.trim() === "") continue;
    yield { row: parseRow(text, { file, line }), source: { file, line } };
  }
}

function parseRow(text: string, source: Source): RolloutRow {
  let row: unknown;
  try {
    row = JSON.parse(text);
  } catch (cause) {
    throw new ConfigError(
      `Cannot read the line as JSON: ${(cause as Error).message}. NaN and Infinity are not JSON.`,
      source,
    );
  }
  if (typeof row !== "object" || row === null || Array.isArray(row))
    throw new ConfigError("Cannot read the line as a rollout: it must be a JSON object.", source);
  return row as RolloutRow;
}

/** Reads a whole JSONL file. */
export async function readJsonl(chunks: TextChunks, options: ReadOptions = {}): Promise<Rollouts> {
  const builder = new RolloutsBuilder(options);
  for await (const { row, source } of jsonlRows(chunks, options.file)) builder.add(row, source);
  return builder.build();
}

/** Byte ranges of a Parquet file: an ArrayBuffer, or anything with `byteLength` and `slice`. */
export interface ByteRanges {
  readonly byteLength: number;
  slice(start: number, end?: number): ArrayBuffer | Promise<ArrayBuffer>;
}

/** Reads a Parquet file with the fields of the JSONL lines as columns (lists of numbers for per-token ones). */
export async function readParquet(file: ByteRanges, options: ReadOptions = {}): Promise<Rollouts> {
  const { parquetReadObjects } = await import("hyparquet");
  const builder = new RolloutsBuilder(options);
  const rows = await parquetReadObjects({ file });
  for (const [i, row] of rows.entries()) builder.add(plainRow(row), { file: options.file, line: i + 1 });
  return builder.build();
}

/** Columns that are null are absent; 64-bit integers become numbers. */
function plainRow(row: Readonly<Record<string, unknown>>): RolloutRow {
  const plain = (value: unknown) => (typeof value === "bigint" ? Number(value) : value);
  const entries = Object.entries(row).filter(([, value]) => value !== null && value !== undefined);
  return Object.fromEntries(entries.map(([name, value]) => [name, plain(value)])) as RolloutRow;
}

/** Some whole groups of a file of rollouts that is read in parts. */
export interface RolloutsPart {
  readonly rollouts: Rollouts;
  /** Place of each of the part's rows in the file, from 0. */
  readonly rows: readonly number[];
}

interface PendingGroup {
  readonly rows: { row: RolloutRow; source: Source; index: number }[];
}

/**
 * Reads rollouts larger than memory in parts of whole groups. The file is read twice: once to count each group's
 * rows, once to give a group out as soon as its last row has come.
 * Memory: one part, and the groups that are open at one time.
 * @param open starts the text from its beginning each time it is called
 */
export async function* streamJsonl(
  open: () => TextChunks,
  options: ReadOptions & { readonly tokensPerPart: number },
): AsyncGenerator<RolloutsPart> {
  const missing = await countGroups(open(), options.file);
  const openGroups = new Map<string, PendingGroup>();
  let builder = new RolloutsBuilder(options);
  let rows: number[] = [];
  let index = 0;
  for await (const { row, source } of jsonlRows(open(), options.file)) {
    const name = String(row.group);
    const group = openGroups.get(name) ?? { rows: [] };
    openGroups.set(name, group);
    group.rows.push({ row, source, index: index++ });
    const left = missing.get(name)! - 1;
    missing.set(name, left);
    if (left > 0) continue;
    openGroups.delete(name);
    for (const member of group.rows) {
      builder.add(member.row, member.source);
      rows.push(member.index);
    }
    if (builder.tokenCount < options.tokensPerPart) continue;
    yield { rollouts: builder.build(), rows };
    builder = new RolloutsBuilder(options);
    rows = [];
  }
  if (rows.length > 0) yield { rollouts: builder.build(), rows };
}

async function countGroups(chunks: TextChunks, file?: string): Promise<Map<string, number>> {
  const counts = new Map<string, number>();
  for await (const { row, source } of jsonlRows(chunks, file)) {
    if (row.group === undefined)
      throw new ConfigError("Cannot stream rollouts without groups: give every row a group.", {
        ...source,
        path: "group",
      });
    const name = String(row.group);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return counts;
}
