/** Statistics of plain numbers, in float64. */

export type Numbers = ArrayLike<number> & Iterable<number>;

/** Returns the sum, added in order from the first value on. */
export function sum(values: Numbers): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

/** Sums of every `stride`-th number: from 0 on, from 1 on, ...; [stride]. */
export function addStrided(values: ArrayLike<number>, stride: number): number[] {
  const sums = new Array<number>(stride).fill(0);
  for (let i = 0; i < values.length; i++) sums[i % stride]! += values[i]!;
  return sums;
}

/** 0 for no values. Rounding does not take it beyond the values, so that equal ones have exactly their own value as mean. */
export function mean(values: Numbers): number {
  if (values.length === 0) return 0;
  return Math.min(Math.max(sum(values) / values.length, smallest(values)), largest(values));
}

/** sum w x / sum w, 0 where no value has a weight. Adds distances from the first such value: equal ones are exactly their mean. */
export function weightedMean(values: Numbers, weightOf: (i: number) => number): number {
  let [weight, total] = [0, 0];
  let shift: number | undefined;
  for (let i = 0; i < values.length; i++) {
    const valueWeight = weightOf(i);
    if (valueWeight === 0) continue;
    shift ??= Number.isFinite(values[i]!) ? values[i]! : 0;
    weight += valueWeight;
    total += valueWeight * (values[i]! - shift);
  }
  return shift === undefined ? 0 : shift + total / weight;
}

/** Standard deviation with the divisor n - ddof; 0 for no values, NaN for one value and `ddof` 1. */
export function deviation(values: Numbers, ddof: number): number {
  const centre = mean(values);
  const squares = sum(Float64Array.from(values, (value) => (value - centre) ** 2));
  return values.length > 0 ? Math.sqrt(squares / (values.length - ddof)) : 0;
}

/** Divides by n, as numpy does by default. */
export function populationDeviation(values: Numbers): number {
  return deviation(values, 0);
}

/** Divides by n - 1, as torch does by default. */
export function sampleDeviation(values: Numbers): number {
  return deviation(values, 1);
}

/** -Infinity for no values. */
export function largest(values: Numbers): number {
  let best = Number.NEGATIVE_INFINITY;
  for (const value of values) if (value > best) best = value;
  return best;
}

/** Infinity for no values. */
export function smallest(values: Numbers): number {
  let best = Number.POSITIVE_INFINITY;
  for (const value of values) if (value < best) best = value;
  return best;
}

/** Percentile `p` in [0, 100], with linear interpolation. */
export function percentile(values: Numbers, p: number): number {
  const sorted = Array.from(values).sort((a, b) => a - b);
  const place = ((sorted.length - 1) * p) / 100;
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below]! + (sorted[above]! - sorted[below]!) * (place - below);
}

/** `name/mean`, `name/max`, `name/min`; nothing for no values. */
export function spread(name: string, values: Numbers): Record<string, number> {
  if (values.length === 0) return {};
  return {
    [`${name}/mean`]: mean(values),
    [`${name}/max`]: largest(values),
    [`${name}/min`]: smallest(values),
  };
}

/** {@link spread} with `name/std`, the population's. */
export function spreadWithStd(name: string, values: Numbers): Record<string, number> {
  if (values.length === 0) return {};
  return { ...spread(name, values), [`${name}/std`]: populationDeviation(values) };
}
