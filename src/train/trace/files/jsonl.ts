/** Traces as JSON lines: a trace has a `trace_id`, a session has none. */
import { stringifyJson } from "../../../leaves/json.ts";
import { parseTraceJson } from "../read_trace.ts";
import { readItem, type TraceItem } from "./item.ts";

/** One line, with its end. */
export function itemLine(item: TraceItem): string {
  return `${stringifyJson("session" in item ? item.session : item.trace)}\n`;
}

/** @throws {ConfigError} for the first line that is neither a trace nor a session, with its number */
export function* readTraceJsonl(text: string, file: string): Generator<TraceItem> {
  for (const [i, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const source = { file, line: i + 1 };
    yield readItem(parseTraceJson(line, source), source);
  }
}
