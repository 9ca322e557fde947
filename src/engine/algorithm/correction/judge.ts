/** Rejection of tokens and rows by their divergence between trainer and sampler, in float64. */
import { clamp } from "../loss/token.ts";
import type { Rejection } from "./config.ts";
import { type CorrectionRows, SAFETY_BOUND } from "./rows.ts";
import type { Reduction } from "./statistics.ts";

/** Result of a rejection: its statistic at its level, and the tokens that it keeps, [T]. */
export interface RejectionResult {
  readonly statistic: { readonly level: "token" | "row"; readonly values: Float64Array };
  readonly kept: readonly boolean[];
}

/** The statistic and the verdicts of one rejection. */
export function judge(rows: CorrectionRows, { statistic, low, high }: Rejection): RejectionResult {
  const { divergence, reduction } = statistic;
  const of = (t: number) => divergence.of(clamp(rows.logRatio[t]!, -SAFETY_BOUND, SAFETY_BOUND));
  const passes = (x: number) => x >= low && x <= high;
  if (!reduction) {
    const values = rows.logRatio.map((_, t) => of(t));
    return { statistic: { level: "token", values }, kept: Array.from(values, passes) };
  }
  const values = rowStatistics(rows, reduction, of);
  const kept = Array.from(rows.spread(values.map((x) => Number(passes(x)))), (x) => x !== 0);
  return { statistic: { level: "row", values: Float64Array.from(values) }, kept };
}

/** A row without trained tokens has 0. verl's means have 1e-8 in their divisor. */
function rowStatistics(rows: CorrectionRows, reduction: Reduction, of: (t: number) => number): number[] {
  if (reduction.name === "mean") return rows.rowMeans(of);
  return rows.trained.map((tokens) => (tokens.length === 0 ? 0 : reduction.of(tokens.map(of))));
}
