/** How many guessed tokens were right. */
import type { Metrics, Speculated } from "../../engine/contract/backend.ts";

/**
 * Returns acceptance rates under verl's names, and as verl averages them: a mean over sequences, in which one without a
 * guess counts as 0. `rollout/spec_accept_rate` is the share of guesses that were drawn, `rollout/spec_accept_length`
 * the tokens of a step with guesses.
 */
export function acceptance(sequences: readonly Speculated[] = []): Metrics {
  if (sequences.length === 0) return {};
  const mean = (of: (sequence: Speculated) => number) =>
    sequences.reduce((sum, sequence) => sum + of(sequence), 0) / sequences.length;
  return {
    "rollout/spec_accept_rate": mean(({ num_draft_tokens: drafted, num_accepted_tokens: accepted }) =>
      drafted > 0 ? accepted / drafted : 0,
    ),
    "rollout/spec_accept_length": mean(({ num_drafts: drafts, num_accepted_tokens: accepted }) =>
      drafts > 0 ? 1 + accepted / drafts : 0,
    ),
  };
}
