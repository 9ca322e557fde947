/** The metrics of a training pass, under the names of rLLM and of Tinker's cookbook. */
import type { LossResult } from "../../../engine/algorithm/mod.ts";
import type { Metrics, TrainBatch } from "../../../engine/contract/backend.ts";

/**
 * The metrics of the loss; those of the service as `train/<name>/<reduction>`; and `optim/kl_sample_train_v1` (mean of
 * q - p), `_v2` (half the mean square) and `optim/entropy` (mean of -q) over trained tokens, where q are the sampler's
 * log-probs and p the trainer's.
 * @see tinker-cookbook compute_kl_sample_train
 */
export function trainingMetrics(
  batch: TrainBatch,
  of: { loss: LossResult; logprobs: Float32Array; metrics: Metrics },
): Metrics {
  const theirs = Object.entries(of.metrics).map(([name, value]) => [`train/${name.replace(":", "/")}`, value]);
  return {
    "actor/loss": of.loss.loss,
    // Replaced by the loss's own value if it has further terms.
    "actor/pg_loss": of.loss.loss,
    ...of.loss.metrics,
    ...Object.fromEntries(theirs),
    ...samplingMetrics(batch, of.logprobs),
  };
}

function samplingMetrics({ mask, rolloutLogprobs: q }: TrainBatch, p: Float32Array): Metrics {
  if (!q) return {};
  let [count, difference, square, entropy] = [0, 0, 0, 0];
  for (let t = 0; t < mask.length; t++) {
    if (mask[t] !== 1) continue;
    const apart = q[t]! - p[t]!;
    count++;
    difference += apart;
    square += apart ** 2;
    entropy -= q[t]!;
  }
  return {
    "optim/kl_sample_train_v1": difference / count,
    "optim/kl_sample_train_v2": square / count / 2,
    "optim/entropy": entropy / count,
  };
}
