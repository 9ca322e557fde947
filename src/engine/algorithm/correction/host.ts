/** Rollout correction: the sampler's policy is not the trainer's, so tokens are reweighted or rejected. In float64. */

import { sum } from "../../../leaves/statistics.ts";
import type { Metrics } from "../../contract/backend.ts";
import { clamp } from "../loss/token.ts";
import { COUNT_EPSILON } from "../rows.ts";
import { type CorrectionConfig, type CorrectionPlan, planCorrection, type Rejection } from "./config.ts";
import { judge } from "./judge.ts";
import { maskedMetrics, offPolicyMetrics, rejectionMetrics, weightMetrics } from "./metrics.ts";
import { type CorrectionBatch, CorrectionRows, SAFETY_BOUND } from "./rows.ts";

/** Importance weights, mask and metrics of a rollout correction. */
export interface Correction {
  /** Importance weights [T], 0 where the given mask is 0; absent without `rollout_is`. */
  readonly weights?: Float64Array | undefined;
  /** The mask [T] without rejected tokens. */
  readonly mask: Uint32Array;
  /** `rollout_corr/*`. */
  readonly metrics: Metrics;
}

const PREFIX = "rollout_corr/";

/**
 * Importance weights, rejection mask and metrics between two policies' log-probs.
 * @throws {ConfigError} for a level, option or threshold that is not known
 * @see verl rollout_corr_helper.compute_rollout_correction_and_rejection_mask
 */
export function rolloutCorrection(batch: CorrectionBatch, config: CorrectionConfig): Correction {
  const plan = planCorrection(config);
  const rows = new CorrectionRows(batch);
  const weighted = plan.level && importanceWeights(rows, plan);
  const rejected = reject(rows, plan.rejections);
  const metrics = { ...weighted?.metrics, ...rejected.metrics, ...offPolicyMetrics(batch) };
  const named = Object.entries(metrics).map(([key, value]) => [PREFIX + key, value]);
  return { weights: weighted?.weights, mask: rejected.mask, metrics: Object.fromEntries(named) };
}

/** w = min(e^x, high), or e^x inside [low, high] and 0 outside (IcePop), with x the log-ratio of the token or its row. */
function importanceWeights(rows: CorrectionRows, plan: CorrectionPlan): { weights: Float64Array; metrics: Metrics } {
  const { low, high, icepop } = plan.bounds;
  const sums = rows.rowSums((t) => rows.logRatio[t]!);
  const logs = plan.level === "sequence" ? rows.spread(sums) : rows.logRatio;
  const raw = logs.map((x, t) => (rows.mask[t] === 0 ? 0 : Math.exp(clamp(x, -SAFETY_BOUND, SAFETY_BOUND))));
  const weights = raw.map((w) => (icepop ? (w >= low && w <= high ? w : 0) : Math.min(w, high)));
  const metrics = weightMetrics(rows, plan, { raw, weights, sums });
  if (!plan.batchNormalize) return { weights, metrics };
  const mean = meanWeight(rows, plan, weights);
  const factor = mean > 1e-8 ? mean : 1;
  metrics.rollout_is_batch_norm_factor = factor;
  return { weights: weights.map((w) => w / factor), metrics };
}

/** Mean weight: of tokens, or of the rows that have any. */
function meanWeight(rows: CorrectionRows, plan: CorrectionPlan, weights: Float64Array): number {
  if (plan.level === "token") return rows.mean((t) => weights[t]!);
  const means = rows.rowMeans((t) => weights[t]!);
  return sum(rows.filled.map((row) => means[row]!)) / Math.max(rows.filled.length, COUNT_EPSILON);
}

/** The mask without the tokens that any rejection drops, and the metrics of each. */
function reject(rows: CorrectionRows, rejections: readonly Rejection[]): { mask: Uint32Array; metrics: Metrics } {
  const mask = rows.mask.slice();
  const metrics: Metrics = {};
  for (const rejection of rejections) {
    const judgement = judge(rows, rejection);
    Object.assign(metrics, rejectionMetrics(rows, rejection, judgement));
    for (const [t, isKept] of judgement.kept.entries()) if (!isKept) mask[t] = 0;
  }
  if (rejections.length > 0) Object.assign(metrics, maskedMetrics(rows, mask));
  return { mask, metrics };
}
