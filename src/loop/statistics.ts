/** Summaries of numbers for metrics (population statistics, as numpy's defaults), and grouping. */
import type { Metrics } from "../contract/backend.ts";

export type Numbers = ArrayLike<number> & Iterable<number>;

/** 0 for no values. */
export function mean(values: Numbers): number {
  let sum = 0;
  for (const value of values) sum += value;
  return values.length > 0 ? sum / values.length : 0;
}

/** Population standard deviation. */
export function standardDeviation(values: Numbers): number {
  const centre = mean(values);
  return Math.sqrt(mean(Array.from(values, (value) => (value - centre) ** 2)));
}

export function largest(values: Numbers): number {
  let best = Number.NEGATIVE_INFINITY;
  for (const value of values) if (value > best) best = value;
  return best;
}

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
export function spread(name: string, values: Numbers): Metrics {
  if (values.length === 0) return {};
  return {
    [`${name}/mean`]: mean(values),
    [`${name}/max`]: largest(values),
    [`${name}/min`]: smallest(values),
  };
}

/** `spread` with `name/std`. */
export function summary(name: string, values: Numbers): Metrics {
  if (values.length === 0) return {};
  return { ...spread(name, values), [`${name}/std`]: standardDeviation(values) };
}

/** Values by a key, in order of appearance. */
export function groupBy<T, K>(values: Iterable<T>, keyOf: (value: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const value of values) {
    const key = keyOf(value);
    const group = groups.get(key);
    if (group) group.push(value);
    else groups.set(key, [value]);
  }
  return groups;
}
