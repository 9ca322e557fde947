/** The critic's clipped value loss. */

import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import type { Metrics } from "../../contract/backend.ts";
import { addStrided, uploadRowWeights } from "../kl/loss.ts";
import {
  COUNT_EPSILON,
  countRows,
  type Normalisers,
  type RowCounts,
  tokenWeights,
  trainedTokens,
  weightOfRow,
} from "./aggregation.ts";
import { clamp } from "./definition.ts";
import { rowsOfTokens } from "./host.ts";
import type { LossResult } from "./resolve.ts";

export interface ValueLossSpec extends Normalisers {
  readonly loss_agg_mode: string;
  /** How far the prediction may move from the old value. verl's default is 0.5. */
  readonly cliprange_value: number;
}

export interface ValueBatch {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
  /** Predictions now, predictions at rollout time, and their targets; [T]. */
  readonly values: ArrayLike<number>;
  readonly oldValues: ArrayLike<number>;
  readonly returns: ArrayLike<number>;
}

function tokenValueLoss(value: number, old: number, target: number, clip: number) {
  const plain = value - target;
  const clipped = clamp(value, old - clip, old + clip) - target;
  const larger = clipped ** 2 > plain ** 2;
  const inside = value >= old - clip && value <= old + clip;
  return { loss: 0.5 * Math.max(plain ** 2, clipped ** 2), slope: !larger || inside ? plain : 0, larger };
}

function valueMetrics(
  [loss = 0, larger = 0, values = 0]: readonly number[],
  trained: number,
): { loss: number; metrics: Metrics } {
  const count = trained + COUNT_EPSILON;
  const metrics = {
    "critic/vf_loss": loss,
    "critic/vf_clipfrac": larger / count,
    "critic/vpred_mean": values / count,
  };
  return { loss, metrics };
}

/**
 * Value loss of a packed batch in float64, with its gradient in the predictions [T].
 * @see verl core_algos.compute_value_loss
 */
export function valueLoss(
  batch: ValueBatch,
  spec: ValueLossSpec,
): LossResult & { readonly dvalues: Float64Array } {
  const rows = countRows(batch.offsets, batch.mask);
  const weights = tokenWeights(spec.loss_agg_mode, rows, spec);
  const rowOfToken = rowsOfTokens(batch.offsets);
  const dvalues = new Float64Array(rows.tokens);
  const sums = [0, 0, 0];
  for (let t = 0; t < rows.tokens; t++) {
    if (batch.mask[t] === 0) continue;
    const weight = weightOfRow(weights, rows.trained[rowOfToken[t]!]!);
    const token = tokenValueLoss(
      batch.values[t]!,
      batch.oldValues[t]!,
      batch.returns[t]!,
      spec.cliprange_value,
    );
    dvalues[t] = weight * token.slope;
    sums[0]! += weight * token.loss;
    sums[1]! += Number(token.larger);
    sums[2]! += batch.values[t]!;
  }
  return { ...valueMetrics(sums, trainedTokens(rows)), dvalues };
}

const GROUPS = 64;

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
  grid: () => [GROUPS],
  reference(
    { values, old_values, returns, mask, row_of_token, row_weights, dvalues, partials },
    params,
    constants,
  ) {
    const sums = [0, 0, 0];
    for (let t = 0; t < params.tokens; t++) {
      const weight = constants.ROW_WEIGHTED ? row_weights[row_of_token[t]!] : params.weight;
      const token = tokenValueLoss(values[t]!, old_values[t]!, returns[t]!, params.clip);
      dvalues[t] = mask[t] === 0 ? 0 : weight! * token.slope;
      if (mask[t] === 0) continue;
      sums[0]! += weight! * token.loss;
      sums[1]! += Number(token.larger);
      sums[2]! += values[t]!;
    }
    partials.fill(0, 0, 3 * GROUPS);
    partials.set(sums);
  },
});

export interface RecordedValueLoss {
  /** f32 [T], d(loss)/d(value); 0 where mask = 0. */
  readonly dvalues: Buffer;
  readonly reads: readonly ReadRequest[];
  decode(data: readonly Data[]): { loss: number; metrics: Metrics };
  release(): void;
}

/** Records {@link valueLoss} on a device. Nothing waits. */
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
  const dvalues = device.alloc(counts.tokens * 4, "dvalues");
  const partials = device.alloc(3 * GROUPS * 4, "value loss sums");
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
    decode: ([data]) => valueMetrics(addStrided(data!, 3), trainedTokens(counts)),
    release: () => device.release(dvalues, partials),
  };
}
