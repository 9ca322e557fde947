/** The policy loss on the host, in float64: the reference of the GPU's, and the way without a device. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Advantages } from "../../contract/backend.ts";
import { mapRows, rowsOfTokens, totalTokens } from "../../packing/offsets.ts";
import { advantageReader, checkAdvantages } from "../advantage/level.ts";
import { countRows, type MaskedRows, type RowCounts } from "../rows.ts";
import { weightOfRow } from "./aggregation.ts";
import { type LossPassOptions, passToken, type RowTable, type Streams, SUM_COUNT } from "./pass.ts";
import { type LossResult, lossResult, type PolicyLossSpec, type ResolvedLoss, resolveLoss } from "./resolve.ts";
import { rowSums } from "./row_statistic.ts";
import { selectTokens } from "./selection.ts";

/** Batch of a loss; per-token arrays are [T]. */
export interface LossBatch extends MaskedRows {
  readonly logprobs: ArrayLike<number>;
  /** Absent: the current log-probs, detached. */
  readonly oldLogprobs?: ArrayLike<number> | undefined;
  /** Advantages; for `cross_entropy`, the weights. */
  readonly advantages: Advantages<ArrayLike<number>>;
  readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  readonly refLogprobs?: ArrayLike<number> | undefined;
  readonly entropy?: ArrayLike<number> | undefined;
}

/** A policy loss computed on the host, in float64. */
export interface HostLoss extends LossResult {
  /** d(loss)/d(logprob), [T]; 0 where mask = 0. */
  readonly dlogprobs: Float64Array;
  /** d(loss)/d(entropy), [T], where the spec has an entropy bonus; 0 where mask = 0. */
  readonly dentropy?: Float64Array | undefined;
}

/**
 * Value, gradient and metrics of a policy loss, in float64 on the host.
 * @throws {ConfigError} for an unknown loss, setting or mode, an input that the loss needs and the batch lacks, a batch
 * without trained tokens, or input that is not finite at a trained token
 * @see verl core_algos, Tinker's losses, TRL GRPOTrainer
 */
export function policyLoss(batch: LossBatch, spec: PolicyLossSpec): HostLoss {
  const rows = countRows(batch.offsets, batch.mask);
  const loss = resolveLoss(spec, rows);
  checkTerms(loss, batch);
  const streams = hostStreams(batch);
  const table = rowTable(batch, loss, { streams, rows });
  const { weightsInRows, selection } = loss.plan;
  const inputs = { streams: weightsInRows === "all" ? { ...streams, isWeights: undefined } : streams, table };
  const options = passOptions(loss, selection && selectTokens(selection, streams, rows.tokens));
  const sums = new Float64Array(SUM_COUNT);
  const dlogprobs = new Float64Array(rows.tokens);
  for (let t = 0; t < rows.tokens; t++) if (batch.mask[t] !== 0) dlogprobs[t] = passToken(t, inputs, options, sums);
  const bonus = entropyTerm(batch, loss, inputs);
  const result = lossResult(loss, sums, { rows, entropy: bonus?.entropy });
  return { ...result, dlogprobs, dentropy: bonus?.dentropy };
}

/** @throws {ConfigError} where a KL term lacks reference log-probs, or an entropy bonus entropies */
export function checkTerms(
  loss: ResolvedLoss,
  batch: { readonly refLogprobs?: unknown; readonly entropy?: unknown },
): void {
  if (loss.klCode !== 0 && !batch.refLogprobs) throw missing("refLogprobs", "the KL term");
  if (loss.entropyCoef !== 0 && !batch.entropy) throw missing("entropy", "the entropy bonus");
}

function missing(field: string, term: string): ConfigError {
  return new ConfigError(
    `Cannot take the loss: ${term} needs ${field}, which the batch does not hold. Give ${field}, or leave ${term} out.`,
    { path: field },
  );
}

function hostStreams(batch: LossBatch): Streams {
  const { offsets } = batch;
  const rowOfToken = rowsOfTokens(offsets);
  const size = { rows: offsets.length - 1, tokens: totalTokens(offsets) };
  return {
    logprobs: batch.logprobs,
    mask: batch.mask,
    old: batch.oldLogprobs,
    isWeights: batch.rolloutIsWeights,
    ref: batch.refLogprobs,
    advantage: advantageReader(checkAdvantages(batch.advantages, size)),
    row: (t) => rowOfToken[t]!,
  };
}

function rowTable(
  { offsets }: LossBatch,
  { weight, termWeight, plan }: ResolvedLoss,
  { streams, rows }: { streams: Streams; rows: RowCounts },
): RowTable {
  // A KL or entropy term that is aggregated by row shares the loss's weights, as in TRL.
  const byRow = weight.byRow ? weight : termWeight;
  const statistic = plan.rows;
  const numbers = statistic
    ? mapRows(offsets, (row, first, end) => statistic.numbers(rowSums(streams, { row, first, end }), plan.params))
    : [];
  return {
    weight: Float64Array.from(rows.trained, (n) => weightOfRow(byRow, n)),
    a: Float64Array.from(numbers, ({ a }) => a),
    b: Float64Array.from(numbers, ({ b }) => b),
  };
}

function passOptions(loss: ResolvedLoss, selected: LossPassOptions["selected"]): LossPassOptions {
  const { plan, weight, termWeight: klWeight, klCode, klCoef, klBound } = loss;
  const { form, params, rows, weightsInRows } = plan;
  const terms = { weight, klWeight, klCode, klCoef, klBound };
  return {
    ...terms,
    token: form.token,
    params,
    couplesRows: !!rows,
    weighsSlopes: weightsInRows !== "slope",
    selected,
  };
}

/** The aggregated entropy, and d(loss)/d(entropy) where it has a coefficient. */
function entropyTerm(
  { mask, entropy }: LossBatch,
  { termWeight, entropyCoef }: ResolvedLoss,
  { streams, table }: { streams: Streams; table: RowTable },
) {
  if (!entropy) return undefined;
  const dentropy = new Float64Array(mask.length);
  let total = 0;
  for (let t = 0; t < dentropy.length; t++) {
    if (mask[t] === 0) continue;
    const weight = termWeight.byRow ? table.weight[streams.row(t)]! : termWeight.uniform;
    total += weight * entropy[t]!;
    dentropy[t] = -entropyCoef * weight;
  }
  return { entropy: total, dentropy: entropyCoef !== 0 ? dentropy : undefined };
}
