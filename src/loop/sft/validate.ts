/** The loss on held-out rows. */
import type { Backend, Metrics } from "../../contract/backend.ts";
import { supervisedBatch } from "./batch.ts";
import type { EncodedRow } from "./encode.ts";

/** Rows scored in one call; the backend cuts a call into passes that fit its memory. */
const ROWS = 64;

/**
 * `val/loss`, the weighted mean of the cross-entropies of all trained tokens of all rows, and `val/perplexity`, its
 * exponential. Sums are kept in float64, so the result does not depend on how rows are grouped.
 */
export async function heldOutLoss(
  rows: readonly EncodedRow[],
  { backend, signal }: { readonly backend: Backend; readonly signal: AbortSignal },
): Promise<Metrics> {
  let [loss, weight] = [0, 0];
  for (let from = 0; from < rows.length; from += ROWS) {
    signal.throwIfAborted();
    const batch = supervisedBatch(rows.slice(from, from + ROWS));
    const { logprobs } = await backend.logprobs(batch, { policy: "current", temperature: 1, mask: batch.mask });
    batch.weights.forEach((each, t) => {
      if (each === 0) return;
      loss -= each * logprobs[t]!;
      weight += each;
    });
  }
  return { "val/loss": loss / weight, "val/perplexity": Math.exp(loss / weight) };
}
