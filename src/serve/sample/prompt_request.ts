/** What clients may ask of a model that samples, and what the model is asked then. */
import type { SampleRequest } from "../../contract/backend.ts";
import type { Engine } from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";
import { STREAM_SEEDS } from "../../random.ts";

/** A request to sample, in the server's own terms. */
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
  /** Only the last so many prompt tokens are told of. */
  readonly promptLogprobsLastN?: number | undefined;
}

/** Samples of one request at most. */
export const MOST_SAMPLES = 1024;
const MOST_TOPK = 1024;
/** Stop texts, or stop tokens, of one request. Each text is looked for after each token. */
export const STOP_LIMITS = { count: 256, characters: 16_384 };
/** Lower ones divide log-probs until they overflow; 0 takes the likeliest token. */
const LEAST_TEMPERATURE = 1e-4;
const MOST_TEMPERATURE = 1e4;

/** What an order asks of the model. @throws ConfigError for one that breaks a rule. */
export function requestsOf(order: PromptRequest, engine: Engine): SampleRequest[] {
  checkOrder(order, engine);
  const { contextLength, eosTokenIds } = engine;
  const room = contextLength - order.prompt.length;
  const params = {
    max_tokens: Math.min(order.maxTokens ?? room, room),
    temperature: order.temperature,
    top_p: order.topP,
    top_k: order.topK,
    stop_token_ids: order.stopTokens ?? eosTokenIds,
  };
  const seed = order.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
  const ends = endsAt(order.stopTexts, engine);
  return Array.from({ length: order.count }, (_, i) => ({
    prompt_ids: order.prompt,
    params,
    seed: STREAM_SEEDS.servedSample(seed!, i),
    ends,
  }));
}

/** True of tokens whose text has come to one of the stop texts with its last token. */
function endsAt(stops: readonly string[], engine: Engine): SampleRequest["ends"] {
  const decode = engine.decode?.bind(engine);
  if (stops.length === 0) return undefined;
  if (!decode)
    throw new ConfigError("Cannot stop at a text as the model has no tokenizer: give stop as token ids.");
  // Every token but a special one is a byte or more of text.
  const tail = Math.max(...stops.map((stop) => new TextEncoder().encode(stop).length)) + 4;
  return (tokens) => {
    const text = decode(tokens.slice(-tail));
    return stops.some((stop) => text.includes(stop));
  };
}

function checkOrder(order: PromptRequest, { contextLength, vocabSize }: Engine): void {
  const {
    prompt,
    count,
    maxTokens,
    temperature,
    topP,
    topkPromptLogprobs: topk,
    promptLogprobsLastN: lastN,
  } = order;
  const outside = prompt.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  const rules: readonly (readonly [boolean, string])[] = [
    [prompt.length > 0, "the prompt must hold a token at least"],
    [outside === undefined, `token ids must lie in [0, ${vocabSize}): ${outside}`],
    [
      prompt.length < contextLength,
      `the prompt must leave room in the context of ${contextLength} tokens: ${prompt.length}`,
    ],
    [isCount(count) && count <= MOST_SAMPLES, `num_samples must lie in [1, ${MOST_SAMPLES}]: ${count}`],
    [
      maxTokens === undefined || isCount(maxTokens),
      `max_tokens must be a whole number above 0: ${maxTokens}`,
    ],
    [
      temperature === 0 || (temperature >= LEAST_TEMPERATURE && temperature <= MOST_TEMPERATURE),
      `temperature must be 0 (the likeliest token) or lie in [${LEAST_TEMPERATURE}, ${MOST_TEMPERATURE}]: ${temperature}`,
    ],
    [
      order.stopTexts.length <= STOP_LIMITS.count && (order.stopTokens ?? []).length <= STOP_LIMITS.count,
      `stop must hold at most ${STOP_LIMITS.count} texts or tokens: ${Math.max(order.stopTexts.length, order.stopTokens?.length ?? 0)}`,
    ],
    [
      order.stopTexts.every((text) => text.length > 0),
      "stop must hold no empty text: every sample would end with its first token",
    ],
    [
      order.stopTexts.reduce((sum, { length }) => sum + length, 0) <= STOP_LIMITS.characters,
      `stop must hold at most ${STOP_LIMITS.characters} characters`,
    ],
    [topP > 0 && topP <= 1, `top_p must lie in (0, 1]: ${topP}`],
    [Number.isInteger(order.topK) && order.topK >= -1, `top_k must be -1 or a count: ${order.topK}`],
    [
      topk >= 0 && topk <= Math.min(MOST_TOPK, vocabSize),
      `topk_prompt_logprobs must lie in [0, ${Math.min(MOST_TOPK, vocabSize)}]: ${topk}`,
    ],
    [
      lastN === undefined || (order.promptLogprobs && isCount(lastN) && lastN < prompt.length),
      `prompt_logprobs_last_n must lie in [1, ${prompt.length - 1}] and needs prompt_logprobs: ${lastN}`,
    ],
  ];
  for (const [holds, rule] of rules) if (!holds) throw new ConfigError(`Cannot sample as ${rule}`);
}

function isCount(value: number): boolean {
  return Number.isInteger(value) && value >= 1;
}
