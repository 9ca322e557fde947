/** The record of a call that a worker answered. */
import type { ChatMessage } from "../../../engine/contract/text.ts";
import type { TraceRecord } from "../../../engine/contract/trace.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";
import type { HowItEnded } from "./forward.ts";
import type { Gathered, GatheredChoice } from "./gathered.ts";
import type { WorkerHistory } from "./history.ts";

export interface RecordedWorkerCall {
  readonly session: { readonly session_id: string; readonly metadata: Readonly<Record<string, unknown>> };
  readonly body: JsonBody;
  /** Model as the client named it. Default: the worker's name. */
  readonly model: string | undefined;
  readonly history: WorkerHistory;
  /** Version of the workers when the call started; a version in the answer takes precedence. */
  readonly weight_version: number | null;
  /** Seconds since 1970. */
  readonly timestamp: number;
  readonly latency_ms: number;
}

/** One trace for each choice, added to the history. */
export function workerTraces(
  sampled: Gathered,
  { brokeOff, raw_response }: HowItEnded,
  call: RecordedWorkerCall,
): TraceRecord[] {
  const { session, body, history } = call;
  const messages = (Array.isArray(body.messages) ? body.messages : []) as ChatMessage[];
  const { origin, parent } = history.originOf({ ids: sampled.promptIds, messages });
  return sampled.choices().map((choice): TraceRecord => {
    const trace: TraceRecord = {
      // A run that is the worker names the calls of its outcome by its own ids.
      trace_id: choice.traceId ?? crypto.randomUUID(),
      session_id: session.session_id,
      model: call.model ?? sampled.model ?? "",
      messages,
      prompt_token_ids: sampled.promptIds,
      response_message: choice.message,
      completion_token_ids: choice.tokens,
      logprobs: logprobsOf(choice),
      finish_reason: choice.finish_reason ?? brokeOff ?? null,
      weight_version: sampled.weightVersion ?? call.weight_version,
      latency_ms: call.latency_ms,
      token_counts: countsOf(sampled, choice),
      timestamp: call.timestamp,
      metadata: { ...session.metadata, ...(body.metadata as JsonBody | undefined) },
      raw_request: body,
      raw_response: raw_response ?? null,
      prompt_origin: origin,
      parent_trace_id: parent,
      ...(Array.isArray(body.tools) && { tools: body.tools }),
    };
    if (brokeOff === undefined || choice.finish_reason !== null) history.add(trace);
    return trace;
  });
}

/** Null unless there is one for each token: such a trace cannot be trained on. */
function logprobsOf({ logprobs, tokens }: GatheredChoice): readonly number[] | null {
  return logprobs.length > 0 && (tokens.length === 0 || logprobs.length === tokens.length) ? logprobs : null;
}

function countsOf({ promptIds, usage }: Gathered, { tokens }: GatheredChoice) {
  const { prompt_tokens, completion_tokens } = usage;
  return {
    prompt: typeof prompt_tokens === "number" ? prompt_tokens : promptIds.length,
    completion: tokens.length > 0 || typeof completion_tokens !== "number" ? tokens.length : completion_tokens,
  };
}
