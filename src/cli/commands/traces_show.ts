/** `grpu traces show`: a session's conversation, readable in a terminal. */

import type { SessionSummary, TraceRecord } from "../../engine/contract/trace.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { stringifyJson } from "../../leaves/json.ts";
import { mean, smallest } from "../../leaves/statistics.ts";
import type { OpenTraceStore } from "../../train/trace/mod.ts";
import type { Input, Io } from "../command.ts";
import { withStore } from "./trace_options.ts";
import { outcomeText, timeOf } from "./traces_store.ts";

export function showTraces(input: Input, io: Io): Promise<void> {
  const [id] = input.args as [string];
  return withStore(input, async (store) => {
    const { session, traces } = await find(store, id);
    if (input.options.json) return io.out(`${stringifyJson({ session, traces })}\n`);
    const style = styleOf(io);
    io.out(heading(session, style));
    traces.forEach((trace, i) => {
      io.out(call(trace, { number: i + 1, before: traces[i - 1], style, hasTokens: input.options.tokens === true }));
    });
  });
}

interface Found {
  readonly session: SessionSummary;
  readonly traces: readonly TraceRecord[];
}

async function find(store: OpenTraceStore, id: string): Promise<Found> {
  const session = await store.getSession(id);
  if (session) return { session, traces: await store.traces({ session_id: id }) };
  const trace = await store.getTrace(id);
  const traceSession = trace && (await store.getSession(trace.session_id));
  if (traceSession) return { session: traceSession, traces: [trace] };
  throw new ConfigError(
    `Cannot show ${id}: the store has no session and no trace of that id. See grpu traces list for its sessions.`,
    { kind: "data" },
  );
}

interface Style {
  readonly columns: number;
  bold(text: string): string;
  dim(text: string): string;
}

function styleOf({ color, columns, isTerminal }: Io): Style {
  const paint = (code: number) => (text: string) => (color ? `\x1b[${code}m${text}\x1b[0m` : text);
  return { columns: isTerminal ? columns : Number.POSITIVE_INFINITY, bold: paint(1), dim: paint(2) };
}

function heading(session: SessionSummary, style: Style): string {
  const { session_id, metadata, outcome, created_at, trace_count } = session;
  const facts = [
    `${trace_count} ${trace_count === 1 ? "call" : "calls"}`,
    outcome ? `reward ${outcomeText(outcome)}` : "no outcome yet",
    ...(outcome?.is_correct === undefined ? [] : [outcome.is_correct ? "correct" : "wrong"]),
    ...(outcome?.termination_reason === undefined ? [] : [outcome.termination_reason]),
    timeOf(created_at),
  ];
  const notes = Object.entries(metadata).map(([key, value]) => `${key}=${short(value)}`);
  const more = Object.entries({ ...outcome?.metrics, ...outcome?.signals }).map(([key, value]) => `${key} ${value}`);
  const lines = [`${style.bold(session_id)}  ${facts.join(", ")}`, notes.join(" "), more.join(", ")];
  return lines
    .filter((line) => line !== "")
    .map((line) => `${line}\n`)
    .join("");
}

interface CallOptions {
  readonly number: number;
  readonly before: TraceRecord | undefined;
  readonly style: Style;
  readonly hasTokens: boolean;
}

function call(trace: TraceRecord, { number, before, style, hasTokens }: CallOptions): string {
  const shared = before ? sharedMessages(before, trace) : 0;
  const lines = [`\n${style.dim(`call ${number}  ${callFacts(trace).join(", ")}`)}\n`];
  if (shared > 0) lines.push(style.dim(`  ${"...".padEnd(ROLE)}${shared} earlier messages\n`));
  for (const message of trace.messages.slice(shared)) lines.push(turn(message, style));
  lines.push(turn({ role: "assistant", ...trace.response_message }, style));
  if (hasTokens) lines.push(tokenLines(trace, style));
  return lines.join("");
}

function callFacts(trace: TraceRecord): string[] {
  const { trace_id, prompt_token_ids, completion_token_ids, logprobs, weight_version, finish_reason } = trace;
  const figures = logprobs && logprobs.length > 0;
  return [
    trace_id,
    `${prompt_token_ids.length} + ${completion_token_ids.length} tokens`,
    figures ? `log-prob mean ${mean(logprobs).toFixed(3)}, least ${smallest(logprobs).toFixed(3)}` : "no log-probs",
    ...(weight_version === null ? [] : [`weights ${weight_version}`]),
    ...(finish_reason === null ? [] : [finish_reason]),
    ...(trace.prompt_origin === undefined ? [] : [trace.prompt_origin]),
    ...constrainedFacts(trace),
    `${trace.latency_ms.toFixed(0)} ms`,
  ];
}

function constrainedFacts({ constrained }: TraceRecord): string[] {
  if (!constrained) return [];
  return [`${constrained.masked_tokens} tokens masked`, ...(constrained.is_relaxed ? ["constraint given up"] : [])];
}

/** Messages at the start of a call that the call before it had, its reply included. */
function sharedMessages(before: TraceRecord, { messages }: TraceRecord): number {
  const earlier = [...before.messages, before.response_message];
  let shared = 0;
  while (shared < messages.length && shared < earlier.length && isSame(messages[shared]!, earlier[shared]!)) shared++;
  return shared;
}

/** A client may send a reply back without the fields that it does not know. */
function isSame(a: Readonly<Record<string, unknown>>, b: Readonly<Record<string, unknown>>): boolean {
  return a.role === (b.role ?? "assistant") && (a.content ?? "") === (b.content ?? "");
}

const ROLE = 11;

function turn(message: Readonly<Record<string, unknown>>, style: Style): string {
  const { role, content, reasoning_content, tool_calls } = message;
  const calls = Array.isArray(tool_calls) ? tool_calls.map(toolCall) : [];
  const text = typeof content === "string" ? content : content === undefined || content === null ? "" : short(content);
  const parts = [
    ...(typeof reasoning_content === "string" ? [["reasoning", reasoning_content]] : []),
    ...(text !== "" || calls.length === 0 ? [[String(role), text]] : []),
    ...calls.map((each) => ["tool call", each]),
  ] as [string, string][];
  return parts.map(([name, body]) => block(name, body, style)).join("");
}

function toolCall(call: { function?: { name?: string; arguments?: unknown } }): string {
  const { name = "?", arguments: args } = call.function ?? {};
  return `${name}(${typeof args === "string" ? args : short(args ?? {})})`;
}

/** A role, and its text in a column of its own. */
function block(name: string, body: string, { columns, bold }: Style): string {
  const width = Math.max(10, columns - ROLE - 3);
  const lines = body.split("\n").flatMap((line) => folded(line, width));
  return lines.map((line, i) => `  ${i === 0 ? bold(name.padEnd(ROLE)) : " ".repeat(ROLE)}${line}\n`).join("");
}

function folded(line: string, width: number): string[] {
  if (line.length <= width) return [line];
  const parts: string[] = [];
  for (let rest = line; rest !== ""; ) {
    const space = rest.length > width ? rest.lastIndexOf(" ", width) : -1;
    const end = rest.length <= width ? rest.length : space > 0 ? space : width;
    parts.push(rest.slice(0, end));
    rest = rest.slice(end).replace(/^ /, "");
  }
  return parts;
}

/** `id:log-prob`, which a model's tokenizer turns back into text. */
function tokenLines({ prompt_token_ids, completion_token_ids, logprobs }: TraceRecord, style: Style): string {
  const sampled = completion_token_ids.map((id, i) => `${id}:${logprobs?.[i]?.toFixed(3) ?? "?"}`);
  return block("prompt", prompt_token_ids.join(" "), style) + block("sampled", sampled.join(" "), style);
}

function short(value: unknown): string {
  return typeof value === "string" ? value : stringifyJson(value);
}
