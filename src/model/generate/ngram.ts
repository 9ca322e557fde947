/** Guesses at the next tokens of a sequence from what followed its last tokens earlier: prompt lookup, vLLM's method `ngram`. */
import { ConfigError } from "../../errors.ts";

export interface SpeculativeOptions {
  readonly method: "ngram";
  /** Most tokens that are guessed for a sequence and a step. */
  readonly numSpeculativeTokens: number;
  /** Most last tokens that are looked up. Default: `promptLookupMin`, or 5. */
  readonly promptLookupMax?: number | undefined;
  /** Fewest last tokens that must have occurred before. Default: `promptLookupMax`, or 5. */
  readonly promptLookupMin?: number | undefined;
}

/** Lengths of the n-grams that are looked up, and of a guess. */
export interface Lookup {
  readonly most: number;
  readonly longest: number;
  readonly shortest: number;
}

/** vLLM's default for both lengths. */
const LOOKUP_TOKENS = 5;

/** @throws ConfigError for a number below 1, and where no length lies between the shortest and the longest */
export function lookupOf(options: SpeculativeOptions): Lookup {
  const { numSpeculativeTokens: most, promptLookupMax, promptLookupMin } = options;
  const longest = promptLookupMax ?? promptLookupMin ?? LOOKUP_TOKENS;
  const shortest = promptLookupMin ?? promptLookupMax ?? LOOKUP_TOKENS;
  for (const [name, value] of Object.entries({
    num_speculative_tokens: most,
    prompt_lookup_max: longest,
    prompt_lookup_min: shortest,
  }))
    if (!(Number.isInteger(value) && value >= 1))
      throw new ConfigError(
        `Cannot speculate: ${name} must be a whole number above 0 (${value}). Set it in rollout.speculative_config.`,
      );
  if (shortest > longest)
    throw new ConfigError(
      `Cannot speculate: prompt_lookup_min is above prompt_lookup_max (${shortest} > ${longest}). Lower it in rollout.speculative_config.`,
    );
  return { most, longest, shortest };
}

/**
 * The tokens after the earliest of the longest earlier occurrences of the last `shortest` to `longest` tokens: none where these
 * did not occur. The earliest, because a sequence that repeats itself has more tokens after it.
 */
export function ngramGuess(tokens: readonly number[], { most, longest, shortest }: Lookup): number[] {
  const last = tokens.length - 1;
  let [length, after] = [0, 0];
  for (let at = 0; at < last && length < longest; at++) {
    let n = 0;
    while (n < longest && n <= at && tokens[at - n] === tokens[last - n]) n++;
    if (n > length) [length, after] = [n, at + 1];
  }
  return length < shortest ? [] : tokens.slice(after, after + most);
}
