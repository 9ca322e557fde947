/** The loss on held-out rows. */
import type { Backend, Metrics } from "../../../engine/contract/backend.ts";
import { supervisedBatch } from "./batch.ts";
import type { EncodedRow } from "./encode.ts";

/** Held-out metrics that may choose the best checkpoint. */
export const HELD_OUT_METRICS: readonly string[] = ["val/loss", "val/perplexity", "val/mean_token_accuracy"];

/** Rows scored in one call; the backend cuts a call into passes that fit its memory. */
const ROWS = 64;

/**
 * `val/loss`, the weighted mean of the cross-entropies of all trained tokens of all rows; `val/perplexity`, its exponential;
 * and, where the backend tells, `val/mean_token_accuracy`, the share of these tokens that greedy decoding would draw (TRL's
 * name). Sums are kept in float64.
 */
export async function heldOutLoss(
  rows: readonly EncodedRow[],
  { backend, signal }: { readonly backend: Backend; readonly signal: AbortSignal },
): Promise<Metrics> {
  let [loss, weight, tokens, hits] = [0, 0, 0, 0];
  for (let from = 0; from < rows.length; from += ROWS) {
    signal.throwIfAborted();
    const batch = supervisedBatch(rows.slice(from, from + ROWS));
    const options = { policy: "current", temperature: 1, mask: batch.mask, greedy: true } as const;
    const { logprobs, greedy } = await backend.logprobs(batch, options);
    batch.weights.forEach((each, t) => {
      if (each === 0) return;
      loss -= each * logprobs[t]!;
      weight += each;
      tokens++;
      // NaN where nothing tells.
      hits += greedy?.[t] ?? Number.NaN;
    });
  }
  return {
    "val/loss": loss / weight,
    "val/perplexity": Math.exp(loss / weight),
    ...(Number.isFinite(hits) && { "val/mean_token_accuracy": hits / tokens }),
  };
}
