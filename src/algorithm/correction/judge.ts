/** Rejection of tokens and rows by their divergence between trainer and sampler, in float64. */
import { clamp } from "../loss/token.ts";
import type { Rejection } from "./config.ts";
import { type CorrectionRows, SAFETY_BOUND } from "./rows.ts";

/** Result of a rejection: its statistic at its level, and the tokens that it keeps, [T]. */
export interface RejectionResult {
  readonly statistic: { readonly level: "token" | "row"; readonly values: Float64Array };
  readonly kept: readonly boolean[];
}

/** The statistic and the verdicts of one rejection. */
export function judge(rows: CorrectionRows, { level, reduction, kind, low, high }: Rejection): RejectionResult {
  const of = (t: number) => divergence(kind, clamp(rows.logRatio[t]!, -SAFETY_BOUND, SAFETY_BOUND));
  const passes = (x: number) => x >= low && x <= high;
  if (level === "token") {
    const values = rows.logRatio.map((_, t) => of(t));
    return { statistic: { level, values }, kept: Array.from(values, passes) };
  }
  const values = rowStatistics(rows, reduction, of);
  const kept = Array.from(rows.spread(values.map((x) => Number(passes(x)))), (x) => x !== 0);
  return { statistic: { level: "row", values: Float64Array.from(values) }, kept };
}

function rowStatistics(rows: CorrectionRows, reduction: Rejection["reduction"], of: (t: number) => number): number[] {
  if (reduction === "mean") return rows.rowMeans(of);
  if (reduction === "sum") return rows.rowSums(of);
  return rows.trained.map((tokens) => (tokens.length === 0 ? 0 : Math.max(...tokens.map(of))));
}

/** k1 = -x, k2 = x^2 / 2, k3 = e^x - 1 - x of the log-ratio. */
export function divergence(kind: Rejection["kind"], x: number): number {
  if (kind === "k1") return -x;
  if (kind === "k2") return 0.5 * x * x;
  return Math.exp(x) - 1 - x;
}
