/** Metrics of the rollout correction: how far two policies are apart on the same tokens, and what was done about it. */

import { largest, sampleDeviation, smallest, sum } from "../../../leaves/statistics.ts";
import type { Metrics } from "../../contract/backend.ts";
import { mapRows, trainedIn } from "../../packing/offsets.ts";
import { clamp } from "../loss/token.ts";
import { COUNT_EPSILON } from "../rows.ts";
import type { CorrectionPlan, Rejection } from "./config.ts";
import type { RejectionResult } from "./judge.ts";
import { type CorrectionBatch, type CorrectionRows, logRatios, SAFETY_BOUND } from "./rows.ts";

export interface CorrectionWeights {
  /** Before truncation, [T]. */
  readonly raw: Float64Array;
  readonly weights: Float64Array;
  /** Log-ratio of each row, [N]. */
  readonly sums: readonly number[];
}

/** `rollout_is_*`: the weights of tokens, and by row. */
export function weightMetrics(rows: CorrectionRows, { level, bounds }: CorrectionPlan, of: CorrectionWeights): Metrics {
  const { low, high, icepop } = bounds;
  const { raw, weights, sums } = of;
  const bounded = (t: number) => clamp(weights[t]!, 0, high);
  const mean = rows.mean(bounded);
  const rawMeans = rows.rowMeans((t) => raw[t]!);
  return {
    rollout_is_mean: rows.mean((t) => weights[t]!),
    ...(level === "sequence" ? sequenceRange(sums, bounds) : tokenRange(rows, bounds, of)),
    rollout_is_std: rows.deviation(bounded),
    rollout_is_eff_sample_size: 1 / rows.mean((t) => (bounded(t) / (mean + COUNT_EPSILON)) ** 2),
    ...prefixed("rollout_is_seq", {
      ...rowMetrics(
        rows.rowMeans((t) => weights[t]!),
        1,
      ),
      fraction_high: fraction(rawMeans, (x) => x > high),
      fraction_low: fraction(rawMeans, (x) => x < low),
    }),
    ...(icepop && { rollout_is_oob_ratio: rows.share((t) => raw[t]! < low || raw[t]! > high) }),
  };
}

function tokenRange(rows: CorrectionRows, { low, high }: CorrectionPlan["bounds"], of: CorrectionWeights): Metrics {
  const trained = rows.allTrained.map((t) => of.weights[t]!);
  return {
    rollout_is_max: largest(trained),
    rollout_is_min: smallest(trained),
    rollout_is_ratio_fraction_high: rows.share((t) => of.raw[t]! > high),
    rollout_is_ratio_fraction_low: rows.share((t) => of.raw[t]! < low),
  };
}

function sequenceRange(sums: readonly number[], { low, high }: CorrectionPlan["bounds"]): Metrics {
  return {
    rollout_is_max: Math.exp(Math.min(largest(sums), SAFETY_BOUND)),
    rollout_is_min: Math.exp(smallest(sums)),
    rollout_is_ratio_fraction_high: fraction(sums, (x) => x > Math.log(high)),
    rollout_is_ratio_fraction_low: fraction(sums, (x) => x < Math.log(low)),
  };
}

/** `rollout_rs_NAME_*` of one rejection. */
export function rejectionMetrics(rows: CorrectionRows, rejection: Rejection, found: RejectionResult): Metrics {
  return prefixed(`rollout_rs_${rejection.statistic.name}`, {
    ...statisticMetrics(rows, rejection, found.statistic),
    ...shares(rows, (t) => found.kept[t]!),
    ...(rejection.statistic.reduction && { seq_masked_fraction: shareOfFilled(rows, found.kept) }),
  });
}

/** `rollout_rs_masked_fraction` and `rollout_rs_seq_masked_fraction` of all rejections together. */
export function maskedMetrics(rows: CorrectionRows, mask: Uint32Array): Metrics {
  return prefixed(
    "rollout_rs",
    shares(rows, (t) => mask[t] !== 0),
  );
}

/** Shares of the trained tokens and of the rows that lost one. */
function shares(rows: CorrectionRows, isKept: (t: number) => boolean): Metrics {
  const hurt = rows.trained.map((tokens) => !tokens.every(isKept));
  return {
    masked_fraction: rows.share((t) => !isKept(t)),
    seq_masked_fraction: fraction(hurt, (isHurt) => isHurt),
  };
}

/** A sequence option counts only rows that have trained tokens, in float64. */
function shareOfFilled({ filled, trained }: CorrectionRows, kept: readonly boolean[]): number {
  const rejected = filled.filter((row) => !trained[row]!.every((t) => kept[t]));
  return filled.length > 0 ? rejected.length / filled.length : 0;
}

function statisticMetrics(
  rows: CorrectionRows,
  rejection: Rejection,
  { level, values }: RejectionResult["statistic"],
): Metrics {
  const { high } = rejection;
  const low = rejection.statistic.divergence.isSigned ? rejection.low : undefined;
  const byRow = level === "row" ? Array.from(values) : rows.rowMeans((t) => values[t]!);
  const tokens = level === "row" ? rows.spread(byRow) : values;
  const trained = rows.allTrained.map((t) => tokens[t]!);
  const ofFilled = rows.filled.map((row) => byRow[row]!);
  const share = (isHit: (x: number) => boolean) =>
    level === "row" ? fraction(ofFilled, isHit) : rows.share((t) => isHit(tokens[t]!));
  return {
    mean: rows.mean((t) => tokens[t]!),
    max: largest(trained),
    min: smallest(trained),
    std: rows.deviation((t) => clamp(tokens[t]!, low ?? 0, high)),
    fraction_high: share((x) => x > high),
    fraction_low: low === undefined ? 0 : share((x) => x < low),
    ...prefixed("seq", rowMetrics(ofFilled, 0)),
    seq_fraction_high: fraction(ofFilled, (x) => x > high),
    ...(low !== undefined && { seq_fraction_low: fraction(ofFilled, (x) => x < low) }),
  };
}

function prefixed(prefix: string, metrics: Metrics): Metrics {
  return Object.fromEntries(Object.entries(metrics).map(([key, value]) => [`${prefix}_${key}`, value]));
}

/** Share of rows: the published code takes float32 means of them, so this rounds to float32. */
function fraction<V>(rows: readonly V[], isHit: (value: V) => boolean): number {
  return Math.fround(rows.filter(isHit).length / rows.length);
}

/** Statistics of one number per row; NaN and infinities where there is no row. */
function rowMetrics(values: readonly number[], centre: number): Metrics {
  return {
    mean: sum(values) / values.length,
    std: values.length > 1 ? sampleDeviation(values) : 0,
    max: largest(values),
    min: smallest(values),
    max_deviation: largest(values.map((x) => Math.abs(x - centre))),
  };
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
  const mean = (of: (row: RowSums) => number) => sum(rows.map(of)) / rows.length;
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
    log_ppl_diff: sum(apart) / apart.length,
    log_ppl_abs_diff: sum(apart.map(Math.abs)) / apart.length,
    log_ppl_diff_max: largest(apart),
    log_ppl_diff_min: smallest(apart),
    ppl_ratio: sum(apart.map(Math.exp)) / apart.length,
    chi2_token: chi2 - 1,
    chi2_seq: mean((row) => Math.exp(2 * clamp(row.logRatio, -SAFETY_BOUND, SAFETY_BOUND))) - 1,
  };
}

function rowSums({ offsets, mask, logprobs, rolloutLogprobs }: CorrectionBatch): RowSums[] {
  return mapRows(offsets, (_, first, end) => {
    const sums = { trained: 0, logprobs: 0, rollout: 0, logRatio: 0 };
    for (let t = first; t < end; t++) {
      if (mask[t] === 0) continue;
      const [logprob, sampled] = [logprobs[t]!, rolloutLogprobs[t]!];
      sums.trained++;
      sums.logprobs += logprob;
      sums.rollout += sampled;
      sums.logRatio += logprob - sampled;
    }
    return sums;
  });
}

/** Means over trained tokens of rollout - training, e^x - x - 1 and e^2x, with x = training - rollout. */
function tokenMeans(batch: CorrectionBatch): [kl: number, k3: number, chi2: number] {
  const ratios = logRatios(batch);
  let [kl, k3, chi2] = [0, 0, 0];
  let trained = COUNT_EPSILON;
  for (const [t, x] of ratios.entries()) {
    if (batch.mask[t] === 0) continue;
    trained++;
    kl -= x;
    k3 += Math.exp(x) - x - 1;
    chi2 += Math.exp(2 * clamp(x, -SAFETY_BOUND, SAFETY_BOUND));
  }
  return [kl / trained, k3 / trained, chi2 / trained];
}

/**
 * How the probabilities of sampler and trainer differ at trained tokens.
 * @see verl debug metrics `training/rollout_probs_diff_*`
 */
export function probabilityMetrics({ mask, logprobs, rolloutLogprobs }: CorrectionBatch): Metrics {
  const tokens = trainedIn(mask, 0, mask.length);
  const trainer = tokens.map((t) => Math.exp(logprobs[t]!));
  const sampler = tokens.map((t) => Math.exp(rolloutLogprobs[t]!));
  const apart = trainer.map((p, k) => Math.abs(p - sampler[k]!));
  return {
    "training/rollout_probs_diff_valid": 1,
    "training/rollout_probs_diff_max": Math.max(0, largest(apart)),
    "training/rollout_probs_diff_mean": sum(apart) / apart.length,
    "training/rollout_probs_diff_std": sampleDeviation(apart),
    "training/rollout_actor_probs_pearson_corr": correlation(trainer, sampler),
  };
}

/** Pearson's. */
function correlation(xs: readonly number[], ys: readonly number[]): number {
  const [x, y] = [sum(xs) / xs.length, sum(ys) / ys.length];
  const covariance = sum(xs.map((p, k) => (p - x) * (ys[k]! - y)));
  const squares = (values: readonly number[], centre: number) => sum(values.map((p) => (p - centre) ** 2));
  return covariance / Math.sqrt(squares(xs, x) * squares(ys, y));
}
