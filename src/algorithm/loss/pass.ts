/** The loss pass in float64: what loss/rows.wgsl and loss/policy.wgsl compute, over any arrays. */

import { klEstimate } from "../kl/estimate.ts";
import { COUNT_EPSILON } from "./aggregation.ts";
import type { LossPlan, RowStatistic, ShaderSettings, Token } from "./definition.ts";
import { clamp } from "./definition.ts";
import { surrogate } from "./trl.ts";

/** Per-token and per-row inputs. Absent old log-probs are the current ones, detached. */
export interface Streams {
  readonly logprobs: ArrayLike<number>;
  readonly mask: ArrayLike<number>;
  readonly old?: ArrayLike<number> | undefined;
  readonly isWeights?: ArrayLike<number> | undefined;
  readonly ref?: ArrayLike<number> | undefined;
  advantage(t: number, row: number): number;
  row(t: number): number;
}

export interface RowTable {
  /** Weight of a trained token of the row, for losses aggregated by row. */
  readonly weight: ArrayLike<number>;
  readonly a: ArrayLike<number>;
  readonly b: ArrayLike<number>;
}

export interface PassOptions {
  readonly plan: LossPlan;
  readonly settings: ShaderSettings;
  /** Uniform weights; the row table's where `byRow`. */
  readonly weight: { readonly uniform: number; readonly byRow: boolean };
  readonly klWeight: { readonly uniform: number; readonly byRow: boolean };
  /** 0 without a KL term. */
  readonly klCode: number;
  readonly klCoef: number;
  readonly klBound: number;
  selected(t: number): boolean;
}

/** Sums of the pass in the order the shader keeps them. */
export const SUMS = { loss: 0, metrics: 1, klLoss: 4, kl: 5, broken: 6 } as const;
export const SUM_COUNT = 8;

/** Adds one trained token to `sums` and returns its gradient. */
export function passToken(
  t: number,
  s: Streams,
  table: RowTable,
  o: PassOptions,
  sums: Float64Array,
): number {
  const { plan } = o;
  const row = s.row(t);
  const logprob = s.logprobs[t]!;
  const isWeight = s.isWeights && plan.weightsInRows !== "all" ? s.isWeights[t] : 1;
  const weight = o.weight.byRow ? table.weight[row] : o.weight.uniform;
  const token: Token = {
    logprob,
    d: s.old ? logprob - s.old[t]! : 0,
    advantage: s.advantage(t, row),
    a: plan.selection ? (o.selected(t) ? 1 : 0) : plan.rows ? table.a[row]! : 0,
    b: plan.rows ? table.b[row]! : 0,
  };
  const loss = plan.token(token, o.settings);
  let slope = weight! * loss.slope * (plan.weightsInRows === "slope" ? 1 : isWeight!);
  sums[SUMS.loss]! += weight! * isWeight! * loss.value;
  for (let k = 0; k < 3; k++) sums[SUMS.metrics + k]! += loss.metrics[k]!;
  if (o.klCode !== 0) {
    const klWeight = o.klWeight.byRow ? table.weight[row] : o.klWeight.uniform;
    const kl = klEstimate(o.klCode, s.ref ? logprob - s.ref[t]! : 0, o.klBound);
    slope += o.klCoef * klWeight! * kl.slope;
    sums[SUMS.klLoss]! += klWeight! * kl.value;
    sums[SUMS.kl]! += kl.value;
  }
  if (isBroken(t, token, isWeight!, s)) sums[SUMS.broken]!++;
  return slope;
}

function isBroken(t: number, { logprob, d, advantage }: Token, isWeight: number, s: Streams): boolean {
  return !Number.isFinite(logprob + d + advantage + isWeight + (s.ref ? s.ref[t]! : 0));
}

export interface RowRange {
  readonly row: number;
  readonly first: number;
  readonly end: number;
}

/** The row's numbers a and b. */
export function rowStatistic(
  kind: RowStatistic,
  range: RowRange,
  s: Streams,
  settings: ShaderSettings,
): { a: number; b: number } {
  const trained: number[] = [];
  for (let t = range.first; t < range.end; t++) if (s.mask[t] !== 0) trained.push(t);
  const d = (t: number) => (s.old ? s.logprobs[t]! - s.old[t]! : 0);
  const sum = (f: (t: number) => number) => trained.reduce((total, t) => total + f(t), 0);
  const length = Math.max(trained.length, 1);
  if (kind === "mean-log-ratio") return { a: sum(d) / length, b: 0 };
  if (kind === "geometric-mean") return geometricMean(range.row, s, settings, { sum, d, n: trained.length });
  if (kind === "vespo") {
    const smallest = Math.log(1e-8);
    const logWeight = (t: number) =>
      s.isWeights ? clamp(Math.log(Math.max(s.isWeights[t]!, 1e-30)), smallest, 20) : 0;
    return {
      a: clamp(
        sum((t) => clamp(d(t), -20, 20) + logWeight(t)),
        smallest,
        20,
      ),
      b: 0,
    };
  }
  const divisor = kind === "sequence-surrogate" ? length : 1;
  const a = sum(d) / divisor;
  const slope = (t: number) => {
    const token = { logprob: 0, d: 0, advantage: s.advantage(t, range.row), a, b: 0 };
    return (s.isWeights ? s.isWeights[t]! : 1) * surrogate(token, a, settings).slope;
  };
  return { a, b: sum(slope) / divisor };
}

interface RowSums {
  sum(f: (t: number) => number): number;
  d(t: number): number;
  readonly n: number;
}

function geometricMean(row: number, s: Streams, { low, high }: ShaderSettings, { sum, d, n }: RowSums) {
  const length = n + COUNT_EPSILON;
  const pessimistic = (t: number) => {
    const side = Math.sign(s.advantage(t, row));
    return side * Math.min(side * d(t), side * clamp(d(t), low, high));
  };
  const ratio = Math.exp(sum(pessimistic) / length);
  const advantage = sum((t) => s.advantage(t, row)) / length;
  const weight = s.isWeights ? Math.exp(sum((t) => Math.log(s.isWeights![t]! + 1e-10)) / length) : 1;
  const loss = -advantage * ratio * weight;
  return { a: loss / Math.max(n, 1), b: loss / length };
}
