/** Stop strings: texts that end a reply. */
import type { SampledSequence } from "../engine/contract/backend.ts";
import type { Tokenizer } from "../engine/contract/text.ts";
import { isLlamaCall } from "./reply_reader.ts";

export interface Stopped {
  readonly sequence: SampledSequence;
  /** Decoded, up to the stop string and without it. */
  readonly text: string;
}

/**
 * Cuts a sequence after the token that completes the first stop string. The tokens before it come from the same
 * probabilities, so the result equals sampling with that stop.
 */
export function cutAtStop(
  sequence: SampledSequence,
  { stop, tokenizer }: { stop: readonly string[]; tokenizer: Tokenizer },
): Stopped {
  const text = tokenizer.decode(sequence.tokens);
  const at = firstStop(text, stop);
  if (at < 0) return { sequence, text };
  let [low, high] = [1, sequence.tokens.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (firstStop(tokenizer.decode(sequence.tokens.slice(0, middle)), stop) >= 0) high = middle;
    else low = middle + 1;
  }
  const { top_logprobs } = sequence;
  const cut = {
    ...sequence,
    tokens: sequence.tokens.slice(0, low),
    logprobs: sequence.logprobs.slice(0, low),
    ...(top_logprobs && { top_logprobs: top_logprobs.slice(0, low) }),
    finish_reason: "stop" as const,
  };
  return { sequence: cut, text: text.slice(0, at) };
}

/** Returns a test of the last tokens for a stop string, for a sampler that can end early. `undefined` without stop strings. */
export function endsAtStop(
  stop: readonly string[],
  tokenizer: Tokenizer,
): ((tokens: readonly number[]) => boolean) | undefined {
  if (stop.length === 0) return undefined;
  // A token may hold one byte of a four-byte character.
  const reach = 4 * (Math.max(...stop.map((each) => each.length)) + 1);
  return (tokens) => firstStop(tokenizer.decode(tokens.slice(-reach)), stop) >= 0;
}

/**
 * Returns a test whether the tokens are one call in Llama's form, which has no closing mark, for a sampler that can end
 * early.
 */
export function endsAtLlamaCall(tokenizer: Tokenizer): (tokens: readonly number[]) => boolean {
  // The last token is enough to tell most tokens from the end of a call.
  return (tokens) => /[};]\s*$/.test(tokenizer.decode(tokens.slice(-1))) && isLlamaCall(tokenizer.decode(tokens));
}

/** Place of the first stop string in a text, -1 without one. */
export function firstStop(text: string, stop: readonly string[]): number {
  const places = stop.map((each) => text.indexOf(each)).filter((at) => at >= 0);
  return places.length > 0 ? Math.min(...places) : -1;
}
