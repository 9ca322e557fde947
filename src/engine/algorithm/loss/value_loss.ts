/** The critic's clipped value loss, on the host and on a device. */

import { addStrided } from "../../../leaves/statistics.ts";
import type { Buffer, Device, Recorded } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import type { Metrics } from "../../contract/backend.ts";
import { F32_BYTES } from "../f32.ts";
import { COUNT_EPSILON, countRows, type MaskedRows, type RowCounts, trainedTokens } from "../rows.ts";
import { forEachWeighted, type Normalisers, TOKEN_GROUPS, tokenWeights, uploadRowWeights } from "./aggregation.ts";
import type { LossResult } from "./resolve.ts";
import { clamp } from "./token.ts";

/** Clip range and aggregation of a critic's loss. */
export interface ValueLossSpec extends Normalisers {
  readonly loss_agg_mode: string;
  /** How far the prediction may move from the old value. verl's default is 0.5. */
  readonly cliprange_value: number;
}

/** Batch of a value loss; per-token arrays are [T]. */
export interface ValueBatch extends MaskedRows {
  /** Predictions now, predictions at rollout time, and their targets. */
  readonly values: ArrayLike<number>;
  readonly oldValues: ArrayLike<number>;
  readonly returns: ArrayLike<number>;
}

/** L = max((v - G)^2, (clip(v, old - clip, old + clip) - G)^2) / 2, with its slope in v. */
function tokenValueLoss(value: number, { old, target, clip }: { old: number; target: number; clip: number }) {
  const plain = value - target;
  const clipped = clamp(value, old - clip, old + clip) - target;
  const isClipped = clipped ** 2 > plain ** 2;
  const isInside = value >= old - clip && value <= old + clip;
  return {
    loss: 0.5 * Math.max(plain ** 2, clipped ** 2),
    slope: !isClipped || isInside ? plain : 0,
    isClipped,
  };
}

/** Weighted loss, clipped tokens and predictions, each added over the trained tokens. */
type ValueSums = [loss: number, clipped: number, values: number];

/** Adds one trained token to `sums` and returns its gradient. */
function addToken(
  t: number,
  { values, oldValues, returns }: Pick<ValueBatch, "values" | "oldValues" | "returns">,
  { weight, clip }: { weight: number; clip: number },
  sums: ValueSums,
): number {
  const value = values[t]!;
  const { loss, slope, isClipped } = tokenValueLoss(value, { old: oldValues[t]!, target: returns[t]!, clip });
  sums[0] += weight * loss;
  sums[1] += Number(isClipped);
  sums[2] += value;
  return weight * slope;
}

function valueResult([loss, clipped, values]: ValueSums, trained: number): { loss: number; metrics: Metrics } {
  const count = trained + COUNT_EPSILON;
  const metrics = {
    "critic/vf_loss": loss,
    "critic/vf_clipfrac": clipped / count,
    "critic/vpred_mean": values / count,
  };
  return { loss, metrics };
}

/**
 * Value loss of a packed batch in float64, with its gradient in the predictions [T].
 * @throws {ConfigError} for an unknown aggregation, or a batch without a trained token
 * @see verl core_algos.compute_value_loss
 */
export function valueLoss(batch: ValueBatch, spec: ValueLossSpec): LossResult & { readonly dvalues: Float64Array } {
  const rows = countRows(batch.offsets, batch.mask);
  const weights = tokenWeights(spec.loss_agg_mode, rows, spec);
  const dvalues = new Float64Array(rows.tokens);
  const sums: ValueSums = [0, 0, 0];
  forEachWeighted(batch, { weights, rows }, (t, weight) => {
    dvalues[t] = addToken(t, batch, { weight, clip: spec.cliprange_value }, sums);
  });
  return { ...valueResult(sums, trainedTokens(rows)), dvalues };
}

export const lossValue = defineKernel({
  name: "loss/value",
  bindings: {
    values: "read f32",
    old_values: "read f32",
    returns: "read f32",
    mask: "read u32",
    row_of_token: "read u32",
    row_weights: "read f32",
    dvalues: "write f32",
    partials: "write f32",
  },
  params: { tokens: "u32", weight: "f32", clip: "f32" },
  constants: { ROW_WEIGHTED: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: () => [TOKEN_GROUPS],
  reference(buffers, { tokens, weight: uniform, clip }, constants) {
    const { mask, row_of_token, row_weights, dvalues, partials } = buffers;
    const batch = { ...buffers, oldValues: buffers.old_values };
    const sums: ValueSums = [0, 0, 0];
    for (let t = 0; t < tokens; t++) {
      const weight = constants.ROW_WEIGHTED ? row_weights[row_of_token[t]!]! : uniform;
      dvalues[t] = mask[t] === 0 ? 0 : addToken(t, batch, { weight, clip }, sums);
    }
    partials.fill(0, 0, 3 * TOKEN_GROUPS);
    partials.set(sums);
  },
});

/** A critic's loss in GPU buffers. */
export interface RecordedValueLoss extends Recorded<{ loss: number; metrics: Metrics }> {
  /** f32 [T], d(loss)/d(value); 0 where mask = 0. */
  readonly dvalues: Buffer;
}

/**
 * Records {@link valueLoss} on a device. Nothing waits.
 * @throws {ConfigError} like {@link valueLoss}
 */
export function recordValueLoss(
  device: Device,
  spec: ValueLossSpec,
  batch: {
    readonly buffers: {
      readonly values: Buffer;
      readonly oldValues: Buffer;
      readonly returns: Buffer;
      readonly mask: Buffer;
      readonly trajectoryOfToken: Buffer;
    };
    readonly counts: RowCounts;
  },
): RecordedValueLoss {
  const { buffers, counts } = batch;
  const weights = tokenWeights(spec.loss_agg_mode, counts, spec);
  const row_weights = uploadRowWeights(device, weights, counts);
  const dvalues = device.alloc(counts.tokens * F32_BYTES, "dvalues");
  const partials = device.alloc(3 * TOKEN_GROUPS * F32_BYTES, "value loss sums");
  const { values, oldValues: old_values, returns, mask, trajectoryOfToken: row_of_token } = buffers;
  device.dispatch(lossValue, {
    buffers: { values, old_values, returns, mask, row_of_token, row_weights, dvalues, partials },
    params: { tokens: counts.tokens, weight: weights.uniform, clip: spec.cliprange_value },
    constants: { ROW_WEIGHTED: Number(weights.byRow) },
  });
  device.release(row_weights);
  return {
    dvalues,
    reads: [{ buffer: partials, type: "f32" }],
    decode: ([data]) => valueResult(addStrided(data!, 3) as ValueSums, trainedTokens(counts)),
    release: () => device.release(dvalues, partials),
  };
}
