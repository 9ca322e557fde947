/** Reads rollouts from JSONL and Parquet. The caller opens the text or bytes, so that this runs in a page too. */
import { ConfigError, type Source } from "../../../leaves/errors.ts";
import { RolloutsBuilder } from "./builder.ts";
import type { Precision, RolloutRow, Rollouts } from "./rollouts.ts";

/** How a file of rollouts is read. */
export interface ReadOptions {
  /** Name of the file, for messages. */
  readonly file?: string | undefined;
  /** Default `f32`. */
  readonly precision?: Precision | undefined;
}

/** A whole text, or a stream's chunks, which may end anywhere. */
export type TextChunks = string | Iterable<string> | AsyncIterable<string>;

/** Splits chunks into lines; the last line needs no line break. */
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
 * Rows of a JSONL file with their file and line; blank lines are skipped.
 * @throws {ConfigError} for a line that is not a JSON object
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
    throw new ConfigError("Cannot read the line as a rollout: it is not a JSON object.", source);
  return row as RolloutRow;
}

/**
 * Reads a whole JSONL file.
 * @throws {ConfigError} for a line that is not JSON, or a row that {@link RolloutsBuilder.add} refuses
 */
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

/**
 * Reads a Parquet file with the fields of the JSONL lines as columns; per-token ones hold lists of numbers.
 * @throws {ConfigError} for a row that {@link RolloutsBuilder.add} refuses
 */
export async function readParquet(file: ByteRanges, options: ReadOptions = {}): Promise<Rollouts> {
  const { parquetReadObjects } = await import("hyparquet");
  const builder = new RolloutsBuilder(options);
  const rows = await parquetReadObjects({ file });
  for (const [i, row] of rows.entries()) builder.add(plainRow(row), { file: options.file, line: i + 1 });
  return builder.build();
}

/** Drops columns that are null. */
function plainRow(row: Readonly<Record<string, unknown>>): RolloutRow {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null)) as RolloutRow;
}

/** Some whole groups of a file of rollouts that is read in parts. */
export interface RolloutsPart {
  readonly rollouts: Rollouts;
  /** Place of each of the part's rows in the file, from 0. */
  readonly rows: readonly number[];
}

interface PlacedRow {
  readonly row: RolloutRow;
  readonly source: Source;
  /** Place in the file. */
  readonly index: number;
}

/**
 * Reads rollouts larger than memory in parts of whole groups. It reads the file twice: once to count the rows of each
 * group, once to emit a group as soon as its last row is there.
 * Memory: one part, and the groups that are incomplete at one time.
 * @param open starts the text from its beginning each time it is called
 * @throws {ConfigError} for a row without a group, or one that {@link RolloutsBuilder.add} refuses
 */
export async function* streamJsonl(
  open: () => TextChunks,
  options: ReadOptions & { readonly tokensPerPart: number },
): AsyncGenerator<RolloutsPart> {
  let builder = new RolloutsBuilder(options);
  let rows: number[] = [];
  for await (const group of wholeGroups(open, options.file)) {
    for (const { row, source, index } of group) {
      builder.add(row, source);
      rows.push(index);
    }
    if (builder.tokenCount < options.tokensPerPart) continue;
    yield { rollouts: builder.build(), rows };
    builder = new RolloutsBuilder(options);
    rows = [];
  }
  if (rows.length > 0) yield { rollouts: builder.build(), rows };
}

/** Each group once its last row is read. */
async function* wholeGroups(open: () => TextChunks, file: string | undefined): AsyncGenerator<PlacedRow[]> {
  const sizes = await countGroups(open(), file);
  const incomplete = new Map<string, PlacedRow[]>();
  let index = 0;
  for await (const { row, source } of jsonlRows(open(), file)) {
    const name = String(row.group);
    const group = incomplete.get(name) ?? [];
    incomplete.set(name, group);
    group.push({ row, source, index: index++ });
    if (group.length < (sizes.get(name) ?? 0)) continue;
    incomplete.delete(name);
    yield group;
  }
}

async function countGroups(chunks: TextChunks, file: string | undefined): Promise<Map<string, number>> {
  const counts = new Map<string, number>();
  for await (const { row, source } of jsonlRows(chunks, file)) {
    if (row.group === undefined)
      throw new ConfigError("Cannot stream rollouts: the row has no group. Give every row one.", {
        ...source,
        path: "group",
      });
    const name = String(row.group);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return counts;
}
