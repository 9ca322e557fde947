/** Traces as OpenTelemetry spans of the GenAI conventions, in OTLP's JSON form, and back. */

import { z } from "zod";
import type { SessionRecord, TraceRecord } from "../../../engine/contract/trace.ts";
import { ConfigError, type Source } from "../../../leaves/errors.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import { readItem, type TraceItem } from "../files/item.ts";
import { parseTraceJson } from "../read_trace.ts";
import { fromAttributes, GEN_AI, GEN_AI_SAMPLING, type KeyValue, OWN, toAttributes } from "./attributes.ts";
import { fromParts, type PartMessage, toParts } from "./messages.ts";

/** Fields of a trace that have attributes of their own; the others, and times to the last digit, go to `grpu.more`. */
const NAMED = new Set<string>([
  ...["trace_id", "session_id", "model", "messages", "prompt_token_ids", "response_message", "completion_token_ids"],
  ...["logprobs", "finish_reason", "weight_version", "token_counts", "metadata", "tools"],
]);

/** One span. Ids are hexadecimal, times nanoseconds since 1970 as text. */
interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly name: string;
  /** 3 = CLIENT. */
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly KeyValue[];
}

/** One line of an OTLP file: spans of one resource. A session without traces has no span and is left out. */
export async function* writeSpans(items: AsyncIterable<TraceItem>): AsyncGenerator<string> {
  let session: SessionRecord | undefined;
  for await (const item of items) {
    if ("session" in item) {
      session = item.session;
      continue;
    }
    yield `${stringifyJson(request(spanOf(item.trace, session)))}\n`;
    session = undefined;
  }
}

function request(span: Span) {
  const resource = { attributes: toAttributes({ "service.name": "grpu" }) };
  return { resourceSpans: [{ resource, scopeSpans: [{ scope: { name: "grpu" }, spans: [span] }] }] };
}

function spanOf(trace: TraceRecord, session: SessionRecord | undefined): Span {
  const { trace_id, session_id, model, timestamp, latency_ms } = trace;
  const operation = trace.messages.length > 0 ? "chat" : "text_completion";
  return {
    traceId: digest(session_id, 32),
    spanId: digest(trace_id, 16),
    name: `${operation} ${model}`,
    kind: 3,
    startTimeUnixNano: nanoseconds(timestamp),
    endTimeUnixNano: nanoseconds(timestamp + latency_ms / 1000),
    attributes: attributesOf(trace, { session, operation }),
  };
}

function attributesOf(
  trace: TraceRecord,
  { session, operation }: { session: SessionRecord | undefined; operation: string },
): KeyValue[] {
  const { messages, response_message, finish_reason, token_counts, metadata } = trace;
  const more = Object.fromEntries(Object.entries(trace).filter(([name]) => !NAMED.has(name)));
  const output = { ...toParts(response_message), finish_reason: finish_reason ?? "unknown" };
  const named = toAttributes({
    [GEN_AI.operation]: operation,
    [GEN_AI.provider]: "grpu",
    [GEN_AI.requestModel]: trace.model,
    [GEN_AI.responseId]: trace.trace_id,
    [GEN_AI.conversation]: trace.session_id,
    [GEN_AI.finishReasons]: finish_reason === null ? undefined : [finish_reason],
    [GEN_AI.inputTokens]: token_counts.prompt,
    [GEN_AI.outputTokens]: token_counts.completion,
    [GEN_AI.input]: stringifyJson(messages.map(toParts)),
    [GEN_AI.output]: stringifyJson([output]),
    [GEN_AI.tools]: trace.tools && stringifyJson(trace.tools),
    [OWN.promptIds]: trace.prompt_token_ids,
    [OWN.completionIds]: trace.completion_token_ids,
    [OWN.logprobs]: trace.logprobs,
    [OWN.weightVersion]: trace.weight_version,
    [OWN.metadata]: stringifyJson(metadata),
    [OWN.more]: stringifyJson(more),
    [OWN.session]: session && stringifyJson(session),
  });
  return [...named, ...samplingAttributes(trace.sampling_params)];
}

/** The conventions make all of them doubles, except for the number of tokens. */
function samplingAttributes(params: TraceRecord["sampling_params"] = {}): KeyValue[] {
  return Object.entries(GEN_AI_SAMPLING).flatMap(([name, key]) => {
    const value = params[name];
    if (typeof value !== "number") return [];
    return [{ key, value: name === "max_tokens" ? { intValue: `${value}` } : { doubleValue: value } }];
  });
}

/** Those that a span names; undefined for none. */
function samplingOf(found: Readonly<Record<string, unknown>>): object | undefined {
  const named = Object.entries(GEN_AI_SAMPLING).filter(([, key]) => found[key] !== undefined);
  return named.length > 0 ? Object.fromEntries(named.map(([name, key]) => [name, found[key]])) : undefined;
}

/** Microseconds, which a float64 holds for times of this century. */
function nanoseconds(seconds: number): string {
  return `${Math.round(seconds * 1e6)}000`;
}

/** Hexadecimal digits of a text: spans want ids of a fixed length. FNV-1a in lanes with different seeds. */
function digest(text: string, digits: number): string {
  let found = "";
  for (let lane = 0; found.length < digits; lane++) {
    let hash = 0x811c9dc5 ^ Math.imul(lane + 1, 0x9e3779b9);
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
    found += (hash >>> 0).toString(16).padStart(8, "0");
  }
  return found.slice(0, digits);
}

const attributes = z.array(z.object({ key: z.string(), value: z.record(z.string(), z.unknown()) })).default([]);
const SPAN = z.looseObject({
  traceId: z.string(),
  spanId: z.string(),
  startTimeUnixNano: z.union([z.string(), z.number()]).default("0"),
  endTimeUnixNano: z.union([z.string(), z.number()]).default("0"),
  attributes,
});
const REQUEST = z.looseObject({
  resourceSpans: z.array(z.looseObject({ scopeSpans: z.array(z.looseObject({ spans: z.array(SPAN).default([]) })) })),
});

/**
 * The traces of an OTLP request (one line of a file, or a whole file). Spans of other operations than `chat`,
 * `text_completion` and `generate_content` are left out.
 * @throws {ConfigError} for a value that is no OTLP request, or a span whose attributes have another type
 */
export function* readSpans(value: unknown, source: Source): Generator<TraceItem> {
  const read = REQUEST.safeParse(value);
  if (!read.success) {
    const { path, message } = read.error.issues[0]!;
    throw new ConfigError(`Cannot read OpenTelemetry spans: ${path.join(".") || "it"}: ${message}.`, {
      ...source,
      kind: "data",
    });
  }
  for (const { scopeSpans } of read.data.resourceSpans)
    for (const { spans } of scopeSpans) for (const span of spans) yield* itemsOf(span as unknown as Span, source);
}

const OPERATIONS: readonly unknown[] = ["chat", "text_completion", "generate_content"];

function* itemsOf(span: Span, source: Source): Generator<TraceItem> {
  const found = fromAttributes(span.attributes);
  if (!OPERATIONS.includes(found[GEN_AI.operation])) return;
  // Content attributes are structured, or JSON text where a span cannot hold structures.
  const at = (name: string): unknown => {
    const value = found[name];
    return typeof value === "string" ? parseTraceJson(value, { ...source, path: name }) : value;
  };
  const session = at(OWN.session);
  if (session !== undefined) yield readItem(session, source);
  const [input, output, system] = [GEN_AI.input, GEN_AI.output, GEN_AI.system].map(at);
  const [reply] = (output ?? []) as PartMessage[];
  const reasons = found[GEN_AI.finishReasons] as string[] | undefined;
  const sampling_params = samplingOf(found);
  yield readItem(
    {
      timestamp: Number(span.startTimeUnixNano) / 1e9,
      latency_ms: (Number(span.endTimeUnixNano) - Number(span.startTimeUnixNano)) / 1e6,
      ...(sampling_params && { sampling_params }),
      ...(at(OWN.more) as object | undefined),
      trace_id: found[GEN_AI.responseId] ?? span.spanId,
      session_id: found[GEN_AI.conversation] ?? span.traceId,
      model: found[GEN_AI.responseModel] ?? found[GEN_AI.requestModel],
      messages: [...systemOf(system), ...((input ?? []) as PartMessage[]).flatMap(fromParts)],
      response_message: reply ? fromParts(reply)[0] : {},
      prompt_token_ids: found[OWN.promptIds],
      completion_token_ids: found[OWN.completionIds],
      logprobs: found[OWN.logprobs] ?? null,
      finish_reason: reasons?.[0] ?? null,
      weight_version: found[OWN.weightVersion] ?? null,
      token_counts: { prompt: found[GEN_AI.inputTokens] ?? 0, completion: found[GEN_AI.outputTokens] ?? 0 },
      metadata: at(OWN.metadata) ?? {},
      ...(found[GEN_AI.tools] !== undefined && { tools: at(GEN_AI.tools) }),
    },
    source,
  );
}

/** Instructions that an API takes apart from the messages. */
function systemOf(parts: unknown): readonly unknown[] {
  return Array.isArray(parts) && parts.length > 0 ? fromParts({ role: "system", parts }) : [];
}
