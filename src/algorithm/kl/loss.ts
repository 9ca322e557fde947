/** KL to the reference policy as a loss of its own: values, gradient, aggregate; and as a cost in the reward. */

import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import type { Metrics } from "../../contract/backend.ts";
import {
  COUNT_EPSILON,
  countRows,
  type Normalisers,
  type RowCounts,
  type TokenWeights,
  tokenWeights,
  weightOfRow,
} from "../loss/aggregation.ts";
import { rowsOfTokens } from "../loss/host.ts";
import { finiteF32 } from "../loss/kernels.ts";
import { K3_BOUND, type KlController, klCode, klEstimate } from "./estimate.ts";

export interface KlSpec extends Normalisers {
  /** `kl`, `k1`, `abs`, `mse`, `k2`, `low_var_kl`, `k3`, or one of them with `+`. */
  readonly kl: string;
  readonly loss_agg_mode: string;
  /** Where k3 is cut off: 10 as verl does; Infinity as TRL. */
  readonly bound?: number;
}

export interface KlBatch {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
  readonly logprobs: ArrayLike<number>;
  readonly refLogprobs: ArrayLike<number>;
}

/**
 * KL estimates of a packed batch in float64.
 * @returns estimates [T], 0 where mask = 0; their aggregate; its gradient in the log-probs [T]
 * @see verl core_algos.kl_penalty
 */
export function klLoss(
  batch: KlBatch,
  spec: KlSpec,
): { values: Float64Array; loss: number; dlogprobs: Float64Array } {
  const rows = countRows(batch.offsets, batch.mask);
  const weights = tokenWeights(spec.loss_agg_mode, rows, spec);
  const code = klCode(spec.kl);
  const values = new Float64Array(rows.tokens);
  const dlogprobs = new Float64Array(rows.tokens);
  const rowOfToken = rowsOfTokens(batch.offsets);
  let loss = 0;
  for (let t = 0; t < rows.tokens; t++) {
    if (batch.mask[t] === 0) continue;
    const weight = weightOfRow(weights, rows.trained[rowOfToken[t]!]!);
    const { value, slope } = klEstimate(
      code,
      batch.logprobs[t]! - batch.refLogprobs[t]!,
      spec.bound ?? K3_BOUND,
    );
    values[t] = value;
    dlogprobs[t] = weight * slope;
    loss += weight * value;
  }
  return { values, loss, dlogprobs };
}

const GROUPS = 64;

export const klValues = defineKernel({
  name: "loss/kl_values",
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
  grid: () => [GROUPS],
  reference(
    { logprobs, ref, mask, row_of_token, row_weights, values, dlogprobs, partials },
    params,
    constants,
  ) {
    let [weighted, plain] = [0, 0];
    for (let t = 0; t < params.tokens; t++) {
      const { value, slope } = klEstimate(constants.KL!, logprobs[t]! - ref[t]!, params.bound);
      const weight = constants.ROW_WEIGHTED ? row_weights[row_of_token[t]!] : params.weight;
      const trained = mask[t] !== 0;
      values[t] = trained ? value : 0;
      dlogprobs[t] = trained ? weight! * slope : 0;
      weighted += trained ? weight! * value : 0;
      plain += trained ? value : 0;
    }
    partials.fill(0, 0, 2 * GROUPS);
    partials.set([weighted, plain]);
  },
});

export interface RecordedKl {
  /** f32 [T] each, 0 where mask = 0. */
  readonly values: Buffer;
  readonly dlogprobs: Buffer;
  readonly reads: readonly ReadRequest[];
  /** The aggregate, and the plain mean over trained tokens. */
  decode(data: readonly Data[]): { loss: number; mean: number };
  release(): void;
}

/** Records {@link klLoss} on a device. Nothing waits. */
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
  const { buffers, counts } = batch;
  const weights = tokenWeights(spec.loss_agg_mode, counts, spec);
  const rowWeights = uploadRowWeights(device, weights, counts);
  const values = device.alloc(counts.tokens * 4, "kl values");
  const dlogprobs = device.alloc(counts.tokens * 4, "dlogprobs");
  const partials = device.alloc(2 * GROUPS * 4, "kl sums");
  device.dispatch(klValues, {
    buffers: {
      logprobs: buffers.logprobs,
      ref: buffers.refLogprobs,
      mask: buffers.mask,
      row_of_token: buffers.trajectoryOfToken,
      row_weights: rowWeights,
      values,
      dlogprobs,
      partials,
    },
    params: { tokens: counts.tokens, weight: weights.uniform, bound: finiteF32(spec.bound ?? K3_BOUND) },
    constants: { KL: klCode(spec.kl), ROW_WEIGHTED: Number(weights.byRow) },
  });
  device.release(rowWeights);
  const trained = counts.trained.reduce((sum, n) => sum + n, 0);
  return {
    values,
    dlogprobs,
    reads: [{ buffer: partials, type: "f32" }],
    decode([data]) {
      const [loss, sum] = addStrided(data!, 2) as [number, number];
      return { loss, mean: sum / (trained + COUNT_EPSILON) };
    },
    release: () => device.release(values, dlogprobs, partials),
  };
}

/** Weights by row for a kernel; where the aggregation does not need them, a placeholder. */
export function uploadRowWeights(device: Device, weights: TokenWeights, counts: RowCounts): Buffer {
  const table = weights.byRow
    ? Float32Array.from(counts.trained, (n) => weightOfRow(weights, n))
    : new Float32Array(1);
  return device.upload(table, "row weights");
}

/** Sums of every `stride`-th number, from 0, 1, ... on. */
export function addStrided(data: ArrayLike<number>, stride: number): number[] {
  const sums = new Array<number>(stride).fill(0);
  for (let i = 0; i < data.length; i++) sums[i % stride]! += data[i]!;
  return sums;
}

/**
 * KL as a cost in the reward: R_t - beta K(old, ref) at trained tokens, and the controller for the next step.
 * @returns token rewards [T], the next controller, and `actor/reward_kl_penalty` with its coefficient
 * @see verl ray_trainer.apply_kl_penalty
 */
export function klInReward(
  batch: {
    readonly offsets: Uint32Array;
    readonly mask: Uint32Array;
    readonly tokenRewards: ArrayLike<number>;
    readonly oldLogprobs: ArrayLike<number>;
    readonly refLogprobs: ArrayLike<number>;
  },
  options: { readonly kl: string; readonly controller: KlController },
): { tokenRewards: Float64Array; controller: KlController; metrics: Metrics } {
  const { offsets, mask, oldLogprobs, refLogprobs } = batch;
  const { controller } = options;
  const code = klCode(options.kl);
  const tokenRewards = Float64Array.from(batch.tokenRewards);
  const rows = offsets.length - 1;
  let meanOfRows = 0;
  for (let row = 0; row < rows; row++) {
    let [sum, trained] = [0, 0];
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
      if (mask[t] === 0) continue;
      const { value } = klEstimate(code, oldLogprobs[t]! - refLogprobs[t]!);
      tokenRewards[t]! -= controller.coef * value;
      sum += value;
      trained++;
    }
    meanOfRows += sum / (trained + COUNT_EPSILON) / rows;
  }
  const metrics = { "actor/reward_kl_penalty": meanOfRows, "actor/reward_kl_penalty_coeff": controller.coef };
  return { tokenRewards, controller: controller.update(meanOfRows, rows), metrics };
}
