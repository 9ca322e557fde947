/** Guesses at the next tokens of a sequence from what followed its last tokens earlier: prompt lookup, vLLM's method `ngram`. */
import { ConfigError } from "../../../leaves/errors.ts";

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
export interface NgramOptions {
  readonly most: number;
  readonly longest: number;
  readonly shortest: number;
}

/** vLLM's default for both lengths. */
const LOOKUP_TOKENS = 5;

/** @throws ConfigError for a number below 1, and where no length lies between the shortest and the longest */
export function lookupOf(options: SpeculativeOptions): NgramOptions {
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

/** Above every token id, so that a node and a token make one exact number. */
const TOKENS = 2 ** 22;

/**
 * The n-grams of a sequence that grows, of up to `longest` tokens, as a trie that knows where each ends first. A token costs `longest`
 * steps and at most as many nodes, however long the sequence is.
 */
export class NgramIndex {
  private readonly lookup: NgramOptions;
  private readonly tokens: number[] = [];
  /** Children by node and token. Node 0 is the empty n-gram. */
  private readonly children = new Map<number, number>();
  /** The first token after the first occurrence of each node. */
  private readonly after: number[] = [0];
  /** The nodes of the last tokens, by how many they are. */
  private readonly last: number[] = [0];
  /** The longest of these that occurred before. */
  private found = { length: 0, after: 0 };

  constructor(lookup: NgramOptions) {
    this.lookup = lookup;
  }

  /** Tokens so far. */
  get length(): number {
    return this.tokens.length;
  }

  add(token: number): void {
    const count = this.tokens.push(token);
    this.found = { length: 0, after: 0 };
    // The longest first: each builds on the shorter one that ends a token earlier.
    for (let n = Math.min(this.lookup.longest, count); n >= 1; n--) {
      const key = this.last[n - 1]! * TOKENS + token;
      const child = this.children.get(key);
      if (child === undefined) this.children.set(key, this.after.push(count) - 1);
      else if (this.found.length === 0) this.found = { length: n, after: this.after[child]! };
      this.last[n] = child ?? this.after.length - 1;
    }
  }

  /**
   * The tokens after the earliest of the longest earlier occurrences of the last `shortest` to `longest` tokens: none where these
   * did not occur. The earliest, because a sequence that repeats itself has more tokens after it.
   */
  guess(most: number = this.lookup.most): number[] {
    const { length, after } = this.found;
    return length < this.lookup.shortest ? [] : this.tokens.slice(after, after + most);
  }
}
