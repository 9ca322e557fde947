/** KL to the reference policy as a loss: estimates, their aggregate and its gradient; on the host and on a device. */

import { addStrided } from "../../../leaves/statistics.ts";
import type { Buffer, Device, Recorded } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import { loadShader } from "../../compute/shader.ts";
import { F32_BYTES, finiteF32 } from "../f32.ts";
import { K3_BOUND, klCode, klEstimate, klEstimateWgsl } from "../kl/estimate.ts";
import { COUNT_EPSILON, countRows, type MaskedRows, type RowCounts, trainedTokens } from "../rows.ts";
import { forEachWeighted, type Normalisers, TOKEN_GROUPS, tokenWeights, uploadRowWeights } from "./aggregation.ts";

/** Choice of a loss's KL estimate, and how it is aggregated. */
export interface KlSpec extends Normalisers {
  /** `kl`, `k1`, `abs`, `mse`, `k2`, `low_var_kl`, `k3`, or one of them with `+`. */
  readonly kl: string;
  readonly loss_agg_mode: string;
  /** Bound of k3. Default 10, as in verl; TRL has no bound (Infinity). */
  readonly bound?: number | undefined;
}

/** Batch of a KL loss; per-token arrays are [T]. */
export interface KlBatch extends MaskedRows {
  readonly logprobs: ArrayLike<number>;
  readonly refLogprobs: ArrayLike<number>;
}

/**
 * KL estimates of a packed batch in float64.
 * @returns estimates [T], 0 where mask = 0; their aggregate; its gradient in the log-probs [T]
 * @throws {ConfigError} for a KL estimator or an aggregation that is not published, or a batch without a trained token
 * @see verl core_algos.kl_penalty
 */
export function klLoss(batch: KlBatch, spec: KlSpec): { values: Float64Array; loss: number; dlogprobs: Float64Array } {
  const { logprobs, refLogprobs } = batch;
  const rows = countRows(batch.offsets, batch.mask);
  const weights = tokenWeights(spec.loss_agg_mode, rows, spec);
  const code = klCode(spec.kl);
  const [values, dlogprobs] = [new Float64Array(rows.tokens), new Float64Array(rows.tokens)];
  let loss = 0;
  forEachWeighted(batch, { weights, rows }, (t, weight) => {
    const { value, slope } = klEstimate(code, logprobs[t]! - refLogprobs[t]!, spec.bound);
    values[t] = value;
    dlogprobs[t] = weight * slope;
    loss += weight * value;
  });
  return { values, loss, dlogprobs };
}

export const klValues = defineKernel({
  name: "loss/kl_values",
  source: async () => `${await loadShader("loss/kl_values")}\n${klEstimateWgsl()}`,
  bindings: {
    logprobs: "read f32",
    ref: "read f32",
    mask: "read u32",
    row_of_token: "read u32",
    row_weights: "read f32",
    values: "write f32",
    dlogprobs: "write f32",
    partials: "write f32",
  },
  params: { tokens: "u32", weight: "f32", bound: "f32" },
  constants: { KL: 1, ROW_WEIGHTED: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: () => [TOKEN_GROUPS],
  reference(buffers, params, constants) {
    const { logprobs, ref, mask, row_of_token, row_weights, values, dlogprobs, partials } = buffers;
    let [weighted, plain] = [0, 0];
    values.fill(0, 0, params.tokens);
    dlogprobs.fill(0, 0, params.tokens);
    for (let t = 0; t < params.tokens; t++) {
      if (mask[t] === 0) continue;
      const { value, slope } = klEstimate(constants.KL!, logprobs[t]! - ref[t]!, params.bound);
      const weight = constants.ROW_WEIGHTED ? row_weights[row_of_token[t]!]! : params.weight;
      values[t] = value;
      dlogprobs[t] = weight * slope;
      weighted += weight * value;
      plain += value;
    }
    partials.fill(0, 0, 2 * TOKEN_GROUPS);
    partials.set([weighted, plain]);
  },
});

/** A KL loss in GPU buffers: values and gradient per token. Its aggregate, and the plain mean over trained tokens. */
export interface RecordedKl extends Recorded<{ loss: number; mean: number }> {
  /** f32 [T] each, 0 where mask = 0. */
  readonly values: Buffer;
  readonly dlogprobs: Buffer;
}

/**
 * Records {@link klLoss} on a device. Nothing waits.
 * @throws {ConfigError} like {@link klLoss}
 */
export function recordKl(
  device: Device,
  spec: KlSpec,
  batch: {
    readonly buffers: {
      readonly logprobs: Buffer;
      readonly refLogprobs: Buffer;
      readonly mask: Buffer;
      readonly trajectoryOfToken: Buffer;
    };
    readonly counts: RowCounts;
  },
): RecordedKl {
  const { counts } = batch;
  const { logprobs, refLogprobs: ref, mask, trajectoryOfToken: row_of_token } = batch.buffers;
  const weights = tokenWeights(spec.loss_agg_mode, counts, spec);
  const constants = { KL: klCode(spec.kl), ROW_WEIGHTED: Number(weights.byRow) };
  const row_weights = uploadRowWeights(device, weights, counts);
  const values = device.alloc(counts.tokens * F32_BYTES, "kl values");
  const dlogprobs = device.alloc(counts.tokens * F32_BYTES, "dlogprobs");
  const partials = device.alloc(2 * TOKEN_GROUPS * F32_BYTES, "kl sums");
  device.dispatch(klValues, {
    buffers: { logprobs, ref, mask, row_of_token, row_weights, values, dlogprobs, partials },
    params: { tokens: counts.tokens, weight: weights.uniform, bound: finiteF32(spec.bound ?? K3_BOUND) },
    constants,
  });
  device.release(row_weights);
  return {
    values,
    dlogprobs,
    reads: [{ buffer: partials, type: "f32" }],
    decode([data]) {
      const [loss, sum] = addStrided(data!, 2) as [number, number];
      return { loss, mean: sum / (trainedTokens(counts) + COUNT_EPSILON) };
    },
    release: () => device.release(values, dlogprobs, partials),
  };
}
