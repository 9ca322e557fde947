/** A trace in memory: token ids and log-probs as typed arrays, the rest as JSON text, which no caller can change later. */

import type { TraceRecord } from "../../engine/contract/trace.ts";
import { parseJson, stringifyJson } from "../../leaves/json.ts";

/** A trace as the memory store holds it. */
export interface PackedTrace {
  readonly json: string;
  readonly prompt: Uint32Array;
  readonly completion: Uint32Array;
  readonly logprobs: Float32Array | Float64Array | null;
}

/** Packs a trace without a loss: log-probs that float32 does not hold exactly stay in float64. */
export function packTrace({ prompt_token_ids, completion_token_ids, logprobs, ...rest }: TraceRecord): PackedTrace {
  return {
    json: stringifyJson(rest),
    prompt: Uint32Array.from(prompt_token_ids),
    completion: Uint32Array.from(completion_token_ids),
    logprobs: logprobs && packFloats(logprobs),
  };
}

function packFloats(values: readonly number[]): Float32Array | Float64Array {
  const isSingle = values.every((value) => Object.is(Math.fround(value), value));
  return isSingle ? Float32Array.from(values) : Float64Array.from(values);
}

export function unpackTrace({ json, prompt, completion, logprobs }: PackedTrace): TraceRecord {
  return {
    ...(parseJson(json) as Omit<TraceRecord, "prompt_token_ids" | "completion_token_ids" | "logprobs">),
    prompt_token_ids: Array.from(prompt),
    completion_token_ids: Array.from(completion),
    logprobs: logprobs && Array.from(logprobs),
  };
}

/** Bytes that a packed trace takes; text counts one byte a character. */
export function packedBytes({ json, prompt, completion, logprobs }: PackedTrace): number {
  return json.length + prompt.byteLength + completion.byteLength + (logprobs?.byteLength ?? 0);
}
