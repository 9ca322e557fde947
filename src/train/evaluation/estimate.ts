/** Means over tasks, and differences of means, with 95% confidence intervals. */
import { mean, sampleDeviation } from "../../leaves/statistics.ts";
import type { IntervalEstimate } from "./contract.ts";

/** 97.5% quantile of the normal distribution. */
const Z = 1.959963984540054;

/**
 * The mean over tasks. A task's value is the mean over its attempts, so that the deviation of the values over the square root of
 * their number is the standard error clustered by task: attempts at one task are not independent. Interval: mean +- 1.96 standard
 * errors.
 * @see Miller 2024, "Adding Error Bars to Evals", https://arxiv.org/abs/2411.00640, sections 2.1 and 2.2
 */
export function estimate(values: readonly number[]): IntervalEstimate {
  const [centre, error] = [mean(values), standardError(values)];
  const interval = error === null ? null : ([centre - Z * error, centre + Z * error] as const);
  return { mean: centre, standard_error: error, interval, tasks: values.length };
}

/**
 * {@link estimate} of values in [0, 1], with Wilson's interval. Its sample size is the number of independent yes-or-no answers with
 * the same standard error, p (1 - p) / SE^2; where all tasks agree it is the number of tasks, so that 10 of 10 is not certainty.
 * @see Wilson 1927; Korn and Graubard 1998 for the effective sample size
 */
export function estimateShare(values: readonly number[]): IntervalEstimate {
  const plain = estimate(values);
  const { mean: p, standard_error: error, tasks } = plain;
  if (error === null) return plain;
  const n = error > 0 && p > 0 && p < 1 ? (p * (1 - p)) / error ** 2 : tasks;
  const scale = 1 + Z ** 2 / n;
  const centre = (p + Z ** 2 / (2 * n)) / scale;
  const half = (Z / scale) * Math.sqrt((p * (1 - p)) / n + Z ** 2 / (4 * n ** 2));
  return { ...plain, interval: [Math.max(0, centre - half), Math.min(1, centre + half)] };
}

/**
 * The mean of the differences `a - b` task by task. Pairing removes what the tasks have in common: the interval is narrower than that
 * of two separate means.
 * @see Miller 2024, section 4
 */
export function pairedDifference(pairs: readonly (readonly [a: number, b: number])[]): IntervalEstimate {
  return estimate(pairs.map(([a, b]) => a - b));
}

function standardError(values: readonly number[]): number | null {
  return values.length < 2 ? null : sampleDeviation(values) / Math.sqrt(values.length);
}
