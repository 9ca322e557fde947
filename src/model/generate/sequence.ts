/** Requests to sample, checked, and the sequences that are drawn for them. */
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import type { Transformer } from "../transformer.ts";

/** A sequence that holds a slot of the cache. */
export interface Sequence {
  /** Of the request. */
  readonly index: number;
  readonly request: SampleRequest;
  readonly slot: number;
  /** Most tokens to draw. */
  readonly limit: number;
  readonly tokens: number[];
  readonly logprobs: number[];
  /** Complete, for any reason. */
  stopped: boolean;
  /** Complete by a stop token or the request's own rule. */
  ended: boolean;
}

export function startSequence(
  request: SampleRequest,
  at: { index: number; slot: number; contextLength: number },
): Sequence {
  const limit = Math.min(request.params.max_tokens, at.contextLength - request.prompt_ids.length);
  const { index, slot } = at;
  return { index, request, slot, limit, tokens: [], logprobs: [], stopped: false, ended: false };
}

/** Appends a drawn token, and notes whether the sequence is complete. */
export function addToken(sequence: Sequence, token: number, logprob: number): void {
  const { request, tokens, logprobs, limit } = sequence;
  tokens.push(token);
  logprobs.push(logprob);
  sequence.ended = request.params.stop_token_ids.includes(token) || request.ends?.(tokens) === true;
  sequence.stopped = sequence.ended || tokens.length >= limit;
}

export function sampled({ tokens, logprobs, ended }: Sequence, weight_version: number): SampledSequence {
  return { tokens, logprobs, finish_reason: ended ? "stop" : "length", weight_version };
}

/** Sequences by prompt, in order of first appearance. */
export function groupByPrompt(sequences: readonly Sequence[]): Sequence[][] {
  const groups = new Map<string, Sequence[]>();
  for (const sequence of sequences) {
    const key = sequence.request.prompt_ids.join();
    const group = groups.get(key);
    if (group) group.push(sequence);
    else groups.set(key, [sequence]);
  }
  return [...groups.values()];
}

/** @throws ConfigError for a request that breaks a rule, naming its index. */
export function checkRequest(model: Transformer, { prompt_ids, params }: SampleRequest, index: number): void {
  const fail = (rule: string) => new ConfigError(`Cannot sample: ${rule}.`, { path: `requests[${index}]` });
  const { vocabSize } = model.config;
  if (prompt_ids.length === 0) throw fail("the prompt is empty. Give at least one token (the model's bos)");
  const outside = prompt_ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  if (outside !== undefined) throw fail(`token ids must lie in [0, ${vocabSize}) (${outside})`);
  if (prompt_ids.length >= model.contextLength)
    throw fail(`the prompt must leave room in the context of ${model.context} (${prompt_ids.length})`);
  const { temperature, top_p, max_tokens } = params;
  if (!(temperature >= 0) || !Number.isFinite(temperature))
    throw fail(`temperature must be at least 0 (${temperature})`);
  if (!(top_p > 0 && top_p <= 1)) throw fail(`top_p must lie in (0, 1] (${top_p})`);
  if (!(Number.isInteger(max_tokens) && max_tokens >= 1))
    throw fail(`max_tokens must be a whole number above 0 (${max_tokens})`);
}
