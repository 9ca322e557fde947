/** Checks traces and sessions that another program may have written: rows of a database, lines of a file. */
import { z } from "zod";
import type { SessionRecord, TraceRecord } from "../../engine/contract/trace.ts";
import { ConfigError, type Source } from "../../leaves/errors.ts";
import { parseJson as parsedJson } from "../../leaves/json.ts";
import { anyObject } from "../../leaves/shape.ts";

const ids = z.array(z.int().nonnegative());
const fields = anyObject();

/** Only the ids are required. Fields that are not listed stay, such as rLLM's `routing_matrices`. */
const TRACE = z.looseObject({
  trace_id: z.string().min(1),
  session_id: z.string().min(1),
  model: z.string().nullish(),
  messages: z.array(z.looseObject({ role: z.string() })).nullish(),
  prompt_token_ids: ids.nullish(),
  response_message: fields.nullish(),
  completion_token_ids: ids.nullish(),
  logprobs: z.array(z.number()).nullish(),
  finish_reason: z.string().nullish(),
  weight_version: z.int().nullish(),
  latency_ms: z.number().nullish(),
  token_counts: z.looseObject({ prompt: z.int().default(0), completion: z.int().default(0) }).nullish(),
  timestamp: z.number().nullish(),
  metadata: fields.nullish(),
  sampling_params: fields.optional(),
});

const TRAJECTORY = z.looseObject({
  name: z.string(),
  label: z.string(),
  reward: z.number().nullable(),
  signals: z.record(z.string(), z.number()).optional(),
  calls: z.array(
    z.looseObject({
      trace_id: z.string(),
      reward: z.number(),
      advantage: z.union([z.number(), z.array(z.number())]).optional(),
    }),
  ),
});

const OUTCOME = z.looseObject({
  reward: z.number().nullable(),
  is_correct: z.boolean().optional(),
  termination_reason: z.string().optional(),
  metrics: z.record(z.string(), z.number()).optional(),
  signals: z.record(z.string(), z.number()).optional(),
  trajectory_rewards: z.record(z.string(), z.number()).optional(),
  trajectories: z.array(TRAJECTORY).optional(),
  ended_at: z.number(),
});

const SESSION = z.looseObject({
  session_id: z.string().min(1),
  metadata: fields.default({}),
  created_at: z.number(),
  sampling_params: fields.optional(),
  outcome: OUTCOME.optional(),
});

/**
 * A trace of any writer. What it lacks is empty or null; absent counts of tokens follow from the ids.
 * @throws {ConfigError} for a value of another type, with its place
 */
export function readTrace(value: unknown, source: Source): TraceRecord {
  const { token_counts, ...row } = parse(TRACE, value, { what: "trace", source });
  const prompt_token_ids = row.prompt_token_ids ?? [];
  const completion_token_ids = row.completion_token_ids ?? [];
  const counts = { prompt: prompt_token_ids.length, completion: completion_token_ids.length };
  return {
    ...row,
    model: row.model ?? "",
    messages: (row.messages ?? []) as unknown as TraceRecord["messages"],
    prompt_token_ids,
    response_message: row.response_message ?? {},
    completion_token_ids,
    logprobs: row.logprobs ?? null,
    finish_reason: row.finish_reason ?? null,
    weight_version: row.weight_version ?? null,
    latency_ms: row.latency_ms ?? 0,
    token_counts: token_counts ?? counts,
    timestamp: row.timestamp ?? 0,
    metadata: row.metadata ?? {},
  };
}

/** @throws {ConfigError} for a value that is no session, with its place */
export function readSession(value: unknown, source: Source): SessionRecord {
  return parse(SESSION, value, { what: "session", source }) as SessionRecord;
}

/** @throws {ConfigError} for text that is not JSON, and as {@link readTrace} */
export function parseTrace(text: string, source: Source): TraceRecord {
  return readTrace(parseTraceJson(text, source), source);
}

/** @throws {ConfigError} for text that is not JSON. NaN and Infinity, which Python writes, are none. */
export function parseTraceJson(text: string, source: Source): unknown {
  try {
    return parsedJson(text);
  } catch (cause) {
    const start = text.length > 60 ? `${text.slice(0, 60)}...` : text;
    throw new ConfigError(
      `Cannot read traces: the text is not JSON (${start}). Remove or correct it.`,
      { ...source, kind: "data" },
      { cause },
    );
  }
}

function parse<T>(type: z.ZodType<T>, value: unknown, { what, source }: { what: string; source: Source }): T {
  const read = type.safeParse(value);
  if (read.success) return read.data;
  const { path, message } = read.error.issues[0]!;
  const id = (value as Record<string, unknown> | null)?.[`${what}_id`];
  const name = typeof id === "string" ? ` ${id}` : "";
  const place = path.length > 0 ? `${path.join(".")}: ` : "";
  throw new ConfigError(`Cannot read the ${what}${name}: ${place}${message}. Correct it.`, { ...source, kind: "data" });
}
