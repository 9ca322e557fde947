/** The pass over the tokens of a loss in float64, on any arrays: what loss/policy.wgsl computes. */
import { klEstimate } from "../kl/estimate.ts";
import type { TokenWeights } from "./aggregation.ts";
import type { LossSettings, Token, TokenFunction } from "./token.ts";

/** Inputs of each token, [T]. Absent old log-probs are the current ones, detached. */
export interface Streams {
  readonly logprobs: ArrayLike<number>;
  readonly mask: ArrayLike<number>;
  readonly old?: ArrayLike<number> | undefined;
  readonly isWeights?: ArrayLike<number> | undefined;
  readonly ref?: ArrayLike<number> | undefined;
  advantage(t: number, row: number): number;
  row(t: number): number;
}

/** Inputs of each row, [N]: the weight of a trained token, for losses aggregated by row, and the row statistic. */
export interface RowTable {
  readonly weight: ArrayLike<number>;
  readonly a: ArrayLike<number>;
  readonly b: ArrayLike<number>;
}

/** Inputs of the pass. */
export interface PassInputs {
  readonly streams: Streams;
  readonly table: RowTable;
}

export interface LossPassOptions {
  readonly token: TokenFunction;
  /** The params of the loss's form. */
  readonly params: LossSettings;
  /** Uniform weights; the row table's where `byRow`. */
  readonly weight: TokenWeights;
  readonly klWeight: TokenWeights;
  /** 0 without a KL term. */
  readonly klCode: number;
  readonly klCoef: number;
  readonly klBound: number;
  /** Whether the row table's a and b are the loss's. */
  readonly couplesRows: boolean;
  /** Whether importance weights multiply the slopes: not where the row statistic contains them. */
  readonly weighsSlopes: boolean;
  /** Returns whether a selection has chosen a token. */
  readonly selected?: ((t: number) => boolean) | undefined;
}

/** Sums of the pass in the order of the shader. */
export const SUMS = { loss: 0, metrics: 1, klLoss: 4, kl: 5, broken: 6 } as const;
export const SUM_COUNT = 8;

/** Adds one trained token to `sums` and returns d(loss)/d(logprob). */
export function passToken(t: number, inputs: PassInputs, options: LossPassOptions, sums: Float64Array): number {
  const { streams, table } = inputs;
  const { isWeights, ref } = streams;
  const row = streams.row(t);
  const token = tokenAt(t, row, inputs, options);
  const isWeight = isWeights ? isWeights[t]! : 1;
  const weight = options.weight.byRow ? table.weight[row]! : options.weight.uniform;
  const loss = options.token(token, options.params);
  let slope = weight * loss.slope * (options.weighsSlopes ? isWeight : 1);
  add(sums, SUMS.loss, weight * isWeight * loss.value);
  for (let k = 0; k < 3; k++) add(sums, SUMS.metrics + k, loss.metrics[k]!);
  const reference = ref ? ref[t]! : 0;
  if (options.klCode !== 0) {
    const klWeight = options.klWeight.byRow ? table.weight[row]! : options.klWeight.uniform;
    const kl = klEstimate(options.klCode, ref ? token.logprob - reference : 0, options.klBound);
    slope += options.klCoef * klWeight * kl.slope;
    add(sums, SUMS.klLoss, klWeight * kl.value);
    add(sums, SUMS.kl, kl.value);
  }
  const isBroken = !Number.isFinite(token.logprob + token.d + token.advantage + isWeight + reference);
  if (isBroken) add(sums, SUMS.broken, 1);
  return slope;
}

function tokenAt(t: number, row: number, { streams, table }: PassInputs, options: LossPassOptions): Token {
  const { couplesRows, selected } = options;
  const logprob = streams.logprobs[t]!;
  return {
    logprob,
    d: streams.old ? logprob - streams.old[t]! : 0,
    advantage: streams.advantage(t, row),
    a: selected ? Number(selected(t)) : couplesRows ? table.a[row]! : 0,
    b: couplesRows ? table.b[row]! : 0,
  };
}

function add(sums: Float64Array, k: number, value: number): void {
  sums[k]! += value;
}
