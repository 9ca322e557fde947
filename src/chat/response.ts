/** Sampled replies, and what every API reports of them. */
import type { Constrained, SamplingParams, TopLogprob } from "../engine/contract/backend.ts";
import type { Tokenizer } from "../engine/contract/text.ts";
import type { PromptOrigin } from "../engine/contract/trace.ts";
import type { AssistantMessage } from "./reply.ts";
import { firstStop } from "./stop.ts";

/** One sampled continuation, as a response needs it. */
export interface Drawn {
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** One per response token. */
  readonly logprobs: readonly number[];
  readonly finish_reason: "stop" | "length";
  readonly model_response: string;
  readonly weight_version?: number;
  /** Sampling parameters of the reply: the request's, and the defaults of the others. */
  readonly sampling_params?: SamplingParams;
  /** The most likely tokens of each draw, best first; with `topLogprobs`. */
  readonly top_logprobs?: readonly (readonly TopLogprob[])[];
  /** Effects of masks on the reply. */
  readonly constrained?: Constrained;
  /** The stop string that ended it, where the engine says so. */
  readonly stop?: string;
  /** Counts of the engine, where its tokens may not be known. */
  readonly counts?: TokenCounts;
  /** Identifies the reply; a recorder takes it as its trace's id. */
  readonly id?: string;
  /** How the prompt's tokens were made. */
  readonly prompt_origin?: PromptOrigin;
  /** `id` of the reply whose prompt and tokens this prompt starts with. */
  readonly parent?: string;
}

/** One sampled reply of a conversation, read as a message. */
export interface DrawnChat extends Drawn {
  readonly message: AssistantMessage;
}

/** Tokens of a request's prompts and replies. */
export interface TokenCounts {
  readonly prompt: number;
  readonly completion: number;
  /** Part of `completion`. */
  readonly reasoning: number;
}

/** Choices of one prompt count it once. */
export function countTokens(drawn: readonly (Drawn & Partial<DrawnChat>)[], tokenizer: Tokenizer): TokenCounts {
  const [only] = drawn;
  if (drawn.length === 1 && only?.counts) return only.counts;
  const sum = (of: (each: Drawn & Partial<DrawnChat>) => number) => drawn.reduce((total, each) => total + of(each), 0);
  return {
    prompt: drawn[0]?.prompt_ids.length ?? 0,
    completion: sum(({ response_ids }) => response_ids.length),
    reasoning: sum((each) => (each.message?.reasoning_content === undefined ? 0 : reasoningTokens(each, tokenizer))),
  };
}

/** Up to the token that ends `</think>`; all where the reply ends before it. */
function reasoningTokens({ response_ids }: Drawn, tokenizer: Tokenizer): number {
  const isClosed = (count: number) => tokenizer.decode(response_ids.slice(0, count)).includes("</think>");
  let [low, high] = [0, response_ids.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isClosed(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The stop string that ended a reply. `undefined` where a token or the length did. */
export function matchedStop(
  { model_response, response_ids, finish_reason, stop: replyStop }: Drawn,
  { stop, tokenizer }: { readonly stop: readonly string[]; readonly tokenizer: Tokenizer },
): string | undefined {
  if (replyStop !== undefined) return replyStop;
  if (finish_reason !== "stop" || stop.length === 0) return undefined;
  const text = tokenizer.decode(response_ids);
  if (firstStop(text, stop) !== model_response.length) return undefined;
  return stop.find((each) => text.startsWith(each, model_response.length));
}
