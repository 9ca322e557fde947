/** Traces as a Parquet table: ids and log-probs as lists, conversations and metadata as JSON text. */

import type { SessionRecord, TraceRecord } from "../../../engine/contract/trace.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import { parseTraceJson } from "../read_trace.ts";
import { readItem, type TraceItem } from "./item.ts";

type Kind = "text" | "json" | "ids" | "floats" | "integer" | "float";

/**
 * A row is a trace; `session` is the session's record, in the first row of each session. A session without a trace is a
 * row whose `trace_id` is null.
 */
const COLUMNS: Readonly<Record<string, Kind>> = {
  trace_id: "text",
  session_id: "text",
  model: "text",
  messages: "json",
  prompt_token_ids: "ids",
  response_message: "json",
  completion_token_ids: "ids",
  logprobs: "floats",
  finish_reason: "text",
  weight_version: "integer",
  latency_ms: "float",
  timestamp: "float",
  metadata: "json",
  /** Every other field of the trace. */
  more: "json",
  session: "json",
};

const list = (name: string, element: object) => [
  { name, repetition_type: "OPTIONAL", converted_type: "LIST", num_children: 1 },
  { name: "list", repetition_type: "REPEATED", num_children: 1 },
  { name: "element", repetition_type: "REQUIRED", ...element },
];

const SCHEMA_OF: Readonly<Record<Kind, (name: string) => readonly object[]>> = {
  text: (name) => [{ name, type: "BYTE_ARRAY", converted_type: "UTF8", repetition_type: "OPTIONAL" }],
  json: (name) => [{ name, type: "BYTE_ARRAY", converted_type: "UTF8", repetition_type: "OPTIONAL" }],
  ids: (name) => list(name, { type: "INT32", converted_type: "UINT_32" }),
  floats: (name) => list(name, { type: "DOUBLE" }),
  integer: (name) => [{ name, type: "INT32", repetition_type: "OPTIONAL" }],
  float: (name) => [{ name, type: "DOUBLE", repetition_type: "OPTIONAL" }],
};

/** The whole table; it is built in memory. */
export async function writeParquet(items: AsyncIterable<TraceItem>): Promise<Uint8Array> {
  const { parquetWriteBuffer } = await import("hyparquet-writer");
  const rows = await rowsOf(items);
  const columns = Object.entries(COLUMNS);
  const schema = [
    { name: "root", num_children: columns.length },
    ...columns.flatMap(([name, kind]) => SCHEMA_OF[kind](name)),
  ];
  const columnData = columns.map(([name, kind]) => ({ name, data: rows.map((row) => cell(row[name], kind)) }));
  return new Uint8Array(parquetWriteBuffer({ schema, columnData } as Parameters<typeof parquetWriteBuffer>[0]));
}

type Row = Record<string, unknown>;

async function rowsOf(items: AsyncIterable<TraceItem>): Promise<Row[]> {
  const rows: Row[] = [];
  let waiting: SessionRecord | undefined;
  for await (const item of items) {
    if ("session" in item) {
      if (waiting) rows.push(sessionRow(waiting));
      waiting = item.session;
    } else {
      rows.push({ ...traceRow(item.trace), session: waiting });
      waiting = undefined;
    }
  }
  if (waiting) rows.push(sessionRow(waiting));
  return rows;
}

function sessionRow(session: SessionRecord): Row {
  return { session_id: session.session_id, session };
}

function traceRow(trace: TraceRecord): Row {
  const more = Object.fromEntries(Object.entries(trace).filter(([name]) => !(name in COLUMNS)));
  return { ...trace, more };
}

function cell(value: unknown, kind: Kind): unknown {
  if (value === undefined || value === null) return null;
  return kind === "json" ? stringifyJson(value) : value;
}

/**
 * A table that {@link writeParquet} wrote.
 * @throws {ConfigError} for a file that is no Parquet table of traces, naming the row
 */
export async function* readTraceParquet(buffer: ArrayBuffer, file: string): AsyncGenerator<TraceItem> {
  const { parquetReadObjects } = await import("hyparquet");
  const rows = await parquetReadObjects({ file: buffer }).catch((cause: Error) => {
    throw new ConfigError(`Cannot read the Parquet file: ${cause.message}.`, { file, kind: "data" }, { cause });
  });
  for (const [i, row] of rows.entries()) {
    const source = { file, line: i + 1 };
    const read = Object.fromEntries(
      Object.entries(row).map(([name, value]) => [name, fromCell(value, COLUMNS[name], source)]),
    );
    const { session, more, ...trace } = read;
    if (session) yield readItem(session, source);
    if (trace.trace_id !== undefined && trace.trace_id !== null)
      yield readItem({ ...(more as object), ...withoutUndefined(trace) }, source);
  }
}

function fromCell(value: unknown, kind: Kind | undefined, source: { file: string; line: number }): unknown {
  if (kind === "json" && typeof value === "string") return parseTraceJson(value, source);
  if (kind === "integer" && typeof value === "bigint") return Number(value);
  return kind === "ids" || kind === "floats" ? (value ?? null) : value;
}

/** A null list is read as undefined. */
function withoutUndefined(row: Row): Row {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== undefined));
}
