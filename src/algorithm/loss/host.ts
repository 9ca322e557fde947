/** The policy loss on the host, in float64: the oracle of the GPU's, and the way without a device. */
import type { Advantages } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import { advantageReader, checkAdvantages } from "../advantage/level.ts";
import { countRows, weightOfRow } from "./aggregation.ts";
import { type PassOptions, passToken, type RowTable, rowStatistic, type Streams, SUM_COUNT } from "./pass.ts";
import {
  type LossResult,
  lossResult,
  type PolicyLossSpec,
  type ResolvedLoss,
  resolveLoss,
} from "./resolve.ts";
import { selectTokens } from "./selection.ts";

/** Packed rows, tokens end to end. Per-token arrays are [T]. */
export interface LossBatch {
  /** [N+1]. */
  readonly offsets: Uint32Array;
  /** 1 = trained on. */
  readonly mask: Uint32Array;
  readonly logprobs: ArrayLike<number>;
  /** Absent: the current log-probs, detached. */
  readonly oldLogprobs?: ArrayLike<number> | undefined;
  /** For `cross_entropy`, the weights. */
  readonly advantages: Advantages<ArrayLike<number>>;
  readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  readonly refLogprobs?: ArrayLike<number> | undefined;
  readonly entropy?: ArrayLike<number> | undefined;
}

export interface HostLoss extends LossResult {
  /** d(loss)/d(logprob), [T]; 0 where mask = 0. */
  readonly dlogprobs: Float64Array;
  /** d(loss)/d(entropy), [T], where the spec has an entropy bonus. */
  readonly dentropy?: Float64Array | undefined;
}

/**
 * Value, gradient and metrics of a policy loss, in float64 on the host.
 * @throws ConfigError for an unknown loss, setting or mode, a batch without trained tokens, or non-finite input.
 * @see verl core_algos, Tinker's losses, TRL GRPOTrainer
 */
export function policyLoss(batch: LossBatch, spec: PolicyLossSpec): HostLoss {
  const rows = countRows(batch.offsets, batch.mask);
  const loss = resolveLoss(spec, rows);
  if (loss.klCode !== 0 && !batch.refLogprobs) throw missing("refLogprobs", "the KL term");
  const streams = hostStreams(batch);
  const table = rowTable(batch, loss, streams, rows.trained);
  const options = passOptions(loss, selectTokens(loss.plan.selection, streams, rows.tokens));
  const sums = new Float64Array(SUM_COUNT);
  const dlogprobs = new Float64Array(rows.tokens);
  for (let t = 0; t < rows.tokens; t++)
    if (batch.mask[t] !== 0) dlogprobs[t] = passToken(t, streams, table, options, sums);
  const bonus = entropyTerm(batch, loss, table, streams);
  return { ...lossResult(loss, sums, rows, bonus?.entropy), dlogprobs, dentropy: bonus?.dentropy };
}

function hostStreams(batch: LossBatch): Streams {
  const { offsets } = batch;
  const rows = offsets.length - 1;
  const rowOfToken = rowsOfTokens(offsets);
  const advantages = checkAdvantages(batch.advantages, { rows, tokens: offsets[rows]! });
  return {
    logprobs: batch.logprobs,
    mask: batch.mask,
    old: batch.oldLogprobs,
    isWeights: batch.rolloutIsWeights,
    ref: batch.refLogprobs,
    advantage: advantageReader(advantages),
    row: (t) => rowOfToken[t]!,
  };
}

/** Row of every token, [T]. */
export function rowsOfTokens(offsets: Uint32Array): Uint32Array {
  const rows = new Uint32Array(offsets[offsets.length - 1]!);
  for (let row = 0; row + 1 < offsets.length; row++) rows.fill(row, offsets[row], offsets[row + 1]);
  return rows;
}

function rowTable(batch: LossBatch, loss: ResolvedLoss, streams: Streams, trained: Uint32Array): RowTable {
  const byRow = loss.weight.byRow ? loss.weight : loss.termWeight;
  const weight = Float64Array.from(trained, (n) => weightOfRow(byRow, n));
  const a = new Float64Array(trained.length);
  const b = new Float64Array(trained.length);
  const kind = loss.plan.rows;
  for (let row = 0; kind && row < trained.length; row++) {
    const range = { row, first: batch.offsets[row]!, end: batch.offsets[row + 1]! };
    ({ a: a[row], b: b[row] } = rowStatistic(kind, range, streams, loss.settings));
  }
  return { weight, a, b };
}

/** The pass's options of a resolved loss. */
export function passOptions(loss: ResolvedLoss, selected: (t: number) => boolean): PassOptions {
  const { plan, settings, weight, termWeight: klWeight, klCode, klCoef, klBound } = loss;
  return { plan, settings, weight, klWeight, klCode, klCoef, klBound, selected };
}

function entropyTerm(batch: LossBatch, loss: ResolvedLoss, table: RowTable, streams: Streams) {
  if (!batch.entropy) {
    if (loss.entropyCoef !== 0) throw missing("entropy", "the entropy bonus");
    return undefined;
  }
  const dentropy = new Float64Array(batch.mask.length);
  let entropy = 0;
  for (let t = 0; t < dentropy.length; t++) {
    if (batch.mask[t] === 0) continue;
    const weight = loss.termWeight.byRow ? table.weight[streams.row(t)] : loss.termWeight.uniform;
    entropy += weight! * batch.entropy[t]!;
    dentropy[t] = -loss.entropyCoef * weight!;
  }
  return { entropy, dentropy: loss.entropyCoef !== 0 ? dentropy : undefined };
}

export function missing(field: string, by: string): ConfigError {
  return new ConfigError(`Cannot take the loss: ${by} needs ${field}, which the batch does not hold.`, {
    path: field,
  });
}
