/** Figures of a served model: totals, rates, and how long requests took. */
import type { Constrained, Speculated } from "../../engine/contract/backend.ts";
import { Histogram } from "../../leaves/http/prometheus.ts";
import { Counter } from "../tinker/activity.ts";

export class ServingFigures {
  readonly startedAt = Date.now();
  readonly sampledTokens = new Counter();
  /** Tokens among these that were drawn under a mask. */
  readonly maskedTokens = new Counter();
  /** Replies whose constraint was given up. */
  readonly relaxed = new Counter();
  /** Steps with guessed tokens, the tokens guessed in them, and those that were drawn. */
  readonly drafts = new Counter();
  readonly draftTokens = new Counter();
  readonly acceptedTokens = new Counter();
  readonly promptTokens = new Counter();
  readonly requests = new Counter();
  readonly batches = new Counter();
  readonly sequences = new Counter();
  /** Requests that ended without a reply, by reason: `cancelled`, `failed`, `refused`. */
  readonly failures = new Map<string, number>();
  /** Seconds from the request to its first token, and to its end. */
  readonly firstTokenSeconds = new Histogram();
  readonly requestSeconds = new Histogram();

  noteConstrained({ masked_tokens, is_relaxed }: Constrained): void {
    this.maskedTokens.add(masked_tokens);
    if (is_relaxed) this.relaxed.add(1);
  }

  noteSpeculated({ num_drafts, num_draft_tokens, num_accepted_tokens }: Speculated): void {
    this.drafts.add(num_drafts);
    this.draftTokens.add(num_draft_tokens);
    this.acceptedTokens.add(num_accepted_tokens);
  }

  /** Tokens are counted when they are drawn, because a batch that others join may last. */
  batch({ batches, sequences }: { batches: number; sequences: number }): void {
    this.batches.add(batches);
    this.sequences.add(sequences);
  }

  failed(reason: string): void {
    this.failures.set(reason, (this.failures.get(reason) ?? 0) + 1);
  }
}
