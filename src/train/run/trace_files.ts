/** Files of traces that a person names. */
import { ConfigError } from "../../leaves/errors.ts";
import { exportItems, type TraceItem } from "../trace/files/item.ts";
import { readTraceJsonl } from "../trace/files/jsonl.ts";
import { readTraceParquet } from "../trace/files/parquet.ts";
import { openTraceStore } from "../trace/mod.ts";
import { readSpans } from "../trace/otel/spans.ts";
import { parseTraceJson } from "../trace/read_trace.ts";
import { readBytes, readText } from "./files.ts";

/** Formats of a file of traces. */
export type Format = "jsonl" | "parquet" | "otlp" | "database";

const ENDINGS: readonly (readonly [RegExp, Format])[] = [
  [/\.otlp(\.jsonl?)?$/, "otlp"],
  [/\.jsonl$/, "jsonl"],
  [/\.parquet$/, "parquet"],
  [/\.(db|sqlite3?)$/, "database"],
];

/**
 * Returns the format by the ending, unless one is given.
 * @throws {ConfigError} for a file whose ending says nothing
 */
export function traceFormat(file: string, formatOption?: unknown): Format {
  const format = (formatOption as Format | undefined) ?? ENDINGS.find(([ending]) => ending.test(file))?.[1];
  if (format) return format;
  throw new ConfigError(
    `Cannot tell the format of ${file}: its ending is not .jsonl, .parquet, .otlp, .otlp.json or .db. Name it so, or give --format where a command has it.`,
  );
}

/** Everything in a file, read as a whole, so that a damaged line changes nothing. @throws {ConfigError} that names it */
export async function readTraceItems(file: string, format: Format): Promise<TraceItem[]> {
  if (format === "database") return databaseItems(file);
  if (format === "parquet") return collect(readTraceParquet(readBytes(file, "traces"), file));
  const text = readText(file, "traces");
  return format === "otlp" ? spanItems(text, file) : [...readTraceJsonl(text, file)];
}

/** A whole document, or one request a line. */
function spanItems(text: string, file: string): TraceItem[] {
  const isWhole = /^\s*\{\s*\n/.test(text);
  if (isWhole) return [...readSpans(parseTraceJson(text, { file }), { file })];
  return text.split("\n").flatMap((line, i) => {
    const source = { file, line: i + 1 };
    return line.trim() === "" ? [] : [...readSpans(parseTraceJson(line, source), source)];
  });
}

async function databaseItems(file: string): Promise<TraceItem[]> {
  const store = await openTraceStore(file, { mustExist: true });
  try {
    return await collect(exportItems(store));
  } finally {
    await store.close();
  }
}

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const collected: T[] = [];
  for await (const item of items) collected.push(item);
  return collected;
}
