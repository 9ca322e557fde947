/** `grpu traces export|import`. */
import { closeSync, openSync, writeSync } from "node:fs";
import { ConfigError, fileError } from "../../leaves/errors.ts";
import { type Format, readTraceItems, traceFormat } from "../../train/run/trace_files.ts";
import { exportItems, importItems, type TraceItem } from "../../train/trace/files/item.ts";
import { itemLine } from "../../train/trace/files/jsonl.ts";
import { writeParquet } from "../../train/trace/files/parquet.ts";
import { writeSpans } from "../../train/trace/otel/spans.ts";
import type { Input, Io } from "../command.ts";
import { sinceOf, withStore } from "./trace_options.ts";
import { say } from "./traces_store.ts";

export function exportTraces(input: Input, io: Io): Promise<void> {
  const { args, options } = input;
  const file = options.output === undefined ? undefined : String(options.output);
  const format =
    file === undefined ? ((options.format as Format | undefined) ?? "jsonl") : traceFormat(file, options.format);
  if (format === "database")
    throw new ConfigError(
      `Cannot export to ${file}: a database is no export. Copy it, or name a .jsonl or .parquet file.`,
    );
  if (format === "parquet" && file === undefined)
    throw new ConfigError("Cannot export as Parquet to standard output: it is binary. Name a file with --output.");
  const session_ids = args.length > 0 ? args : undefined;
  return withStore(input, async (store) => {
    const items = exportItems(store, { session_ids, since: sinceOf(input) });
    const count = { traces: 0 };
    const chunks = chunksOf(counted(items, count), format);
    if (file === undefined) for await (const chunk of chunks) io.out(String(chunk));
    else await writeChunks(file, chunks);
    if (file !== undefined) io.err(`wrote ${count.traces} ${count.traces === 1 ? "trace" : "traces"} to ${file}\n`);
  });
}

async function* counted(items: AsyncIterable<TraceItem>, count: { traces: number }): AsyncGenerator<TraceItem> {
  for await (const item of items) {
    if ("trace" in item) count.traces++;
    yield item;
  }
}

async function* chunksOf(items: AsyncIterable<TraceItem>, format: Format): AsyncGenerator<string | Uint8Array> {
  if (format === "parquet") yield await writeParquet(items);
  else if (format === "otlp") yield* writeSpans(items);
  else for await (const item of items) yield itemLine(item);
}

/** Opens the file with the first chunk, so that an error before it leaves an earlier file as it is. */
async function writeChunks(file: string, chunks: AsyncIterable<string | Uint8Array>): Promise<void> {
  let opened: number | undefined;
  const trying = <T>(use: () => T): T => {
    try {
      return use();
    } catch (cause) {
      throw fileError(cause, { act: "write the traces", file }) ?? cause;
    }
  };
  const open = () => (opened ??= trying(() => openSync(file, "w")));
  try {
    for await (const chunk of chunks) {
      const bytes = typeof chunk === "string" ? new TextEncoder().encode(chunk) : chunk;
      const to = open();
      for (let at = 0; at < bytes.length; ) at += trying(() => writeSync(to, bytes, at));
    }
    open();
  } finally {
    if (opened !== undefined) closeSync(opened);
  }
}

export async function importTraces(input: Input, io: Io): Promise<void> {
  const read = input.args.map((file) => ({ file, format: traceFormat(file, input.options.format) }));
  await withStore(
    input,
    async (store) => {
      const total = { sessions: 0, traces: 0, untrainable: 0 };
      for (const { file, format } of read) {
        const counts = await importItems(store, await readTraceItems(file, format));
        for (const name of ["sessions", "traces", "untrainable"] as const) total[name] += counts[name];
      }
      const { untrainable, ...counts } = total;
      if (input.options.json) return io.out(`${JSON.stringify(total)}\n`);
      say(counts, { what: "imported", input, io });
      if (untrainable > 0)
        io.err(`${untrainable} without token ids or log-probs: they are kept, and cannot be trained on\n`);
    },
    { mustExist: false },
  );
}
