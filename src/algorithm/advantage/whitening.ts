/** Whitening of advantages over a batch, as verl's masked_whiten does it, in float64. */
import { ConfigError } from "../../errors.ts";
import { COUNT_EPSILON } from "../loss/aggregation.ts";

export interface Moments {
  readonly mean: number;
  /** 1 / sqrt(variance + 1e-8). */
  readonly scale: number;
}

/**
 * Weighted moments as verl's masked_whiten takes them: weights are trained tokens, the variance is Bessel's.
 * @throws ConfigError when the weights add to one or less.
 */
export function whitening(values: ArrayLike<number>, weights: ArrayLike<number>): Moments {
  let count = 0;
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    count += weights[i]!;
    if (weights[i] !== 0) sum += values[i]! * weights[i]!;
  }
  refuseTooFew(count);
  const centre = sum / (count + COUNT_EPSILON);
  let squares = 0;
  for (let i = 0; i < values.length; i++)
    if (weights[i] !== 0) squares += (values[i]! - centre) ** 2 * weights[i]!;
  const variance = ((squares / (count + COUNT_EPSILON)) * count) / (count - 1);
  return { mean: centre, scale: 1 / Math.sqrt(variance + 1e-8) };
}

export function refuseTooFew(count: number): void {
  if (count <= 1)
    throw new ConfigError(
      `Cannot whiten as at least two trained tokens are needed: ${count}. Use an estimator without whitening, or a larger batch.`,
    );
}
