/** Traces for tests. */
import type { TraceRecord } from "../../../src/engine/contract/trace.ts";

/** A small whole trace, with the given fields in place of its own. */
export function makeTrace(fields: Partial<TraceRecord> = {}): TraceRecord {
  return {
    trace_id: "trace",
    session_id: "session",
    model: "tiny",
    messages: [{ role: "user", content: "2+2?" }],
    prompt_token_ids: [1, 2, 3],
    response_message: { role: "assistant", content: "4" },
    completion_token_ids: [4, 5],
    logprobs: [-0.5, -0.25],
    finish_reason: "stop",
    weight_version: 0,
    latency_ms: 12.5,
    token_counts: { prompt: 3, completion: 2 },
    timestamp: 1000,
    metadata: {},
    ...fields,
  };
}
