/** Rollout correction: the sampler's policy is not the trainer's, so tokens are reweighted or rejected. In float64. */
import type { Metrics } from "../../contract/backend.ts";
import { COUNT_EPSILON } from "../loss/aggregation.ts";
import { clamp } from "../loss/definition.ts";
import { type CorrectionConfig, type CorrectionPlan, planCorrection, type Rejection } from "./config.ts";
import { logRatios, offPolicyMetrics, SAFETY_BOUND } from "./metrics.ts";

export interface CorrectionBatch {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
  /** The trainer's log-probs: those at the start of the update, or the current ones in bypass mode. */
  readonly logprobs: ArrayLike<number>;
  readonly rolloutLogprobs: ArrayLike<number>;
}

export interface Correction {
  /** Importance weights [T], 0 where the given mask is 0; absent without `rollout_is`. */
  readonly weights?: Float64Array | undefined;
  /** The mask [T] without rejected tokens. */
  readonly mask: Uint32Array;
  /** `rollout_corr/*` */
  readonly metrics: Metrics;
}

const PREFIX = "rollout_corr/";

/**
 * Importance weights, rejection mask and metrics between two policies' log-probs.
 * @throws ConfigError for a level, option or threshold that is not known
 * @see verl rollout_corr_helper.compute_rollout_correction_and_rejection_mask
 */
export function rolloutCorrection(batch: CorrectionBatch, config: CorrectionConfig): Correction {
  const plan = planCorrection(config);
  const rows = new CorrectionRows(batch);
  const metrics: Metrics = {};
  const weights = plan.level && importanceWeights(rows, plan, metrics);
  const mask = reject(rows, plan.rejections, metrics);
  Object.assign(metrics, offPolicyMetrics(batch));
  const named = Object.fromEntries(Object.entries(metrics).map(([key, value]) => [PREFIX + key, value]));
  return { weights: weights || undefined, mask, metrics: named };
}

/** Log-ratios of a batch with masked reductions over all tokens and by row. */
class CorrectionRows {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
  readonly logRatio: Float64Array;
  readonly count: number;

  constructor(batch: CorrectionBatch) {
    this.offsets = batch.offsets;
    this.mask = batch.mask;
    this.logRatio = logRatios(batch);
    this.count = batch.offsets.length - 1;
  }

  /** Trained tokens of a row. */
  tokens(row: number): number[] {
    const tokens: number[] = [];
    for (let t = this.offsets[row]!; t < this.offsets[row + 1]!; t++) if (this.mask[t] !== 0) tokens.push(t);
    return tokens;
  }

  allTokens(): number[] {
    return this.byRow((row) => this.tokens(row)).flat();
  }

  byRow<T>(of: (row: number) => T): T[] {
    return Array.from({ length: this.count }, (_, row) => of(row));
  }

  /** Mean over the row's trained tokens; 0 where it has none. */
  rowMean(row: number, of: (t: number) => number): number {
    const tokens = this.tokens(row);
    return tokens.reduce((sum, t) => sum + of(t), 0) / (tokens.length + COUNT_EPSILON);
  }

  rowSum(row: number, of: (t: number) => number): number {
    return this.tokens(row).reduce((sum, t) => sum + of(t), 0);
  }

  /** Mean over all trained tokens. */
  mean(of: (t: number) => number): number {
    const tokens = this.allTokens();
    return tokens.reduce((sum, t) => sum + of(t), 0) / (tokens.length + COUNT_EPSILON);
  }

  /** Spreads numbers of rows over all their tokens. */
  spread(values: readonly number[]): Float64Array {
    const tokens = new Float64Array(this.mask.length);
    for (const [row, value] of values.entries()) tokens.fill(value, this.offsets[row], this.offsets[row + 1]);
    return tokens;
  }
}

function importanceWeights(rows: CorrectionRows, plan: CorrectionPlan, metrics: Metrics): Float64Array {
  const sums = rows.byRow((row) => rows.rowSum(row, (t) => rows.logRatio[t]!));
  const logs = plan.level === "sequence" ? rows.spread(sums) : rows.logRatio;
  const raw = logs.map((x, t) => (rows.mask[t] === 0 ? 0 : Math.exp(clamp(x, -SAFETY_BOUND, SAFETY_BOUND))));
  const { low, high, icepop } = plan.bounds;
  const weights = raw.map((w) => (icepop ? (w >= low && w <= high ? w : 0) : Math.min(w, high)));
  Object.assign(metrics, weightMetrics(rows, plan, { raw, weights, sums }));
  if (!plan.batchNormalize) return weights;
  const factor = normFactor(rows, plan, weights);
  metrics.rollout_is_batch_norm_factor = factor > 1e-8 ? factor : 1;
  return factor > 1e-8 ? weights.map((w) => w / factor) : weights;
}

/** Mean weight: of tokens, or of the rows that have any. */
function normFactor(rows: CorrectionRows, plan: CorrectionPlan, weights: Float64Array): number {
  if (plan.level === "token") return rows.mean((t) => weights[t]!);
  const filled = filledRows(rows);
  const sum = filled.reduce((total, row) => total + rows.rowMean(row, (t) => weights[t]!), 0);
  return sum / Math.max(filled.length, COUNT_EPSILON);
}

interface Weights {
  readonly raw: Float64Array;
  readonly weights: Float64Array;
  /** Log-ratio of each row. */
  readonly sums: readonly number[];
}

function weightMetrics(rows: CorrectionRows, plan: CorrectionPlan, { raw, weights, sums }: Weights): Metrics {
  const { low, high, icepop } = plan.bounds;
  const trained = rows.allTokens();
  const share = (hit: (x: number) => boolean) => rows.mean((t) => Number(hit(raw[t]!)));
  const shareOfRows = (hit: (x: number) => boolean) => fraction(sums.filter(hit).length, rows.count);
  const bySequence = plan.level === "sequence";
  const metrics: Metrics = {
    rollout_is_mean: rows.mean((t) => weights[t]!),
    rollout_is_max: bySequence
      ? Math.exp(Math.min(Math.max(...sums), SAFETY_BOUND))
      : largest(trained, weights),
    rollout_is_min: bySequence
      ? Math.exp(Math.min(...sums))
      : -largest(
          trained,
          weights.map((w) => -w),
        ),
    rollout_is_ratio_fraction_high: bySequence
      ? shareOfRows((x) => x > Math.log(high))
      : share((w) => w > high),
    rollout_is_ratio_fraction_low: bySequence ? shareOfRows((x) => x < Math.log(low)) : share((w) => w < low),
  };
  const bounded = (t: number) => clamp(weights[t]!, 0, high);
  const mean = rows.mean(bounded);
  const variance = rows.mean((t) => bounded(t) ** 2) - mean ** 2;
  metrics.rollout_is_std = trained.length > 1 ? Math.sqrt(Math.max(variance, 0)) : 0;
  metrics.rollout_is_eff_sample_size = 1 / rows.mean((t) => (bounded(t) / (mean + COUNT_EPSILON)) ** 2);
  const means = (of: Float64Array) => rows.byRow((row) => rows.rowMean(row, (t) => of[t]!));
  const rawMeans = means(raw);
  const sequence = {
    ...rowMetrics(means(weights), 1),
    fraction_high: fraction(rawMeans.filter((x) => x > high).length, rows.count),
    fraction_low: fraction(rawMeans.filter((x) => x < low).length, rows.count),
  };
  Object.assign(metrics, prefixed("rollout_is_seq", sequence));
  if (icepop) metrics.rollout_is_oob_ratio = share((w) => w < low || w > high);
  return metrics;
}

function largest(tokens: readonly number[], values: ArrayLike<number>): number {
  return tokens.reduce((most, t) => Math.max(most, values[t]!), Number.NEGATIVE_INFINITY);
}

function prefixed(prefix: string, metrics: Metrics): Metrics {
  return Object.fromEntries(Object.entries(metrics).map(([key, value]) => [`${prefix}_${key}`, value]));
}

/** Shares of rows are float32 means in the published code, and so reported. */
function fraction(hits: number, rows: number): number {
  return Math.fround(hits / rows);
}

/** Statistics of one number per row. */
function rowMetrics(values: readonly number[], centre: number): Metrics {
  const n = values.length;
  const mean = values.reduce((sum, x) => sum + x, 0) / n;
  const squares = values.reduce((sum, x) => sum + (x - mean) ** 2, 0);
  return {
    mean,
    std: n > 1 ? Math.sqrt(squares / (n - 1)) : 0,
    max: Math.max(...values),
    min: Math.min(...values),
    max_deviation: Math.max(...values.map((x) => Math.abs(x - centre))),
  };
}

/** Applies every rejection, logical and, and measures each. */
function reject(rows: CorrectionRows, rejections: readonly Rejection[], metrics: Metrics): Uint32Array {
  const mask = rows.mask.slice();
  if (rejections.length === 0) return mask;
  for (const rejection of rejections) {
    const { statistics, kept } = judge(rows, rejection);
    Object.assign(
      metrics,
      prefixed(`rollout_rs_${rejection.name}`, rejectionMetrics(rows, rejection, statistics)),
    );
    Object.assign(metrics, prefixed(`rollout_rs_${rejection.name}`, optionShares(rows, rejection, kept)));
    for (let t = 0; t < mask.length; t++) if (!kept[t]) mask[t] = 0;
  }
  Object.assign(
    metrics,
    prefixed(
      "rollout_rs",
      maskedShares(
        rows,
        Array.from(mask, (m, t) => m !== 0 || rows.mask[t] === 0),
      ),
    ),
  );
  return mask;
}

interface Judgement {
  /** Per token, or one per row. */
  readonly statistics: { readonly level: "token" | "row"; readonly values: ArrayLike<number> };
  /** Per token. */
  readonly kept: readonly boolean[];
}

function judge(rows: CorrectionRows, { level, reduction, kind, low, high }: Rejection): Judgement {
  const of = (t: number) => divergence(kind, clamp(rows.logRatio[t]!, -SAFETY_BOUND, SAFETY_BOUND));
  const passes = (x: number) => x >= low && x <= high;
  if (level === "token") {
    const values = Float64Array.from(rows.logRatio, (_, t) => of(t));
    return { statistics: { level, values }, kept: Array.from(values, passes) };
  }
  const values = rows.byRow((row) => {
    if (reduction === "mean") return rows.rowMean(row, of);
    if (reduction === "sum") return rows.rowSum(row, of);
    const tokens = rows.tokens(row);
    return tokens.length === 0 ? 0 : Math.max(...tokens.map(of));
  });
  const kept = Array.from(rows.spread(values.map((x) => Number(passes(x)))), (x) => x !== 0);
  return { statistics: { level: "row", values }, kept };
}

/** k1 = -x, k2 = x^2 / 2, k3 = e^x - 1 - x of the log-ratio. */
export function divergence(kind: Rejection["kind"], x: number): number {
  if (kind === "k1") return -x;
  if (kind === "k2") return 0.5 * x * x;
  return Math.exp(x) - 1 - x;
}

function maskedShares(rows: CorrectionRows, kept: readonly boolean[]): Metrics {
  const hurt = rows.byRow((row) => rows.tokens(row).some((t) => !kept[t]));
  return {
    masked_fraction: rows.mean((t) => Number(!kept[t])),
    seq_masked_fraction: fraction(hurt.filter(Boolean).length, rows.count),
  };
}

/** As {@link maskedShares}; a sequence option counts the rows that have trained tokens, in float64. */
function optionShares(rows: CorrectionRows, { level }: Rejection, kept: readonly boolean[]): Metrics {
  const shares = maskedShares(rows, kept);
  if (level === "token") return shares;
  const filled = filledRows(rows);
  const rejected = filled.filter((row) => rows.tokens(row).some((t) => !kept[t])).length;
  return { ...shares, seq_masked_fraction: filled.length > 0 ? rejected / filled.length : 0 };
}

function filledRows(rows: CorrectionRows): number[] {
  return rows.byRow((row) => row).filter((row) => rows.tokens(row).length > 0);
}

function rejectionMetrics(
  rows: CorrectionRows,
  rejection: Rejection,
  { level, values }: Judgement["statistics"],
): Metrics {
  const { high } = rejection;
  const low = rejection.kind === "k1" ? rejection.low : undefined;
  const byRow = Array.from(
    { length: rows.count },
    level === "row" ? (_, row) => values[row]! : (_, row) => rows.rowMean(row, (t) => values[t]!),
  );
  const tokens = level === "row" ? rows.spread(byRow) : values;
  const trained = rows.allTokens();
  const bounded = (t: number) => clamp(tokens[t]!, low ?? 0, high);
  const mean = rows.mean(bounded);
  const variance = rows.mean((t) => bounded(t) ** 2) - mean ** 2;
  const ofFilled = filledRows(rows).map((row) => byRow[row]!);
  const shareOfRows = (hit: (x: number) => boolean) => fraction(ofFilled.filter(hit).length, ofFilled.length);
  const share = (hit: (x: number) => boolean) =>
    level === "row" ? shareOfRows(hit) : rows.mean((t) => Number(hit(tokens[t]!)));
  return {
    mean: rows.mean((t) => tokens[t]!),
    max: largest(trained, tokens),
    min: -largest(
      trained,
      Float64Array.from(tokens, (x) => -x),
    ),
    std: trained.length > 1 ? Math.sqrt(Math.max(variance, 0)) : 0,
    fraction_high: share((x) => x > high),
    fraction_low: low === undefined ? 0 : share((x) => x < low),
    ...prefixed("seq", rowMetrics(ofFilled, 0)),
    seq_fraction_high: shareOfRows((x) => x > high),
    ...(low === undefined ? {} : { seq_fraction_low: shareOfRows((x) => x < low) }),
  };
}
