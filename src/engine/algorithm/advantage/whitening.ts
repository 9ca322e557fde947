/** Whitening of advantages over a batch, as verl's masked_whiten does it, in float64. */
import { weightedMean } from "../../../leaves/statistics.ts";
import { COUNT_EPSILON } from "../rows.ts";

/** Added to the variance. */
export const WHITENING_EPSILON = 1e-8;

/**
 * (x - mean) / sqrt(variance + 1e-8), with weighted moments and Bessel's correction. Equal values, or a single one, give
 * exactly 0.
 * @param weights trained tokens of each value: lengths of rows, or the mask of tokens; where 0, the result is 0 for
 * tokens and shifted like the others for rows
 * @see verl torch_functional.masked_whiten
 */
export function whiten(values: Float64Array, weights: ArrayLike<number>, level: "row" | "token"): Float64Array {
  const { mean, scale } = moments(values, weights);
  const isMasked = (i: number) => level === "token" && weights[i] === 0;
  return values.map((x, i) => (isMasked(i) ? 0 : (x - mean) * scale));
}

/**
 * verl adds 1e-8 to the mean's divisor. In its float32 that is lost; in float64 it would leave 1e-8 of the value of equal
 * values, and the root of the variance's epsilon would multiply that by 10,000.
 */
function moments(values: Float64Array, weights: ArrayLike<number>): { mean: number; scale: number } {
  const mean = weightedMean(values, (i) => weights[i]!);
  let [count, squares] = [0, 0];
  for (let i = 0; i < values.length; i++) {
    const weight = weights[i]!;
    count += weight;
    if (weight !== 0) squares += (values[i]! - mean) ** 2 * weight;
  }
  if (count <= 1) return { mean, scale: 0 };
  const published = (mean * count) / (count + COUNT_EPSILON);
  return {
    mean: squares === 0 ? mean : published,
    scale: 1 / Math.sqrt(squares / (count - 1) + WHITENING_EPSILON),
  };
}
