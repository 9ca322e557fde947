/** How far two policies are apart on the same tokens: perplexities, KL and chi-squared estimates. In float64. */
import type { Metrics } from "../../contract/backend.ts";
import { COUNT_EPSILON } from "../loss/aggregation.ts";
import { clamp } from "../loss/definition.ts";
import type { CorrectionBatch } from "./host.ts";

/** Log-ratios are bounded by it before they are exponentiated. */
export const SAFETY_BOUND = 20;

/** Trainer's minus sampler's log-prob, [T]. */
export function logRatios({
  logprobs,
  rolloutLogprobs,
}: Pick<CorrectionBatch, "logprobs" | "rolloutLogprobs">): Float64Array {
  return Float64Array.from(logprobs, (x, t) => x - rolloutLogprobs[t]!);
}

/** Sums over one row's trained tokens. */
interface RowSums {
  readonly trained: number;
  readonly logprobs: number;
  readonly rollout: number;
  readonly logRatio: number;
}

/**
 * verl's off-policy metrics, without their prefix `rollout_corr/`.
 * @see verl rollout_corr_helper.compute_offpolicy_metrics
 */
export function offPolicyMetrics(batch: CorrectionBatch): Metrics {
  const rows = rowSums(batch);
  const mean = (of: (row: RowSums) => number) => rows.reduce((sum, row) => sum + of(row), 0) / rows.length;
  const training = (row: RowSums) => -row.logprobs / (row.trained + COUNT_EPSILON);
  const rollout = (row: RowSums) => -row.rollout / (row.trained + COUNT_EPSILON);
  const apart = rows.map((row) => training(row) - rollout(row));
  const [kl, k3, chi2] = tokenMeans(batch);
  return {
    training_ppl: mean((row) => Math.exp(training(row))),
    training_log_ppl: mean(training),
    kl,
    k3_kl: k3,
    rollout_ppl: mean((row) => Math.exp(rollout(row))),
    rollout_log_ppl: mean(rollout),
    log_ppl_diff: apart.reduce((sum, x) => sum + x, 0) / apart.length,
    log_ppl_abs_diff: apart.reduce((sum, x) => sum + Math.abs(x), 0) / apart.length,
    log_ppl_diff_max: Math.max(...apart),
    log_ppl_diff_min: Math.min(...apart),
    ppl_ratio: apart.reduce((sum, x) => sum + Math.exp(x), 0) / apart.length,
    chi2_token: chi2 - 1,
    chi2_seq: mean((row) => Math.exp(2 * clamp(row.logRatio, -SAFETY_BOUND, SAFETY_BOUND))) - 1,
  };
}

function rowSums({ offsets, mask, logprobs, rolloutLogprobs }: CorrectionBatch): RowSums[] {
  return Array.from({ length: offsets.length - 1 }, (_, row) => {
    const sums = { trained: 0, logprobs: 0, rollout: 0, logRatio: 0 };
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
      if (mask[t] === 0) continue;
      sums.trained++;
      sums.logprobs += logprobs[t]!;
      sums.rollout += rolloutLogprobs[t]!;
      sums.logRatio += logprobs[t]! - rolloutLogprobs[t]!;
    }
    return sums;
  });
}

/** Means over trained tokens of rollout - training, e^x - x - 1 and e^2x, with x = training - rollout. */
function tokenMeans(batch: CorrectionBatch): [number, number, number] {
  const sums: [number, number, number] = [0, 0, 0];
  let trained = COUNT_EPSILON;
  for (const [t, x] of logRatios(batch).entries()) {
    if (batch.mask[t] === 0) continue;
    trained++;
    sums[0] -= x;
    sums[1] += Math.exp(x) - x - 1;
    sums[2] += Math.exp(2 * clamp(x, -SAFETY_BOUND, SAFETY_BOUND));
  }
  return sums.map((sum) => sum / trained) as [number, number, number];
}

/**
 * How the probabilities of sampler and trainer differ, in debug form.
 * @see verl debug metrics `training/rollout_probs_diff_*`
 */
export function probabilityMetrics(batch: CorrectionBatch): Metrics {
  const pairs: [number, number][] = [];
  for (let t = 0; t < batch.mask.length; t++)
    if (batch.mask[t] !== 0) pairs.push([Math.exp(batch.logprobs[t]!), Math.exp(batch.rolloutLogprobs[t]!)]);
  const apart = pairs.map(([p, q]) => Math.abs(p - q));
  const mean = (values: readonly number[]) => values.reduce((sum, x) => sum + x, 0) / values.length;
  const centre = mean(apart);
  const squares = apart.reduce((sum, x) => sum + (x - centre) ** 2, 0);
  return {
    "training/rollout_probs_diff_valid": 1,
    "training/rollout_probs_diff_max": apart.reduce((most, x) => Math.max(most, x), 0),
    "training/rollout_probs_diff_mean": centre,
    "training/rollout_probs_diff_std": Math.sqrt(squares / (apart.length - 1)),
    "training/rollout_actor_probs_pearson_corr": correlation(pairs),
  };
}

function correlation(pairs: readonly [number, number][]): number {
  const n = pairs.length;
  const [x, y] = [0, 1].map((k) => pairs.reduce((sum, pair) => sum + pair[k]!, 0) / n);
  let [xy, xx, yy] = [0, 0, 0];
  for (const [p, q] of pairs) {
    xy += (p - x!) * (q - y!);
    xx += (p - x!) ** 2;
    yy += (q - y!) ** 2;
  }
  return xy / Math.sqrt(xx * yy);
}
