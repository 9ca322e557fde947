/** Parts that one call of the sampler shares, and the weights of its rows. */
import type { KeptRows } from "./kept_rows.ts";
import type { KeyValueCache } from "./key_value_cache.ts";
import { byPolicy, type OfPolicy, weightsOf } from "./mixed_weights.ts";
import type { Sequence } from "./sequence.ts";

export interface GenerationRun {
  /** Policy of requests that name none. */
  readonly policy: OfPolicy;
  readonly cache: KeyValueCache;
  /** Kept rows of its decoding chunks. */
  readonly kept: KeptRows;
}

/** The sequences of one policy after another. */
export function ordered({ policy }: GenerationRun, sequences: readonly Sequence[]): readonly Sequence[] {
  return byPolicy(sequences, ({ request }) => request.policy ?? policy);
}

/** The weights of sequences whose policies lie together. */
export function weightsOfRows({ policy }: GenerationRun, sequences: readonly Sequence[]) {
  return weightsOf(sequences.map(({ request }) => ({ policy: request.policy ?? policy, rows: 1 })));
}
