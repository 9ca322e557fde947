/** Whitening of advantages over a batch, as verl's masked_whiten does it, in float64. */
import { ConfigError } from "../../errors.ts";
import { COUNT_EPSILON } from "../rows.ts";

/** Added to the variance. */
export const WHITENING_EPSILON = 1e-8;

/**
 * (x - mean) / sqrt(variance + 1e-8), with weighted moments and Bessel's correction.
 * @param weights trained tokens of each value: lengths of rows, or the mask of tokens; where 0, the result is 0 for
 * tokens and shifted like the others for rows
 * @throws {ConfigError} when the weights add to one or less
 * @see verl torch_functional.masked_whiten
 */
export function whiten(values: Float64Array, weights: ArrayLike<number>, level: "row" | "token"): Float64Array {
  const { mean, scale } = moments(values, weights);
  const isMasked = (i: number) => level === "token" && weights[i] === 0;
  return values.map((x, i) => (isMasked(i) ? 0 : (x - mean) * scale));
}

function moments(values: Float64Array, weights: ArrayLike<number>): { mean: number; scale: number } {
  let [count, total, squares] = [0, 0, 0];
  for (let i = 0; i < values.length; i++) {
    const weight = weights[i]!;
    count += weight;
    if (weight !== 0) total += values[i]! * weight;
  }
  refuseTooFew(count);
  const mean = total / (count + COUNT_EPSILON);
  for (let i = 0; i < values.length; i++) {
    const weight = weights[i]!;
    if (weight !== 0) squares += (values[i]! - mean) ** 2 * weight;
  }
  const variance = ((squares / (count + COUNT_EPSILON)) * count) / (count - 1);
  return { mean, scale: 1 / Math.sqrt(variance + WHITENING_EPSILON) };
}

/** @throws {ConfigError} when there are not two trained tokens, so that there is no variance. */
export function refuseTooFew(count: number): void {
  if (count > 1) return;
  throw new ConfigError(
    `Cannot whiten advantages: at least two trained tokens are needed (${count}). Use an estimator without whitening, or a larger batch.`,
  );
}
