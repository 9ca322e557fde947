/** A client's request to sample: its limits, and the requests to the model that follow from it. */
import type { SampleRequest } from "../../../engine/contract/backend.ts";
import { type Engine, RECORDED_TOP } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { STREAM_SEEDS } from "../../../leaves/random.ts";
import { MOST_PROMPT_CELLS, type PromptTargetTensor } from "./prompt_targets.ts";

/** A request to sample in the server's terms. */
export interface PromptRequest {
  readonly prompt: readonly number[];
  readonly count: number;
  readonly maxTokens?: number | undefined;
  readonly seed?: number | undefined;
  readonly stopTexts: readonly string[];
  /** Absent: the model's end tokens. */
  readonly stopTokens?: readonly number[] | undefined;
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly promptLogprobs: boolean;
  readonly topkPromptLogprobs: number;
  /** Most likely tokens at each sampled token. */
  readonly topkSampleLogprobs: number;
  /** Whether the samples can be trained on with `stable_reinforce`. Default false. */
  readonly recordsStability?: boolean | undefined;
  /** Tokens to draw at each place of the prompt but the first. */
  readonly promptAltTokens: number;
  /** Return log-probs of only the last N prompt tokens. */
  readonly promptLogprobsLastN?: number | undefined;
  /** Further tokens to score at places of the prompt. */
  readonly targetPromptLogprobs?: PromptTargetTensor | undefined;
}

/** The most samples of one request. */
export const MOST_SAMPLES = 1024;
const MOST_TOPK = 1024;
/** Top tokens of all samples of a request, each as long as it may get. */
export const MOST_SAMPLED_TOP = 2 ** 20;
/** Memory per top token of a sample. */
const TOP_BYTES = 64;
/** Stop texts or stop tokens of one request. Every text is searched for after every token. */
export const STOP_LIMITS = { count: 256, characters: 16_384 };
/** Dividing by a lower temperature overflows; 0 means the most likely token. */
export const LEAST_TEMPERATURE = 1e-4;
export const MOST_TEMPERATURE = 1e4;

/** The requests to the model. @throws ConfigError for a value outside its limits. */
export function requestsOf(request: PromptRequest, engine: Engine): SampleRequest[] {
  checkRequest(request, engine);
  const params = {
    max_tokens: mostTokens(request, engine),
    temperature: request.temperature,
    top_p: request.topP,
    top_k: request.topK,
    stop_token_ids: request.stopTokens ?? engine.eosTokenIds,
  };
  const seed = requestSeed(request);
  const top = topOf(request);
  const ends = endsAt(request.stopTexts, engine);
  return Array.from({ length: request.count }, (_, i) => ({
    prompt_ids: request.prompt,
    params,
    seed: STREAM_SEEDS.servedSample(seed, i),
    ends,
    ...(top > 0 && { top_logprobs: top }),
  }));
}

/** The client's seed, or another one for each request. */
export function requestSeed({ seed }: PromptRequest): number {
  return seed ?? crypto.getRandomValues(new Uint32Array(1))[0]!;
}

/** Most tokens of each sample. */
function mostTokens({ prompt, maxTokens }: PromptRequest, { contextLength }: Pick<Engine, "contextLength">): number {
  const room = contextLength - prompt.length;
  return Math.min(maxTokens ?? room, room);
}

/** Memory that the top tokens of a request's samples take, bytes; at most that of the most that a request may have. */
export function sampledTopBytes(request: PromptRequest, engine: Pick<Engine, "contextLength">): number {
  return TOP_BYTES * Math.max(0, Math.min(sampledTop(request, engine), MOST_SAMPLED_TOP));
}

function sampledTop(request: PromptRequest, engine: Pick<Engine, "contextLength">): number {
  return request.count * mostTokens(request, engine) * topOf(request);
}

/** Most likely tokens that are selected at each sampled one: for the client, or to be recorded. */
function topOf({ topkSampleLogprobs, recordsStability, temperature }: PromptRequest): number {
  // Greedy samples have one token each.
  return Math.max(topkSampleLogprobs, recordsStability && temperature > 0 ? RECORDED_TOP : 0);
}

/** Whether the text of the tokens holds a stop text at its end. */
function endsAt(stops: readonly string[], engine: Engine): SampleRequest["ends"] {
  const decode = engine.decode?.bind(engine);
  if (stops.length === 0) return undefined;
  if (!decode) throw new ConfigError("Cannot stop at a text: the model has no tokenizer. Give stop as token ids.");
  // A token other than a special one is at least one byte of text.
  const tail = Math.max(...stops.map((stop) => new TextEncoder().encode(stop).length)) + 4;
  return (tokens) => {
    const text = decode(tokens.slice(-tail));
    return stops.some((stop) => text.includes(stop));
  };
}

function checkRequest(request: PromptRequest, engine: Engine): void {
  const { contextLength, vocabSize } = engine;
  const { prompt, count, maxTokens, temperature, topP, topkPromptLogprobs: topk, promptLogprobsLastN: lastN } = request;
  const outside = prompt.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  const rules: readonly (readonly [boolean, string])[] = [
    [prompt.length > 0, "the prompt must have at least one token"],
    [outside === undefined, `token ids must lie in [0, ${vocabSize}) (${outside})`],
    [
      prompt.length < contextLength,
      `the prompt must leave room in the context of ${contextLength} tokens (${prompt.length}); shorten it`,
    ],
    [isCount(count) && count <= MOST_SAMPLES, `num_samples must lie in [1, ${MOST_SAMPLES}] (${count})`],
    [maxTokens === undefined || isCount(maxTokens), `max_tokens must be a whole number above 0 (${maxTokens})`],
    [
      temperature === 0 || (temperature >= LEAST_TEMPERATURE && temperature <= MOST_TEMPERATURE),
      `temperature must be 0 or lie in [${LEAST_TEMPERATURE}, ${MOST_TEMPERATURE}] (${temperature})`,
    ],
    [
      request.stopTexts.length <= STOP_LIMITS.count && (request.stopTokens ?? []).length <= STOP_LIMITS.count,
      `stop must have at most ${STOP_LIMITS.count} texts or tokens (${Math.max(request.stopTexts.length, request.stopTokens?.length ?? 0)})`,
    ],
    [
      request.stopTexts.every((text) => text.length > 0),
      "stop must not have an empty text, which would end every sample at its first token",
    ],
    [
      request.stopTexts.reduce((sum, { length }) => sum + length, 0) <= STOP_LIMITS.characters,
      `stop must have at most ${STOP_LIMITS.characters} characters`,
    ],
    [topP > 0 && topP <= 1, `top_p must lie in (0, 1] (${topP})`],
    [Number.isInteger(request.topK) && request.topK >= -1, `top_k must be -1 or a count (${request.topK})`],
    [
      topk >= 0 && topk <= Math.min(MOST_TOPK, vocabSize),
      `topk_prompt_logprobs must lie in [0, ${Math.min(MOST_TOPK, vocabSize)}] (${topk})`,
    ],
    [
      request.topkSampleLogprobs <= Math.min(MOST_TOPK, vocabSize),
      `topk_sample_logprobs must lie in [0, ${Math.min(MOST_TOPK, vocabSize)}] (${request.topkSampleLogprobs})`,
    ],
    [
      request.promptAltTokens <= MOST_TOPK && request.promptAltTokens * prompt.length <= MOST_PROMPT_CELLS,
      `prompt_alt_tokens_k must lie in [0, ${MOST_TOPK}], and draw at most ${MOST_PROMPT_CELLS} tokens in all (${request.promptAltTokens} for each of ${prompt.length})`,
    ],
    [
      sampledTop(request, engine) <= MOST_SAMPLED_TOP,
      `topk_sample_logprobs of all samples may report ${MOST_SAMPLED_TOP} tokens, and num_samples and max_tokens make them ${sampledTop(request, engine)}; lower one of the three${request.recordsStability ? ` (record_stability_info needs ${RECORDED_TOP} at each token)` : ""}`,
    ],
    [
      !request.recordsStability || temperature === 0 || (topP === 1 && request.topK <= 0),
      `record_stability_info needs top_p 1 and top_k -1, because the distribution of the recorded tokens must be the one that they are drawn from (${topP} and ${request.topK})`,
    ],
    [
      lastN === undefined || (request.promptLogprobs && isCount(lastN) && lastN < prompt.length),
      `prompt_logprobs_last_n must lie in [1, ${prompt.length - 1}] and needs prompt_logprobs (${lastN})`,
    ],
  ];
  for (const [holds, rule] of rules) if (!holds) throw new ConfigError(`Cannot sample: ${rule}.`);
}

function isCount(value: number): boolean {
  return Number.isInteger(value) && value >= 1;
}
