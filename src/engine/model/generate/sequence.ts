/** Requests to sample, checked, and the sequences that are drawn for them. */

import { ConfigError } from "../../../leaves/errors.ts";
import type {
  ConstraintState,
  SampledSequence,
  SampleRequest,
  Speculated,
  TopLogprob,
} from "../../contract/backend.ts";
import type { BatchOptions } from "../../contract/engine.ts";
import type { Transformer } from "../transformer.ts";
import type { OfPolicy } from "./mixed_weights.ts";

/** A request in a batch of several policies. */
export interface DrawRequest extends SampleRequest {
  /** Default: the batch's. */
  readonly policy?: OfPolicy | undefined;
}

/** A prompt that sequences run with. */
export interface Prompt {
  readonly key: string;
  readonly ids: readonly number[];
  readonly policy: OfPolicy | undefined;
  /** The pages of the cache that it fills alone. */
  readonly pages: readonly number[];
  /** The sequences that run with it, the earliest first. */
  readonly members: Set<Sequence>;
  /** Tokens whose keys and values the cache has. */
  computed: number;
  /** Output of the last layer for its last token, [C], for sequences that start later. */
  hidden?: Float32Array;
}

/** A sequence that holds pages of the cache. */
export interface Sequence {
  /** Index of the request. */
  readonly index: number;
  readonly request: DrawRequest;
  readonly prompt: Prompt;
  /** The pages of its positions, in order: first those of the prompt. */
  readonly pages: readonly number[];
  /** Most tokens to draw. */
  readonly limit: number;
  readonly tokens: number[];
  readonly logprobs: number[];
  /** Alternatives of each token, with `top_logprobs`. */
  readonly top: (readonly TopLogprob[])[];
  constraint?: ConstraintState | undefined;
  /** Whether the constraint limits the next token. */
  isMasked: boolean;
  /** Tokens that were drawn under a mask. */
  masked: number;
  /** Guesses so far, once any were looked for. */
  speculated?: Speculated;
  /** Complete, for any reason. */
  stopped: boolean;
  /** Complete by a stop token or the request's own rule. */
  ended: boolean;
  /** Error that the request's own code threw: the sequence is complete with it. */
  failure?: { readonly error: unknown };
}

/** Most tokens that a request draws: what it asks for, within the context. */
export function tokenLimit({ prompt_ids, params }: SampleRequest, contextLength: number): number {
  return Math.min(params.max_tokens, contextLength - prompt_ids.length);
}

/** @param at.own the pages after those of the prompt. */
export function startSequence(
  { index, request, limit }: Pick<Sequence, "index" | "request" | "limit">,
  { prompt, ownPages }: { prompt: Prompt; ownPages: readonly number[] },
): Sequence {
  const pages = [...prompt.pages, ...ownPages];
  const drawn = { tokens: [], logprobs: [], top: [], isMasked: false, masked: 0, stopped: false, ended: false };
  const sequence: Sequence = { index, request, prompt, pages, limit, ...drawn };
  runForSequence(sequence, () => {
    sequence.constraint = request.allowed?.start();
    noteMask(sequence);
  });
  return sequence;
}

function noteMask(sequence: Sequence): void {
  sequence.isMasked = sequence.constraint !== undefined && sequence.constraint.isFree !== true;
}

/** Runs code of the request (`allowed`, `ends`, `onTokens`). What it throws ends this sequence; the batch goes on. */
export function runForSequence(sequence: Sequence, run: () => void): void {
  if (sequence.failure) return;
  try {
    run();
  } catch (error) {
    sequence.failure = { error };
    sequence.stopped = true;
  }
}

/** Ends a sequence whose request is aborted, also before its prompt is complete. */
export function noteAbort(sequence: Sequence): void {
  if (sequence.stopped || !sequence.request.signal?.aborted) return;
  sequence.stopped = true;
  sequence.ended = true;
}

/** Appends a drawn token, and notes whether the sequence is complete. */
export function addToken(sequence: Sequence, token: number, logprob: number): void {
  const { request, tokens, logprobs, limit, constraint } = sequence;
  runForSequence(sequence, () => {
    if (sequence.isMasked) sequence.masked++;
    constraint?.advance(token);
    noteMask(sequence);
    tokens.push(token);
    logprobs.push(logprob);
    sequence.ended = request.params.stop_token_ids.includes(token) || request.ends?.(tokens) === true;
    sequence.stopped = sequence.ended || tokens.length >= limit;
  });
}

/** Reports a complete sequence. @throws what the request's own code threw, where no `onFail` takes it */
export function settle(
  sequence: Sequence,
  { weightVersion, onEnd, onFail }: { weightVersion: number } & Pick<BatchOptions, "onEnd" | "onFail">,
): SampledSequence {
  const result = sampled(sequence, weightVersion);
  const { failure, index } = sequence;
  if (!failure) onEnd?.(result, index);
  else if (onFail) onFail(failure.error, index);
  else throw failure.error;
  return result;
}

export function sampled(sequence: Sequence, weight_version: number): SampledSequence {
  const { request, tokens, logprobs, top, ended } = sequence;
  const alternatives = request.top_logprobs ? { top_logprobs: top } : {};
  const guessed = sequence.speculated && { speculated: sequence.speculated };
  const drawn = { tokens, logprobs, ...alternatives, ...constrainedOf(sequence), ...guessed };
  return { ...drawn, finish_reason: ended ? "stop" : "length", weight_version };
}

function constrainedOf({ masked, constraint }: Sequence): Pick<SampledSequence, "constrained"> {
  const isRelaxed = constraint?.isRelaxed === true;
  if (masked === 0 && !isRelaxed) return {};
  return { constrained: { masked_tokens: masked, ...(isRelaxed && { is_relaxed: true }) } };
}

/** Tells the request's listener of the tokens from `first` on. */
export function reportTokens(sequence: Sequence, first: number): void {
  const { request, tokens, logprobs, top } = sequence;
  if (tokens.length === first) return;
  const alternatives = request.top_logprobs ? [top.slice(first)] : [];
  runForSequence(sequence, () => request.onTokens?.(tokens.slice(first), logprobs.slice(first), ...alternatives));
}

/** @throws ConfigError for a request that breaks a rule, naming its index. */
export function checkRequest(model: Transformer, { prompt_ids, params }: SampleRequest, index: number): void {
  const fail = (rule: string) => new ConfigError(`Cannot sample: ${rule}.`, { path: `requests[${index}]` });
  const { vocabSize } = model.config;
  if (prompt_ids.length === 0) throw fail("the prompt is empty. Give at least one token (the model's bos)");
  const outside = prompt_ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  if (outside !== undefined) throw fail(`token ids must lie in [0, ${vocabSize}) (${outside})`);
  if (prompt_ids.length >= model.contextLength)
    throw fail(`the prompt must leave room in the context of ${model.contextText} (${prompt_ids.length})`);
  const { temperature, top_p, max_tokens } = params;
  if (!(temperature >= 0) || !Number.isFinite(temperature))
    throw fail(`temperature must be at least 0 (${temperature})`);
  if (!(top_p > 0 && top_p <= 1)) throw fail(`top_p must lie in (0, 1] (${top_p})`);
  if (!(Number.isInteger(max_tokens) && max_tokens >= 1))
    throw fail(`max_tokens must be a whole number above 0 (${max_tokens})`);
}
